"""A tiny tournament of real PPO pods on a random market, in spawned processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load

from fintrader.agents import A2C, PPO, Budget, NetworkSettings, load_policy, make_agent
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import CheckpointError
from fintrader.files import read_json
from fintrader.results.leaderboard import canonical, read_leaderboard
from fintrader.runs import RunFolder
from fintrader.tournament import pod_training as bodies
from fintrader.tournament.launchers import ThreadLauncher
from fintrader.tournament.pod import run_pod
from fintrader.tournament.run import TournamentResult, run_tournament
from fintrader.tournament.search_space import Range
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import PodContext, PodSpec
from fintrader.tournament.store import RunStore
from tests.factories import make_market

AGENT = PPO(network=NetworkSettings(), num_steps=8, update_epochs=1, num_minibatches=1)
ENV = EnvSettings(num_envs=4)
SETTINGS = TournamentSettings(
    pods=4,
    budget=Budget(env_steps=128),
    devices=("cpu",),
    workers=2,
    order="submission",
    founders=1,
    fresh=0.0,
    ensemble_size=2,
    leaderboard_size=4,
    search={"learning_rate": Range(low=1e-4, high=1e-2, log=True)},
)


def market_file(folder: Path) -> Path:
    path = folder / "market.safetensors"
    if not path.exists():
        make_market(240, 3, session_bars=10).save(path)
    return path


def race(folder: Path, name: str, market: Path) -> TournamentResult:
    return run_tournament(SETTINGS, folder=RunFolder(folder / name), market=market, env=ENV, agent=AGENT, seed=3)


def in_this_process(folder: Path) -> ThreadLauncher:
    """For tests that need no process of their own: importing torch takes longer than they do."""
    return ThreadLauncher(RunFolder(folder / "run"), market_file(folder), bodies.train_and_evaluate, workers=1)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> TournamentResult:
    folder = tmp_path_factory.mktemp("real")
    return race(folder, "run", market_file(folder))


def test_policies_and_ensemble_trade(finished: TournamentResult) -> None:
    market = make_market(240, 3, session_bars=10).split().validation
    env = TradingEnv.evaluation(market, ENV)
    obs, _ = env.reset()
    ensemble = load_policy(finished.ensemble_policy, market=market)
    members = [load_policy(finished.folder.pod(name) / "policy.safetensors") for name in finished.members]
    expected = torch.stack([member(obs.float()) for member in members]).mean(0)
    torch.testing.assert_close(ensemble(obs.float()), expected)
    assert finished.trials == 4
    assert read_leaderboard(finished.folder.leaderboard)[0]["pod"] == finished.best


def test_same_seed_same_bytes_and_sigkill_of_the_orchestrator_changes_nothing(
    finished: TournamentResult, tmp_path: Path
) -> None:
    market = finished.folder.root.parent / "market.safetensors"
    script = (
        "import sys; from pathlib import Path; from tests.tournament.test_real_pods import race;"
        "race(Path(sys.argv[1]), 'killed', Path(sys.argv[2]))"
    )
    for number in range(5):  # on a machine that is busy a kill may come too late
        folder = tmp_path / str(number)
        command = [sys.executable, "-c", script, str(folder), str(market)]
        process = subprocess.Popen(command, cwd=Path(__file__).resolve().parents[2])
        run = RunFolder(folder / "killed")
        deadline = time.monotonic() + 100
        while not (run.pod("p0001") / "metrics.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        if not (run.pod("p0003") / "result.json").exists():
            break
    else:
        pytest.fail("never killed in the middle")
    again = race(folder, "killed", market)
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
    train = bodies.train

    def spy(agent, *rest, **named):  # type: ignore[no-untyped-def]
        began.append({name: tensor.clone() for name, tensor in agent.state_dict().items()})
        return train(agent, *rest, **named)

    monkeypatch.setattr(bodies, "train", spy)
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


def test_a_foreign_or_damaged_snapshot_is_refused(finished: TournamentResult, tmp_path: Path) -> None:
    store = RunStore(finished.folder)
    spec = next(spec for spec in store.specs().values() if spec.snapshot)
    assert spec.snapshot is not None
    run = RunFolder(tmp_path / "again")
    market = finished.folder.root.parent / "market.safetensors"
    path = RunStore(run).snapshot_path(spec.snapshot)
    path.parent.mkdir(parents=True)
    path.write_bytes(store.get(spec.snapshot)[:-1])
    with pytest.raises(CheckpointError, match="truncated or foreign"):
        run_pod(spec, PodContext(run, market))
    digest = RunStore(run).put(b"no tensors")
    with pytest.raises(CheckpointError, match="holds no tensors"):
        run_pod(spec.model_copy(update={"snapshot": digest}), PodContext(run, market))


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
    result = run_tournament(
        settings,
        folder=RunFolder(tmp_path / "run"),
        market=market_file(tmp_path),
        env=ENV,
        agent=(AGENT, A2C(num_steps=8)),
        seed=1,
        launcher=in_this_process(tmp_path),
    )
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
    market = market_file(tmp_path)

    def home(name: str) -> PodContext:
        (tmp_path / name).mkdir(exist_ok=True)
        return PodContext(RunFolder(tmp_path / name), market, folder=tmp_path / name)

    whole = bodies.train_and_evaluate(spec, home("whole"))
    evaluate, calls = bodies.evaluate, 0

    def dies(*args, **named):  # type: ignore[no-untyped-def]
        nonlocal calls
        calls += 1
        if calls == 2:  # the rung is behind it, and all of the training
            raise KeyboardInterrupt
        return evaluate(*args, **named)

    monkeypatch.setattr(bodies, "evaluate", dies)
    with pytest.raises(KeyboardInterrupt):
        bodies.train_and_evaluate(spec, home("killed"))
    again = bodies.train_and_evaluate(spec, home("killed"))
    assert whole.rung_scores["0.5"] != whole.score
    assert again.rung_scores == whole.rung_scores
    assert (again.score, again.snapshot) == (whole.score, whole.snapshot)


def test_budgets_in_seconds_end_in_time(tmp_path: Path) -> None:
    settings = SETTINGS.model_copy(update={"pods": 2, "budget": Budget(seconds=0.5)})
    result = run_tournament(
        settings,
        folder=RunFolder(tmp_path / "run"),
        market=market_file(tmp_path),
        env=ENV,
        agent=AGENT,
        seed=1,
        launcher=in_this_process(tmp_path),
    )
    for one in RunStore(result.folder).results().values():
        assert one.env_steps > 0
        assert 0.4 < one.seconds < 30


def test_the_evaluator_agrees_with_the_backtest(finished: TournamentResult) -> None:
    from fintrader.backtesting import simulate

    result = RunStore(finished.folder).read_result(finished.best)
    market = make_market(240, 3, session_bars=10).split().validation
    policy = load_policy(finished.best_policy)
    backtest = simulate(policy, market, ENV)
    assert result.score == backtest.metrics["sharpe"]
    assert result.returns == tuple(backtest.daily_returns.tolist())
    assert read_json(finished.folder.ensemble / "ensemble.json")["members"] == list(finished.members)
