"""One thing changed at a time, each checked against a simulation of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fintrader.backtest import simulate
from fintrader.backtest.sensitivity import by_kind, delayed, sensitivity, without_each
from fintrader.envs import EnvSettings
from tests.backtest.policies import crashing_market, noisy_policy
from tests.factories import make_market


def test_rows_are_the_simulations_they_name() -> None:
    market, settings, policy = make_market(100, 4), EnvSettings(cost_bps=7), noisy_policy(4)
    groups = by_kind(sensitivity(policy, market, settings))
    assert list(groups) == ["cost_bps", "fill", "delay_bars", "start_sessions", "without"]
    costs = groups["cost_bps"]
    assert [row["setting"] for row in costs] == ["0", "1", "2", "5", "7", "10", "20", "50"]
    assert [row["setting"] for row in costs if row["chosen"]] == ["7"]
    for row in costs:
        changed = settings.model_copy(update={"cost_bps": float(row["setting"])})
        assert row["sharpe"] == simulate(policy, market, changed).metrics["sharpe"]
    assert costs[0]["cumulative_return"] > costs[-1]["cumulative_return"]
    later = simulate(policy, market.window(40, 100), settings)
    assert groups["start_sessions"][1]["cumulative_return"] == later.metrics["cumulative_return"]
    assert len(groups["start_sessions"]) == 4
    assert len(groups["without"]) == 4


@pytest.mark.parametrize("interval", [1, 7])
def test_a_stock_that_is_removed_is_never_bought(interval: int) -> None:
    market, settings, policy = make_market(100, 4), EnvSettings(decision_interval=interval), noisy_policy(4)
    rows = without_each(policy, market, settings)
    for n, row in enumerate(rows):

        def masked(obs: torch.Tensor, n: int = n) -> torch.Tensor:
            action = policy(obs).clone()
            action[:, n] = 0
            return action

        alone = simulate(masked, market, settings)
        assert row.setting == market.symbols[n]
        assert row.cumulative_return == pytest.approx(alone.metrics["cumulative_return"], rel=1e-3, abs=1e-6)


def test_removing_the_stock_that_ruins_leaves_the_others_going() -> None:
    """S000 crashes; the account without it goes on to the end, the other is closed."""
    market = crashing_market()
    calm = replace(make_market(40, 2, gaps=False))
    close = market.close.clone()
    close[:, 1] = calm.close[:, 1]
    open_ = market.open.clone()
    open_[:, 1] = calm.open[:, 1]
    market = replace(market, close=close, open=open_)
    policy_all_in = lambda obs: torch.tensor([[1.0, 0.0]]).repeat(len(obs), 1) + torch.tensor([0.0, 0.02])  # noqa: E731
    rows = without_each(policy_all_in, market, EnvSettings(cost_bps=0))
    assert rows[0].cumulative_return == pytest.approx(0, abs=0.02)
    assert rows[1].cumulative_return < -0.9


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_a_bar_of_delay_moves_every_fill_by_one_bar(interval: int) -> None:
    market = make_market(60, 3, gaps=False)
    settings = EnvSettings(decision_interval=interval, cost_bps=0)
    decisions = []

    def policy(obs: torch.Tensor) -> torch.Tensor:
        decisions.append(obs)
        return torch.full((1, 3), 0.3) if len(decisions) % 2 else torch.zeros(1, 3)

    plain = simulate(policy, market, settings)
    decisions.clear()
    late = delayed(policy, market, settings)
    assert late is not None
    expected = sorted(set(plain.trades["fill_bar"] + 1))
    assert sorted(set(late.trades["fill_bar"])) == [bar for bar in expected if bar < 60]
    assert delayed(policy, market, EnvSettings(short=True)) is None
