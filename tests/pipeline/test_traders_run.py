"""A tournament of traders that share a market, from its configuration to the verdict: pods train in
games, and everything that is scored is one account alone."""

import json
from pathlib import Path

import pytest

from fintrader.agents import load_policy
from fintrader.backtesting import read_backtest, simulate
from fintrader.config import validate
from fintrader.errors import ConfigError
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline.config import RunConfig, load_config
from fintrader.pipeline.run_stages import run
from fintrader.pipeline.wide_search import widen
from fintrader.runs import RunFolder
from fintrader.tournament.store import RunStore
from tests.engines.runs import TINY, Struck, fintrader, struck_when, write_config
from tests.oracles.env_account import simulate_in_environment

pytestmark = pytest.mark.usefixtures("in_this_process")
TRADERS = {"teams": [1, 1, 2], "cooperation": -0.5, "impact_bps_per_million_usd": 40.0}
ENV = TINY["env"] | {"traders": TRADERS, "participation": "none"}


def results(path):
    """The results of all pods, without their times."""
    folder = RunFolder(path.parent / "runs" / "tiny")
    return {pod: one.reproducible for pod, one in RunStore(folder).read_results().items()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, in_this_process):
    """The configuration of a finished run, and the words of its command."""
    path = write_config(tmp_path_factory.mktemp("traders"), env=ENV)
    done = fintrader("run", str(path))
    assert done.status == 0, done.err
    return path, done.out


def test_pods_train_in_games_and_are_scored_alone(finished):
    path, out = finished
    config = load_config(path)
    folder = RunFolder(path.parent / "runs" / "tiny")
    assert json.loads(folder.manifest.read_text())["engine"] == "torch (traders share the price)"
    assert "40 bps impact per million USD of an order" in out
    market = MarketTensors.load(Path(json.loads(folder.manifest.read_text())["market"])).split()
    store = RunStore(folder)
    for pod, result in store.read_results().items():
        assert store.read_spec(pod).env["traders"] == TRADERS
        policy = load_policy(folder.pod(pod) / "policy.safetensors")
        alone = simulate_in_environment(policy, market.validation, config.trading)
        assert result.returns == pytest.approx(alone.daily_returns.tolist(), abs=1e-9)
        free = config.trading.model_copy(update={"traders": None})
        cheaper = simulate(policy, market.validation, free)
        assert cheaper.equity[-1] > alone.equity[-1], "its own impact is a cost"
    stored = read_backtest(folder.root / "backtest")
    assert stored.context.trading.impact_bps_per_million_usd == 40.0


def test_ended_at_any_stage_the_same_call_completes_with_the_same_result(finished, tmp_path):
    path = write_config(tmp_path, env=ENV)
    for moment in ("pods/*/state.safetensors", "pods/*/result.json", "backtest/metrics.json"):
        with pytest.raises(Struck), struck_when(moment):
            run(load_config(path))
    run(load_config(path))
    assert results(path) == results(finished[0])
    checked = fintrader("verify", str(path.parent / "runs" / "tiny"), "--replay")
    assert checked.status == 0, checked.out


def test_one_agent_trains_in_games(tmp_path):
    done = fintrader("train", str(write_config(tmp_path, env=ENV)))
    assert done.status == 0, done.err


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_envs": 9}, "env.num_envs is 9; make it a multiple of the 4 traders"),
        ({"action": "limit"}, "no order can rest"),
        ({"option": {"bars": 5, "volatility_bps": 100}}, "leave out option or traders"),
        ({"randomise": {"variants": 2, "delay_bars": 1}}, "leave it out"),
        ({"traders": {"teams": []}}, "env.traders.teams"),
        ({"traders": {"num_traders": 3}}, "env.traders.num_traders"),
    ],
)
def test_what_has_no_meaning_is_refused(changes, match):
    with pytest.raises(ConfigError, match=match):
        validate(RunConfig, TINY | {"env": ENV | changes}, "tiny.yaml")


def test_agents_that_follow_gradients_are_refused_before_any_pod(tmp_path):
    path = write_config(tmp_path, env=ENV)
    done = fintrader("run", str(path), "--agent.algo", "apg")
    assert done.status == 2
    assert "each one's own" in done.err
    assert not list((tmp_path / "runs" / "tiny").glob("pods/*"))
    wide = widen(load_config(path))
    assert "sac" in {agent.algo for agent in wide.agents}
    assert "apg" not in {agent.algo for agent in wide.agents}
