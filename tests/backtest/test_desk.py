"""The numpy ledger against the environment's, over random markets, settings and actions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fintrader.backtest import simulate, simulate_baselines
from fintrader.backtest.controls import random_portfolios
from fintrader.backtest.desk import EnvDesk, FastDesk, make_desk
from fintrader.backtest.sensitivity import without_each
from fintrader.backtest.simulate import simulate_rule
from fintrader.envs import EnvSettings
from tests.backtest.policies import crashing_market, noisy_policy
from tests.factories import make_market

SETTINGS = st.fixed_dictionaries(
    {
        "action": st.sampled_from(["target", "trade"]),
        "fill": st.sampled_from(["next_open", "next_close", "close"]),
        "max_shares": st.sampled_from([0.5, 100.0, 5000.0]),
        "rebalance_band": st.sampled_from([0.0, 0.0, 0.05]),
        "decision_interval": st.sampled_from([1, 1, 4, 25]),
        "cost_bps": st.sampled_from([0.0, 20.0, 300.0]),
        "half_spread_bps": st.sampled_from([0.0, 3.0]),
        "impact_bps_per_million_usd": st.sampled_from([0.0, 200.0]),
        "min_commission_usd": st.sampled_from([0.0, 0.0, 50.0]),
        "initial_cash_usd": st.sampled_from([500.0, 1e6]),
        "turbulence_column": st.sampled_from([None, "c0"]),
        "turbulence_threshold": st.just(1.0),
    }
)


def both(values: dict[str, Any], seed: int, fractional: bool) -> tuple[Any, Any]:
    market = make_market(70, 5, seed=seed, volatility=0.03)
    chosen = EnvSettings(**values, fractional=fractional)
    policy = noisy_policy(5, seed)
    return simulate(policy, market, chosen), simulate(policy, market, chosen, exact=True)


@settings(max_examples=80, deadline=None)
@given(SETTINGS, st.integers(0, 10**6))
def test_whole_shares_are_bit_for_bit_the_environments(values: dict[str, Any], seed: int) -> None:
    fast, slow = both(values, seed, fractional=False)
    assert (fast.equity == slow.equity).all()
    assert (fast.shares == slow.shares).all()
    exact = ["decision_bar", "fill_bar", "symbol", "shares", "price_usd", "kind", "decision_time", "fill_time"]
    pd.testing.assert_frame_equal(fast.trades[exact], slow.trades[exact])
    assert fast.trades["cost_usd"].to_numpy() == pytest.approx(slow.trades["cost_usd"].to_numpy(), rel=1e-12)
    assert fast.costs_usd == pytest.approx(slow.costs_usd, rel=1e-12, abs=1e-12)
    assert fast.turnover_usd == pytest.approx(slow.turnover_usd, rel=1e-12, abs=1e-12)
    assert fast.ruined == slow.ruined


@settings(max_examples=25, deadline=None)
@given(SETTINGS.filter(lambda values: not values["rebalance_band"]), st.integers(0, 10**6))
def test_fractions_agree_to_rounding(values: dict[str, Any], seed: int) -> None:
    fast, slow = both(values, seed, fractional=True)
    assert fast.equity == pytest.approx(
        slow.equity, rel=1e-6, abs=1e-9 * slow.equity[0]
    )  # a float32 observation may round the other way
    assert fast.trade_list_profit() == pytest.approx(fast.equity[-1] - fast.equity[0], abs=1e-9 * fast.equity[0])


def test_observations_are_the_environments() -> None:
    market = make_market(60, 5)
    chosen = EnvSettings(decision_interval=3)
    fast, slow = make_desk(market, chosen), make_desk(market, chosen, exact=True)
    assert isinstance(fast, FastDesk)
    assert isinstance(slow, EnvDesk)
    policy, over = noisy_policy(5), False
    while not over:
        seen = fast.observe()
        assert torch.equal(seen, slow.observe())
        assert fast.bar == slow.bar
        assert fast.equity == slow.equity
        over = fast.act(policy(seen))
        assert over == slow.act(policy(seen))


def test_shorts_and_leverage_go_through_the_environment() -> None:
    market = make_market(30, 3)
    assert isinstance(make_desk(market, EnvSettings(short=True)), EnvDesk)
    assert isinstance(make_desk(market, EnvSettings(maintenance_margin=0.2)), EnvDesk)


def test_ruin_in_both() -> None:
    for interval in (1, 7):
        chosen = EnvSettings(decision_interval=interval, cost_bps=20, min_commission_usd=1)
        results = [
            simulate(lambda obs: torch.full((1, 2), 0.5), crashing_market(), chosen, exact=exact)
            for exact in (False, True)
        ]
        assert results[0].ruined
        assert (results[0].equity == results[1].equity).all()
        assert (results[0].shares == results[1].shares).all()


def test_waiting_longer_than_the_interval_still_sees_ruin_and_endings() -> None:
    market = crashing_market()

    def all_in(desk: Any) -> torch.Tensor:
        return torch.full((1, 2), 0.5)

    result = simulate_rule(all_in, market, EnvSettings(), name="once", due=frozenset({0}))
    assert result.ruined
    assert np.flatnonzero(np.diff(result.equity == result.equity[-1]))[0] == 19
    market = make_market(60, 5)
    once = simulate_rule(lambda desk: torch.full((1, 5), 0.2), market, EnvSettings(), name="once", due=frozenset({0}))
    forced = once.trades[once.trades["kind"] == "forced"]
    assert list(forced["symbol"]) == ["S002"]
    assert once.trade_list_profit() == pytest.approx(once.equity[-1] - once.equity[0])


@pytest.mark.gpu
def test_a_market_and_a_policy_on_the_gpu_give_the_same_backtest() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    market, chosen = make_market(120, 5, session_bars=20), EnvSettings(decision_interval=3)
    weight = torch.randn(26, 5, generator=torch.Generator().manual_seed(0))
    placed = weight.cuda()
    here = simulate(lambda obs: torch.tanh(obs @ weight[: obs.shape[1]]), market, chosen)
    there = simulate(lambda obs: torch.tanh(obs @ placed[: obs.shape[1]]), market.to("cuda"), chosen)
    exact = simulate(lambda obs: torch.tanh(obs @ placed[: obs.shape[1]]), market.to("cuda"), chosen, exact=True)
    assert there.equity == pytest.approx(here.equity, rel=1e-4)  # matrix products round differently
    assert exact.equity == pytest.approx(there.equity, rel=1e-12)
    for name, result in simulate_baselines(market.to("cuda"), chosen, every=True).items():
        assert (result.equity == simulate_baselines(market, chosen, every=True)[name].equity).all(), name
    assert random_portfolios(market.to("cuda"), chosen, seed=0, count=50).sharpe.shape == (50,)
    assert len(without_each(lambda obs: torch.tanh(obs @ placed[: obs.shape[1]]), market.to("cuda"), chosen)) == 5
