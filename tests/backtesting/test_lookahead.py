from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fintrader.backtesting.lookahead import find_leaks, lookahead
from fintrader.data.settings import DataSettings
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from tests.data.tables import REAL_2016
from tests.factories import joined, make_market


def future(cut: int, mode: str) -> MarketTensors:
    """The test market, with another market's bars from `cut` on."""
    return joined(make_market(90, 4, seed=1), make_market(90, 4, seed=2), cut)


def leaking(market: MarketTensors, where: str) -> MarketTensors:
    """Put the next three bars' return into feature f1, the last price into context c0, or a later index level."""
    if where == "feature f1":
        ahead = torch.zeros_like(market.close)
        ahead[:-3] = (market.close[3:] / market.close[:-3] - 1).nan_to_num()
        features = market.features.clone()
        features[..., 1] = ahead
        return replace(market, features=features)
    if where == "context c0":
        context = market.context.clone()
        context[:, 0] = market.close[-1].nan_to_num().sum()
        return replace(market, context=context)
    benchmark = market.benchmark.clone()
    benchmark[:] = benchmark.reshape(-1, 3)[:, 2:].repeat(1, 3).flatten()  # the last of every three, filled back
    return replace(market, benchmark=benchmark)


def test_a_clean_market_is_clean() -> None:
    market = make_market(90, 4, seed=1)
    report = find_leaks(market, future, EnvSettings(), cuts=4)
    assert report.clean
    assert len(report.cuts) == 4
    assert all(cut > market.windows.train[1] for cut in report.cuts)
    assert str(report).startswith("No look-ahead found: 4 cuts")


@pytest.mark.parametrize("where", ["feature f1", "context c0", "benchmark"])
def test_a_planted_leak_is_named(where: str) -> None:
    market = leaking(make_market(90, 4, seed=1), where)
    report = find_leaks(market, lambda cut, mode: leaking(future(cut, mode), where), EnvSettings(), cuts=4)
    names = {leak.what for leak in report.leaks}
    assert where in names
    assert names <= {where, "observation", "equity", "fill"}
    assert all(leak.bar < leak.cut for leak in report.leaks)
    if where.startswith("feature"):
        assert "observation" in names
        assert "fill" in names or "equity" in names
        assert any("feature f1 of S" in leak.detail for leak in report.leaks if leak.what == "observation")
    assert where in str(report)


def test_the_pipeline_does_not_look_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    source = {"kind": "synthetic", "num_symbols": 4, "num_sessions": 30}
    data = DataSettings.model_validate({"source": source, "bar_minutes": 30})
    assert lookahead(data, EnvSettings(), cuts=2).clean

    from fintrader.data import build

    honest = build.ft.symbol_features

    def peeking(one, names, later):
        features = honest(one, names, later)
        if len(features) > 1:
            features[:-1, 0] = features[1:, 0].copy()
        return features

    monkeypatch.setattr(build.ft, "symbol_features", peeking)
    report = lookahead(data, EnvSettings(), cuts=2)
    assert not report.clean
    assert f"feature {data.features.names[0]}" in {leak.what for leak in report.leaks}


def test_no_room_to_cut_is_a_typed_error() -> None:
    market = make_market(60, 3).window(0, 4)
    with pytest.raises(BacktestError, match="no bar"):
        find_leaks(market, future, EnvSettings())


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.skipif(not REAL_2016.exists(), reason="the real minute bars are not beside the checkout")
def test_real_minutes_do_not_look_ahead() -> None:
    source = {"kind": "files", "path": str(REAL_2016), "timezone": "America/New_York"}
    universe = {"symbols": ["AAPL", "BRCM", "CSX", "GMCR", "MSFT"]}
    data = DataSettings.model_validate({"source": source, "universe": universe, "bar_minutes": 5})
    report = lookahead(data, EnvSettings(decision_interval=6), cuts=2)
    assert report.clean, str(report)
    assert np.all(np.array(report.cuts) > 0)
