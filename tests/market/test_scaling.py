import json

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from fintrader.agents import PPO, load_policy, make_agent, save_policy
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import CheckpointError, DataError
from fintrader.market.build import build_market, make_market
from fintrader.market.scaling import cross_section, read_statistics
from fintrader.market.tensors import MarketTensors
from fintrader.records import to_json
from tests.bars.tables import PLAIN, file_settings, minute_table, write_csv


def table(seed=0):
    """Values `[T, N, 2]` with holes and ties, and who is a member."""
    random = np.random.default_rng(seed)
    values = random.normal(3, 2, (40, 6, 2)).astype(np.float32)
    values[:, :, 0] = np.round(values[:, :, 0])
    values[7, :, 0] = 2.0
    values[random.random(values.shape) < 0.2] = np.nan
    return values, random.random((40, 6)) < 0.8


@pytest.mark.parametrize("how", ["zscore", "rank"])
def test_a_cross_section_is_that_of_the_members_with_a_value(how):
    values, member = table()
    got = values.copy()
    cross_section(got, member, [0], how, 1.0)
    np.testing.assert_array_equal(got[:, :, 1], values[:, :, 1])  # no other column is touched
    sizes = set()
    for t in range(len(values)):
        known = member[t] & np.isfinite(values[t, :, 0])
        sizes.add(min(int(known.sum()), 3))
        x = values[t, known, 0].astype(float)
        expected = np.zeros(6)
        if len(x) >= 3 and x.std() > 0:
            ranks = (rankdata(x) - (len(x) + 1) / 2) / np.std(np.arange(len(x)))
            expected[known] = (x - x.mean()) / x.std() if how == "zscore" else ranks
        np.testing.assert_allclose(got[t, :, 0], expected.clip(-1.0, 1.0), rtol=1e-5, atol=1e-6)
    assert {2, 3} <= sizes
    assert not got[7, :, 0].any()  # all equal
    assert np.abs(got[:, :, 0]).max() == 1.0


@pytest.fixture(scope="module")
def two_markets(tmp_path_factory):
    """An earlier market's file, that of the same bars and more, and the bars."""
    home = tmp_path_factory.mktemp("markets")
    bars = write_csv(home, minute_table(symbols=2, sessions=12))
    early = build_market(file_settings(bars, end="2016-01-11"), cache=home / "cache")
    return early, build_market(file_settings(bars), cache=home / "cache"), bars


def scaled_by(stored, bars):
    return file_settings(bars, features={**PLAIN["features"], "normalisation": str(stored)})


def test_later_bars_are_scaled_by_an_earlier_markets_statistics(two_markets):
    early, late, bars = two_markets
    own = MarketTensors.load(late)
    first = MarketTensors.load(early)
    assert own.normalisation.digest != first.normalisation.digest
    assert not torch.equal(own.features[: first.num_bars], first.features)
    plain = early.with_name("statistics.json")
    plain.write_text(json.dumps(to_json(first.normalisation)))
    built = set()
    for stored in (early, early.with_name("build.json"), plain):
        path = build_market(scaled_by(stored, bars), cache=late.parents[1])
        market = MarketTensors.load(path, verify=True)
        built.add(path)
        assert market.normalisation == first.normalisation
        assert torch.equal(market.features[: first.num_bars], first.features)
        assert torch.equal(market.context[: first.num_bars], first.context)
    assert len(built) == 1  # what the statistics are decides, not where they lie
    assert late not in built


def test_a_policy_refuses_rows_scaled_by_other_statistics(two_markets, tmp_path):
    early, late, bars = two_markets
    first = MarketTensors.load(early)
    env = TradingEnv(first.split().train, EnvSettings(num_envs=2))
    save_policy(make_agent(PPO(), env.layout, seed=0), tmp_path / "policy", market=first)
    here = MarketTensors.load(late).normalisation.digest
    there = first.normalisation.digest
    with pytest.raises(
        CheckpointError,
        match=rf"\({there}; this market: {here}\).*data.features.normalisation set to",
    ):
        load_policy(tmp_path / "policy", market=MarketTensors.load(late))
    path = build_market(scaled_by(early, bars), cache=tmp_path / "cache")
    policy = load_policy(tmp_path / "policy", market=MarketTensors.load(path))
    assert policy.meta["market"]["normalisation_hash"] == there


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"names": ["return_5"]}, "have no return_5"),
        ({"context": ["time_to_close"]}, r"have no time_to_close \(context\)"),
        ({"clip": 5.0}, "are for clip 10.0, not 5.0"),
        ({"scaling": "rank"}, "are for cross_sectional none, not rank"),
        ({"scaling": "none"}, "return_1 was standardised"),
    ],
)
def test_statistics_of_other_columns_are_refused(change, said, two_markets):
    early, _, bars = two_markets
    features = {
        "names": ["return_1"],
        "context": ["time_of_day"],
        **change,
        "normalisation": str(early),
    }
    with pytest.raises(DataError, match=said):
        make_market(file_settings(bars, features=features))


def test_what_says_nothing_of_a_scale_is_refused(tmp_path, two_markets):
    stored = to_json(read_statistics(str(two_markets[0])))
    file = tmp_path / "statistics.json"
    spread = {**stored, "features": {"return_1": {"mean": 0.0, "std": 0.0}}}
    for text in (
        "no JSON",
        "[]",
        "{}",
        json.dumps(spread),
        json.dumps({**stored, "context": None}),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=r"statistics\.json"):
            read_statistics(str(file))
    sealed = two_markets[0].with_name("build.json").read_bytes()
    file.write_bytes(sealed.replace(b'"std": ', b'"std": 1'))
    with pytest.raises(DataError, match="damaged"):
        read_statistics(str(file))
    with pytest.raises(DataError, match="does not exist"):
        read_statistics(str(tmp_path / "nothing.json"))
