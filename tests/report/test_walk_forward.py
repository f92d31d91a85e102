"""`fintrader.walk_forward`: any agent, fold by fold, as one backtest."""

import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import fintrader
from fintrader import EnvSettings, TradingEnv, agents
from fintrader.backtesting import simulate
from fintrader.backtesting.settings import WalkForwardSettings
from fintrader.backtesting.walk_forward import cut_fold, make_folds, stitch
from fintrader.errors import BacktestError, CheckpointError, ConfigError
from fintrader.market.tensors import Windows
from fintrader.results.backtest_result import BacktestResult
from fintrader.results.market_description import ColumnScale, Normalisation
from fintrader.verdict.looks import Ledger
from tests.factories import planted_market

BARS = 5
SESSIONS = 80
RULES = EnvSettings(benchmark="equal_weight", cost_bps=1.0)
DRAWN = {"drift": 7e-4, "volatility": 5e-3, "regime_bars": 60}
MARKET = planted_market(SESSIONS * BARS, 4, session_bars=BARS, **DRAWN)
LAYOUT = TradingEnv(MARKET, RULES, num_envs=1).layout


def follow(obs):
    """Equal weights in whatever the signal says will rise."""
    rising = (LAYOUT.split(obs)["features"][..., 0] > 0).float() + 1e-3
    return rising / rising.sum(1, keepdim=True)


