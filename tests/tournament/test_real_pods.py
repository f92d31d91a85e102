"""A tiny tournament of real PPO pods on a random market, in spawned processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from fintrader.agents import A2C, load_policy, make_agent
from fintrader.backtesting import simulate
from fintrader.envs import TradingEnv
from fintrader.files import read_json
from fintrader.results.leaderboard import canonical, read_leaderboard
from fintrader.runs import RunFolder
from fintrader.tournament import pod_training as bodies
from fintrader.tournament.fusion import learners
from fintrader.tournament.pod import run_pod
from fintrader.tournament.run import TournamentResult
from fintrader.tournament.spec import PodContext, PodSpec
from fintrader.tournament.store import RunStore
from tests.engines.races import AGENT, ENV, SETTINGS, market_file, real_race, train_pod
from tests.engines.thread_launcher import ThreadLauncher
from tests.engines.waiting import until
from tests.factories import make_market


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> TournamentResult:
    return real_race(RunFolder(tmp_path_factory.mktemp("real") / "run"))


def test_scores_are_those_of_the_backtest_and_the_ensemble_is_its_members_mean(finished: TournamentResult) -> None:
    market = make_market(240, 3, session_bars=10).split().validation
    result = RunStore(finished.folder).read_result(finished.best)
    backtest = simulate(load_policy(finished.best_policy), market, ENV)
    assert result.score == backtest.metrics["sharpe"]
    assert result.returns == tuple(backtest.daily_returns.tolist())
    env = TradingEnv.evaluation(market, ENV)
    obs, _ = env.reset()
    ensemble = load_policy(finished.ensemble_policy, market=market)
    members = [load_policy(finished.folder.pod(name) / "policy.safetensors") for name in finished.members]
    expected = torch.stack([member(obs.float()) for member in members]).mean(0)
    torch.testing.assert_close(ensemble(obs.float()), expected)
    assert read_json(finished.folder.ensemble / "ensemble.json")["members"] == list(finished.members)
    assert finished.trials == 4
    assert read_leaderboard(finished.folder.leaderboard)[0]["pod"] == finished.best


@pytest.mark.slow
def test_same_seed_same_bytes_and_sigkill_of_the_orchestrator_changes_nothing(
    finished: TournamentResult, tmp_path: Path
) -> None:
    run = RunFolder(tmp_path / "killed")
    script = (
        "import sys; from pathlib import Path; from fintrader.runs import RunFolder;"
        "from tests.engines.races import real_race; real_race(RunFolder(Path(sys.argv[1])))"
    )
    barrier = run.pod("p0003") / "metrics.jsonl"
    barrier.parent.mkdir(parents=True)
    os.mkfifo(barrier)  # the pod reads it as it begins, and gets no further
    process = subprocess.Popen([sys.executable, "-c", script, str(run.root)], cwd=Path(__file__).resolve().parents[2])
    until(lambda: (run.pod("p0001") / "result.json").exists(), "the second result")
    process.kill()
    process.wait()
    barrier.unlink()
    assert not (run.pod("p0003") / "result.json").exists()
    again = real_race(run)
    assert canonical(again.folder.leaderboard) == canonical(finished.folder.leaderboard)
    assert again.ensemble_policy.read_bytes() == finished.ensemble_policy.read_bytes()


def test_networks_and_optimiser_move_from_parent_to_child(
    finished: TournamentResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child's state at the moment training begins is the parent's, and a fresh agent's is not."""
    store = RunStore(finished.folder)
    spec = next(spec for spec in store.specs().values() if spec.origin == "exploit")
    assert spec.snapshot is not None
    parent = load(store.get(spec.snapshot))
    began: list[dict[str, torch.Tensor]] = []
    train = learners.train

    def spy(agent, *rest, **named):  # type: ignore[no-untyped-def]
        began.append({name: tensor.clone() for name, tensor in agent.state_dict().items()})
        return train(agent, *rest, **named)

    monkeypatch.setattr(learners, "train", spy)
    run = RunFolder(tmp_path / "again")
    RunStore(run).put(store.get(spec.snapshot))
    market = finished.folder.root.parent / "market.safetensors"
    result = run_pod(spec, PodContext(run, market))
    env = TradingEnv(make_market(240, 3, session_bars=10).split().train, ENV)
    fresh = make_agent(AGENT, env.layout, seed=spec.seed).state_dict()
    inherited = [name for name in parent if name.startswith(("modules.policy", "modules.critic", "optimisers."))]
    assert any(name.startswith("optimisers.") for name in inherited)
    for name in inherited:
        torch.testing.assert_close(began[0][name], parent[name], rtol=0, atol=0)
    changed = [name for name in inherited if name not in fresh or not torch.equal(fresh[name], parent[name])]
    assert any(name.startswith("optimisers.") for name in changed)
    assert any(name.startswith("modules.policy") for name in changed)
    assert result.reproducible() == store.read_result(spec.pod).reproducible()
    assert PodSpec.from_json(store.spec_path(spec.pod)).agent["learning_rate"] != AGENT.learning_rate


def test_several_algorithms_race_and_the_hopeless_stop_early(tmp_path: Path) -> None:
    """Two algorithms, halving, parts of the validation window with a penalty, seconds on the clock."""
    settings = SETTINGS.model_copy(
        update={
            "pods": 8,
            "founders": 2,
            "fresh": 1.0,
            "halving": 0.9,
            "halving_rungs": (0.5,),
            "validation_windows": 2,
            "spread_penalty": 0.5,
            "order": "arrival",
        }
    )
    run = RunFolder(tmp_path / "run")
    threads = ThreadLauncher(run, market_file(tmp_path), bodies.train_and_evaluate, workers=1)
    result = real_race(run, settings, agent=(AGENT, A2C(num_steps=8)), seed=1, launcher=threads)
    store = RunStore(result.folder)
    specs, results = store.specs(), store.results()
    assert {spec.agent["algo"] for spec in specs.values()} == {"ppo", "a2c"}
    stopped = [pod for pod, one in results.items() if one.status == "stopped"]
    assert stopped
    for pod in stopped:
        assert results[pod].env_steps < 128
        assert results[pod].score is not None
        assert results[pod].score < specs[pod].stops[0].score
        assert results[pod].reason == "stopped_early"
    for one in results.values():
        first, second = one.window_scores
        assert first is not None
        assert second is not None
        mean, spread = (first + second) / 2, abs(first - second) / 2
        assert one.score == pytest.approx(mean - 0.5 * spread)


def test_a_rung_keeps_its_score_when_the_pod_is_killed_after_it(
    finished: TournamentResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = next(spec for spec in RunStore(finished.folder).specs().values() if spec.snapshot is None)
    spec = fresh.model_copy(update={"rungs": (0.5,)})
    whole, _ = train_pod(tmp_path / "whole", spec)
    evaluate, calls = bodies.evaluate, 0

    def dies(*args, **named):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls == 2:  # the rung is behind it, and all of the training
            raise KeyboardInterrupt
        return evaluate(*args, **named)

    monkeypatch.setattr(bodies, "evaluate", dies)
    with pytest.raises(KeyboardInterrupt):
        train_pod(tmp_path / "killed", spec)
    again, _ = train_pod(tmp_path / "killed", spec)
    assert whole.rung_scores["0.5"] != whole.score
    assert again.rung_scores == whole.rung_scores
    assert (again.score, again.snapshot) == (whole.score, whole.snapshot)
