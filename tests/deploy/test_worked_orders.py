"""Worked orders in a deployment (`env.execution`): the backtest again, to the last bit."""

import json

import numpy as np
import pytest
import torch

from fintrader.agents.policy import ActorPolicy
from fintrader.agents.settings import ActionHeadSettings, NetworkSettings
from fintrader.backtesting import simulate
from fintrader.backtesting.limits import LimitSettings
from fintrader.backtesting.shadow import shadow_backtest
from fintrader.deploy.entries import BarDecision, Halt
from fintrader.envs.observation import ObservationLayout
from fintrader.errors import DeployError
from fintrader.execution.executor import META
from tests.deploy.test_replay import EVENTFUL, SHORT, TWO_WEEKS, replay_through_kills, same
from tests.deploy.test_resting import assert_every_trade_belongs_to_an_order
from tests.engines.deployments import equities, frozen, replayed, run_live, settings
from tests.quick import slow_but

WORKED = {"decision_interval": 9, "clock": "session", "execution": {"bars": 6}}


def save_executor(path, features, bars=6):
    """An executor with weights that nobody trained."""
    layout = ObservationLayout(1, len(features) + 2, 0, resting=3)
    torch.manual_seed(2)
    policy = ActorPolicy(layout, NetworkSettings(kind="mlp"), ActionHeadSettings(kind="direct"))
    for weights in policy.parameters():
        torch.nn.init.normal_(weights, 0.0, 0.2)
    policy.save(path, {META: {"form": "limit", "bars": bars, "features": list(features)}})
    return {"policy": str(path), "bars": bars}


@pytest.mark.parametrize(
    ("data", "env", "trained"),
    slow_but(
        3,
        every=[
            (SHORT, {}, False),
            (EVENTFUL, {"participation": 0.001}, False),
            (EVENTFUL, {"fractional": True, "half_spread_bps": 2, "impact_bps": 50}, False),
            (EVENTFUL, {"half_spread_bps": 2}, True),
        ],
    ),
)
def test_a_replay_is_the_backtest(tmp_path, data, env, trained):
    chosen = settings(**data)
    env = WORKED | env
    if trained:
        env["execution"] = save_executor(tmp_path / "executor", (*chosen.features.names, "signal"))
    bundle, market = frozen(tmp_path, chosen, **env)
    journal = replayed(tmp_path, bundle, market)
    expected = simulate(bundle.policy, market, bundle.env)
    same(journal, market, expected.equity)
    assert np.ptp(expected.equity) > 100
    assert_every_trade_belongs_to_an_order(journal, expected, market)
    at_once = simulate(bundle.policy, market, bundle.env.model_copy(update={"execution": None}))
    assert (at_once.equity != expected.equity).any()


def test_limits_bind_the_replay_and_its_twin_alike(tmp_path):
    bundle, market = frozen(tmp_path, settings(**TWO_WEEKS), **WORKED)
    limits = LimitSettings(weight=0.12, order=0.02, turnover=0.3)
    journal = replayed(tmp_path, bundle, market, limits)
    expected, noted = shadow_backtest(bundle.policy, market, bundle.env, limits)
    same(journal, market, expected.equity)
    assert {"weight", "order"} & set(noted.counts)


@pytest.mark.slow
@pytest.mark.parametrize("env", [{"execution": {"bars": 9}}, {"participation": 0.001}])
def test_a_process_that_is_killed_anywhere_goes_on_to_the_same_bits(tmp_path, env):
    bundle, market = frozen(tmp_path, settings(**EVENTFUL), **WORKED | env)
    expected = simulate(bundle.policy, market, bundle.env).equity
    journal = replay_through_kills(tmp_path, bundle, market, longest=300)
    same(journal, market, expected)
    assert any(entry.body.goal for entry in journal.entries(BarDecision))


def test_the_live_loop_is_the_backtest(tmp_path):
    bundle, market = frozen(tmp_path, **WORKED)
    journal = run_live(tmp_path, bundle, market)
    found = equities(journal)
    minutes = market.minutes.numpy()
    expected = simulate(bundle.policy, market, bundle.env).equity
    known = [expected[np.searchsorted(minutes, bar)] for bar in found]
    assert list(found.values()) == known


def test_a_halted_decision_leaves_no_goal_to_go_on_with(tmp_path):
    bundle, market = frozen(tmp_path, **WORKED)
    journal = run_live(tmp_path, bundle, market, limits=LimitSettings(day_loss=1e-5))
    decided = [entry.body for entry in journal.entries(BarDecision)]
    [halt] = journal.entries(Halt)
    goals = [bool(one.goal) for one in decided[::9]]
    assert goals[0]
    assert not any(
        goal for one, goal in zip(decided[::9], goals, strict=True) if one.bar > halt.time
    )
    assert len(goals) > 5


def test_a_bundle_holds_its_executor(tmp_path):
    chosen = settings(**SHORT)
    path = tmp_path / "executor"
    env = WORKED | {"execution": save_executor(path, (*chosen.features.names, "signal"))}
    bundle, _ = frozen(tmp_path, chosen, **env)
    path.unlink()
    assert bundle.env.execution.policy == str(bundle.folder / "executor.safetensors")
    assert str(tmp_path) not in json.dumps(bundle.record.env)
    with pytest.raises(DeployError, match="train an executor on this market"):
        frozen(
            tmp_path / "other",
            chosen,
            **WORKED | {"execution": save_executor(tmp_path / "wrong", ["f0"])},
        )