def test_all_test_windows_are_one_backtest_with_its_verdict_and_page(tmp_path):
    shown = []

    def make_agent(train, validation):
        shown.append((train, validation))
        return follow

    looks = len(Ledger().looks())
    tests = fintrader.walk_forward(make_agent, MARKET, RULES, folds=np.int64(3), name="rule")
    folds = make_folds(MARKET, 3)
    assert len(folds) == len(shown) == len(tests.windows) == 3
    assert [len(train) for train, _ in shown] == [SESSIONS // 2 * BARS] * 3
    for (train, validation), test in zip(shown, tests.windows, strict=True):
        assert train.minutes[-1] < validation.minutes[0]
        assert validation.minutes[-1] < test.minutes[0]
        assert (train.window_name, validation.window_name) == ("train", "validation")
    apart = stitch([simulate(follow, window, RULES) for window in tests.windows])
    np.testing.assert_array_equal(tests["rule"].equity, apart.equity)
    assert {"ridge", "buy_and_hold", "equal_weight"} <= set(tests)
    assert len(Ledger().looks()) == looks + 1
    assert Ledger().looks()[-1].look.kind == "walkforward"
    assert tests.verdict.window == "test"
    assert tests.verdict.sessions == len(apart.daily_returns)
    assert "3 test windows in a row" in repr(tests)
    page = tests.report(tmp_path / "page.html")
    assert "Rule" in page.read_text()
    assert tests.plot().data[0].name == "Rule"


@pytest.mark.slow
def test_the_markets_own_training_window_is_the_first_folds():
    market = replace(MARKET, windows=Windows((0, 150), (155, 200), (205, 400)))
    folds = make_folds(market, 4)
    assert folds[0].train == (0, 150)
    lengths = {stop - start for fold in folds for start, stop in (fold.validation, fold.test)}
    assert lengths == {9 * BARS}
    assert len(folds) == 4
    tests = fintrader.walk_forward(
        lambda train, validation: follow,
        market,
        RULES,
        folds=WalkForwardSettings(sessions=(20, 10, 10)),
    )
    assert len(tests.windows) == len(make_folds(market, WalkForwardSettings(sessions=(20, 10, 10))))


@pytest.mark.slow
def test_a_trained_result_is_its_policy():
    def make_agent(train, validation):
        return fintrader.train(agents.PPO(), TradingEnv(train, num_envs=4), env_steps=600)

    tests = fintrader.walk_forward(make_agent, MARKET, folds=1)
    assert len(tests["policy"].equity) == len(tests.windows[0])


def test_a_folds_features_have_no_statistics_of_later_bars():
    values = MARKET.features.double()
    scales = dict.fromkeys(MARKET.feature_names, ColumnScale(0.5, 2.0))
    known = Normalisation(scales, {}, 10.0, "none")
    market = replace(MARKET, windows=Windows((0, 300), (305, 350), (355, 400)), normalisation=known)
    fold = make_folds(market, WalkForwardSettings(sessions=(20, 10, 10)))[0]
    part = cut_fold(market, fold)
    train = part.features[slice(*part.windows.train)].double().flatten(0, 1)
    torch.testing.assert_close(train.mean(0), torch.zeros(3).double(), atol=1e-6, rtol=0)
    torch.testing.assert_close(train.std(0, correction=0), torch.ones(3).double())
    # The statistics that are stored lead back to the values before any scale.
    scale = part.normalisation.features["signal"]
    raw = part.features[..., 0].double() * scale.std + scale.mean
    torch.testing.assert_close(raw.float(), values[: len(part), :, 0].float() * 2.0 + 0.5)
    # What lies beyond the fold's training window changes none of its rows there.
    later = market.features.clone()
    later[fold.validation[0] :] += 1.0
    again = cut_fold(replace(market, features=later), fold)
    torch.testing.assert_close(
        again.features[slice(*part.windows.train)], part.features[slice(*part.windows.train)]
    )
    # Statistics of a training window that no fold's reaches beyond stay as they are.
    short = replace(market, windows=Windows((0, 100), (105, 110), (115, 400)))
    assert cut_fold(short, fold).normalisation == known


@pytest.mark.parametrize(
    ("first", "folds", "words"),
    [
        (agents.PPO(), 3, "def make_agent"),
        (MARKET, 3, "def make_agent"),
        (lambda train, validation: None, 3, "a policy is a callable"),
        (lambda train: follow, 3, "called with two windows"),
        (lambda train, validation: follow, 0, "whole number of at least 1"),
        (lambda train, validation: follow, 60, "ask for fewer"),
    ],
)
def test_what_makes_no_policy_or_no_fold_is_refused(first, folds, words):
    with pytest.raises(BacktestError, match=words):
        fintrader.walk_forward(first, MARKET, RULES, folds=folds)


def test_a_session_is_of_the_day_on_which_it_ends():
    starts = pd.date_range("2024-01-30 17:00", periods=3, tz="America/New_York")
    result = BacktestResult.of_curve(
        "currencies",
        np.array([100.0, 110.0, 99.0]),
        minutes=starts.as_unit("ns").asi8,
        session=np.arange(3),
        benchmark=np.ones(3),
        bar_minutes=1440,
        timezone="America/New_York",
    )
    assert [*result.returns.index.strftime("%m-%d")] == ["01-31", "02-01", "02-02"]
    assert (result.best_month, result.worst_month) == pytest.approx((0.0, -0.01))


def test_a_result_has_its_measures_returns_and_curve():
    result = fintrader.backtest(follow, MARKET, RULES)["policy"]
    assert result.sharpe == result.metrics.sharpe
    returns = result.returns
    assert isinstance(returns, pd.Series)
    np.testing.assert_array_equal(returns.to_numpy(), result.daily_returns)
    assert list(returns.index) == sorted(set(returns.index))
    for given in (returns, result):
        assert fintrader.judge(given, trials=1).sessions == len(result.daily_returns)
    alone = fintrader.judge(replace(result, caveats=("a leak",), ruined=True), trials=1)
    assert (alone.is_ruined, alone.notice) == (True, result.provenance.notice)
    assert "a leak" in alone.caveats
    for known in ({"is_seen": True}, {"cut_from": ("validation", "test")}):
        assert fintrader.judge(replace(result, **known), trials=1).state == "no_verdict"
    assert list(result.plot().data[0].y) == result.equity.tolist()
    tests = fintrader.backtest(follow, MARKET, RULES)
    assert tests.sharpe == tests["policy"].sharpe
    for wrong, meant in (("sharp", "sharpe"), ("equity_curve", "equity")):
        for asked in (result, tests):
            with pytest.raises(AttributeError, match=f"did you mean '{meant}'"):
                getattr(asked, wrong)
    assert copy.deepcopy(tests).sharpe == tests.sharpe
    with pytest.raises(ConfigError, match="did you mean 'trials'"):
        tests.judge(n_trials=3)
    with pytest.raises(BacktestError, match=r"end in \.html"):
        tests.report("page.pdf")


def test_a_policy_is_stored_by_the_door(tmp_path):
    policy = fintrader.train(agents.PPO(), TradingEnv(MARKET, num_envs=4), env_steps=600).policy
    fintrader.save_policy(policy, tmp_path / "one.safetensors")
    policy.save(tmp_path / "two.safetensors")
    assert (tmp_path / "one.safetensors").read_bytes() == (
        tmp_path / "two.safetensors"
    ).read_bytes()
    assert fintrader.load_policy(tmp_path / "one.safetensors").layout == policy.layout
    with pytest.raises(CheckpointError, match=r"write save_policy\(policy, path\)"):
        fintrader.save_policy(str(tmp_path / "one.safetensors"), policy)
    with pytest.raises(CheckpointError, match="holds no policy"):
        fintrader.save_policy(follow, tmp_path / "three")
