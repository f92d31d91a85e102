from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pytest

from fintrader.data import build, chunks
from fintrader.data.build import build_market, make_market
from fintrader.data.settings import DataSettings
from fintrader.data.tensors import MarketTensors
from tests.data.tables import file_settings, minute_table, write_csv

CHOICES: list[dict[str, Any]] = [
    {},
    {"universe": {"min_coverage": 0.5}},
    {"universe": {"max_symbols": 2}},
    {"universe": {"max_symbols": 3, "min_coverage": 0.3}, "bar_minutes": 5},
    {"universe": {"symbols": ["BBB", "DDD"], "min_coverage": 0.1}, "start": "2016-01-06"},
]


@pytest.fixture(scope="module")
def bars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five symbols over two months: later ones trade in fewer minutes, but not with less volume."""
    table = minute_table(5, 24)
    chance = np.random.default_rng(1)
    number = table.ticker.map({name: index for index, name in enumerate(sorted(table.ticker.unique()))})
    table["volume"] *= number.map({0: 1.0, 1: 5.0, 2: 2.0, 3: 9.0, 4: 4.0})
    return write_csv(tmp_path_factory.mktemp("bars"), table[chance.random(len(table)) > 0.18 * number])


def settings(bars: Path, values: dict[str, Any]) -> DataSettings:
    features = {"names": ["return_1", "sma_5", "rsi_30"], "context": ["time_of_day"]}
    return file_settings(bars, features=features, **values)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_symbol_is_decoded_cleaned_and_gridded_once(
    bars: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, choice: dict[str, Any]
) -> None:
    build_market(settings(bars, {"bar_minutes": 30}), cache=tmp_path)  # cuts the file into chunks
    spies = {}
    for module, name in ((chunks, "decode"), (build, "clean"), (build, "to_grid")):
        spies[name] = Mock(wraps=getattr(module, name))
        monkeypatch.setattr(module, name, spies[name])
    build_market(settings(bars, choice), cache=tmp_path)
    listed = choice.get("universe", {}).get("symbols", [])
    symbols = {("AAA",), *((name,) for name in listed or ("BBB", "CCC", "DDD", "EEE"))}  # AAA is the source's first
    for name in ("clean", "to_grid"):
        assert Counter(call.args[0].symbols for call in spies[name].call_args_list) == dict.fromkeys(symbols, 1)
    decoded = [call.args[0] for call in spies["decode"].call_args_list]
    assert len(decoded) == len(set(decoded)) == 2 * len(symbols)  # a chunk a month


@pytest.mark.parametrize("block", [7, 4096])
@pytest.mark.parametrize("choice", CHOICES[1:4])
def test_a_market_of_chosen_symbols_is_the_market_of_a_list_of_them(
    bars: Path, monkeypatch: pytest.MonkeyPatch, choice: dict[str, Any], block: int
) -> None:
    monkeypatch.setattr(build, "_BLOCK_BARS", block)
    chosen, report = make_market(settings(bars, choice))
    assert 0 < chosen.num_assets < 5
    assert len(report["left_out"]) == 5 - chosen.num_assets
    listed, again = make_market(settings(bars, {**choice, "universe": {"symbols": list(chosen.symbols)}}))
    assert chosen.symbols == listed.symbols
    assert report["repairs"] == again["repairs"]
    for name, tensor in listed.arrays():
        np.testing.assert_array_equal(getattr(chosen, name).numpy(), tensor.numpy(), err_msg=name)


def test_the_highest_turnover_of_the_training_window_is_kept(bars: Path, tmp_path: Path) -> None:
    every, _ = make_market(settings(bars, {}))
    first, last = every.windows.train
    table = pd.read_csv(bars)
    days = np.unique(every.timestamps()[first:last].astype("datetime64[D]"))
    table = table[np.isin(pd.to_datetime(table.ts).dt.floor("D"), days)]
    turnover_usd = (table.close * table.volume).groupby(table.ticker).sum()
    market = MarketTensors.load(build_market(settings(bars, CHOICES[2]), cache=tmp_path))
    assert set(market.symbols) == set(turnover_usd.nlargest(2).index)
