"""A tournament of traders that share a market, from its configuration to the verdict: pods train in
games, and everything that is scored is one account alone."""

import json
from pathlib import Path

import pytest
import torch

from fintrader.agents import load_policy
from fintrader.backtesting import read_backtest, simulate
from fintrader.config import validate
from fintrader.envs.rivals import RivalsEnv
from fintrader.errors import ConfigError
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline.config import RunConfig, load_config
from fintrader.pipeline.run_stages import run
from fintrader.pipeline.wide_search import widen
from fintrader.runs import RunFolder
from fintrader.tournament.fusion.learners import CPU, build_maker
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.store import RunStore
from tests.engines.runs import TINY, Struck, fintrader, struck_when, write_config
from tests.oracles.env_account import simulate_in_environment

pytestmark = pytest.mark.usefixtures("in_this_process", "no_reports")
TRADERS = {"teams": [1, 1, 2], "cooperation": -0.5, "impact_bps_per_million_usd": 40.0}
ENV = TINY["env"] | {"traders": TRADERS, "participation": "none"}
RACE = TINY["tournament"] | {"budget": {"env_steps": 256}}


def results(path):
    """The results of all pods, without their times."""
    folder = RunFolder(path.parent / "runs" / "tiny")
    return {pod: one.reproducible for pod, one in RunStore(folder).read_results().items()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory, in_this_process, no_reports):
    """The configuration of a finished run, and the words of its command."""
    path = write_config(tmp_path_factory.mktemp("traders"), env=ENV, tournament=RACE)
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
        assert store.read_spec(pod).env["traders"] == TRADERS | {"rivals": "learner"}
        policy = load_policy(folder.pod(pod) / "policy.safetensors")
        alone = simulate_in_environment(policy, market.validation, config.trading)
        # a share may be rounded the other way where networks read one row at a time
        assert result.returns == pytest.approx(alone.daily_returns.tolist(), abs=1e-5)
        free = config.trading.model_copy(update={"traders": None})
        cheaper = simulate(policy, market.validation, free)
        assert cheaper.equity[-1] > alone.equity[-1], "its own impact is a cost"
    stored = read_backtest(folder.root / "backtest")
    assert stored.context.trading.impact_bps_per_million_usd == 40.0


@pytest.mark.slow
def test_ended_at_any_stage_the_same_call_completes_with_the_same_result(finished, tmp_path):
    path = write_config(tmp_path, env=ENV, tournament=RACE)
    for moment in ("pods/*/state.safetensors", "pods/*/result.json", "backtest/metrics.json"):
        with pytest.raises(Struck), struck_when(moment):
            run(load_config(path))
    run(load_config(path))
    assert results(path) == results(finished[0])
    checked = fintrader("verify", str(path.parent / "runs" / "tiny"), "--replay")
    assert checked.status == 0, checked.out


@pytest.mark.slow
def test_policies_of_the_leaderboard_play_the_other_teams(tmp_path):
    """Later pods meet earlier ones, which do not learn; the run can be replayed and resumed."""
    traders = TRADERS | {"teams": [1, 2, 1], "rivals": "leaderboard"}
    race = RACE | {"pods": 3, "order": "submission", "pool_size": 1}
    path = write_config(tmp_path, env=ENV | {"traders": traders}, tournament=race)
    with pytest.raises(Struck), struck_when("pods/p0002/state.safetensors"):
        run(load_config(path))
    done = fintrader("run", str(path))
    assert done.status == 0, done.err
    folder = RunFolder(tmp_path / "runs" / "tiny")
    store = RunStore(folder)
    specs = list(store.read_specs().values())
    assert specs[0].rivals == ()
    for spec in specs[1:]:
        assert len(spec.rivals) == 2, "a policy for each team but the first"
        for rival in spec.rivals:
            assert int(rival.pod[1:]) < spec.index
            assert rival.snapshot == store.read_result(rival.pod).snapshot
            assert rival.agent == store.read_spec(rival.pod).agent
    context = PodContext(folder, Path(json.loads(folder.manifest.read_text())["market"]))
    agent, env = build_maker(specs[-1], context)(0, 0, CPU)
    assert isinstance(env, RivalsEnv)
    assert env.num_envs == ENV["num_envs"] // 4
    stored = load_policy(folder.pod(specs[-1].rivals[0].pod) / "policy.safetensors")
    obs, _ = env.reset(seed=3)
    with torch.no_grad():
        assert torch.equal(env.rivals[0](obs), stored(obs))
        assert not torch.equal(env.rivals[0](obs), agent.policy(obs))
    checked = fintrader("verify", str(folder.root), "--replay")
    assert checked.status == 0, checked.out


@pytest.mark.parametrize("action", ["target", "quote"])
def test_one_agent_trains_in_games(tmp_path, action):
    env = ENV | {"action": action}
    done = fintrader("train", str(write_config(tmp_path, env=env, tournament=RACE)))
    assert done.status == 0, done.err


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"num_envs": 9}, "env.num_envs is 9; make it a multiple of the 4 traders"),
        ({"option": {"bars": 5, "volatility_bps": 100}}, "leave out option or traders"),
        ({"randomise": {"variants": 2, "delay_bars": 1}}, "leave out randomise"),
        ({"traders": {"teams": []}}, "env.traders.teams"),
        ({"traders": {"num_traders": 3}}, "env.traders.num_traders"),
        ({"traders": {"teams": [4], "rivals": "leaderboard"}}, "add one to traders.teams"),
    ],
)
def test_what_has_no_meaning_is_refused(changes, match):
    with pytest.raises(ConfigError, match=match):
        validate(RunConfig, TINY | {"env": ENV | changes}, "tiny.yaml")


def test_learners_that_would_never_learn_are_refused():
    race = TINY["tournament"] | {"replicas": 3, "fusions": 8, "budget": {"env_steps": 100_000}}
    sac = {"tournament": race, "agent": {"algo": "sac"}}
    with pytest.raises(ConfigError, match="has 4166 steps between two fusions"):
        validate(RunConfig, TINY | sac, "tiny.yaml")
    sac["agent"]["learning_starts"] = 1000
    assert validate(RunConfig, TINY | sac, "tiny.yaml").tournament.learners == 3


def test_folds_have_no_rivals_of_the_leaderboard():
    race = TINY["tournament"] | {"validation_folds": 2}
    env = ENV | {"traders": TRADERS | {"rivals": "leaderboard"}}
    with pytest.raises(ConfigError, match=r"leave out tournament\.validation_folds"):
        validate(RunConfig, TINY | {"env": env, "tournament": race}, "tiny.yaml")


def test_agents_that_follow_gradients_are_refused_before_any_pod(tmp_path):
    path = write_config(tmp_path, env=ENV)
    done = fintrader("run", str(path), "--agent.algo", "apg")
    assert done.status == 2
    assert "not of each trader's own" in done.err
    assert not list((tmp_path / "runs" / "tiny").glob("pods/*"))
    wide = widen(load_config(path))
    assert "sac" in {agent.algo for agent in wide.agents}
    assert "apg" not in {agent.algo for agent in wide.agents}
