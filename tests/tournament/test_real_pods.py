from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load

from fintrader.agents import A2C, PPO, SAC, Budget, NetworkSettings, load_policy
from fintrader.agents.on_policy import OnPolicyAgent
from fintrader.agents.parallel import BatchedLearners, PipelinedAgent
from fintrader.backtesting import simulate
from fintrader.backtesting.baselines import simulate_benchmark_portfolio
from fintrader.envs import TradingEnv
from fintrader.files import read_json, read_jsonl
from fintrader.results.leaderboard_reader import read_leaderboard
from fintrader.results.run import Run as open_run
from fintrader.runs import RunFolder
from fintrader.tournament import pod_training as bodies
from fintrader.tournament.evaluator import score
from fintrader.tournament.fusion import learners
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard
from fintrader.tournament.status import read_status
from fintrader.tournament.store import RunStore
from fintrader.tournament.terminal import present_leaderboard
from fintrader.tournament.updater import submit
from tests.engines.killing import Killed, dies_at
from tests.engines.races import AGENT, ENV, SETTINGS, first_spec, market_file, real_race, train_pod
from tests.engines.thread_launcher import ThreadLauncher
from tests.factories import make_market
from tests.quick import slow_but


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run = RunFolder(tmp_path_factory.mktemp("real") / "run")
    return real_race(run, SETTINGS.model_copy(update={"workers": 1}))


def test_scores_are_those_of_the_backtest_and_the_ensemble_is_its_members_mean(finished):
    market = make_market(240, 3, session_bars=10).split().validation
    result = RunStore(finished.folder).read_result(finished.best)
    backtest = simulate(
        load_policy(finished.folder.pod(finished.best) / "policy.safetensors"), market, ENV
    )
    assert result.score == backtest.metrics["sharpe"]
    assert result.returns == tuple(backtest.daily_returns.tolist())
    env = TradingEnv.evaluation(market, ENV)
    obs, _ = env.reset()
    ensemble = load_policy(finished.ensemble_policy, market=market)
    members = [
        load_policy(finished.folder.pod(name) / "policy.safetensors") for name in finished.members
    ]
    expected = torch.stack([member(obs.float()) for member in members]).mean(0)
    torch.testing.assert_close(ensemble(obs.float()), expected)
    assert read_json(finished.folder.ensemble / "ensemble.json")["members"] == list(
        finished.members
    )
    assert finished.trials == 4
    assert read_leaderboard(finished.folder.leaderboard)[0].pod == finished.best


def test_every_pod_leaves_its_validation_curve_which_ends_with_its_score(finished):
    for name, result in RunStore(finished.folder).read_results().items():
        rows = read_jsonl(finished.folder.pod(name) / "validation.jsonl")
        assert rows[-1] == {
            "share": 1.0,
            "fold": None,
            "env_steps": result.env_steps,
            "score": result.score,
            "return": result.metrics["cumulative_return"],
        }
        assert len(rows) > 1, "and it was looked at while it trained"


def test_looking_at_the_curve_changes_nothing(finished, tmp_path, monkeypatch):
    spec = next(
        spec for spec in RunStore(finished.folder).read_specs().values() if spec.snapshot is None
    )
    monkeypatch.setattr(bodies.ValidationCurve, "TIME_SHARE", 1.0)
    looked, _ = train_pod(tmp_path / "looked", spec)
    monkeypatch.setattr(bodies.ValidationCurve, "offer", lambda *_: None)
    blind, _ = train_pod(tmp_path / "blind", spec)
    assert (looked.snapshot, looked.score, looked.returns) == (
        blind.snapshot,
        blind.score,
        blind.returns,
    )


def test_the_benchmark_has_a_row_and_no_rank(finished):
    """It is what env.benchmark says, at costs; nobody's parent, no member, no trial, and no pod."""
    market = make_market(240, 3, session_bars=10).split().validation
    results = RunStore(finished.folder).read_results().values()
    portfolio = simulate_benchmark_portfolio(market, ENV).daily_returns
    for result in results:
        assert result.benchmark_score == score(portfolio, "sharpe", portfolio)
        assert result.active_returns == pytest.approx(np.array(result.returns) - portfolio)
    pods = read_leaderboard(finished.folder.leaderboard)
    rows = open_run(finished.folder.root).leaderboard
    own = rows[rows["pod"] == "benchmark"].iloc[0]
    assert own["score"] == score(portfolio, "sharpe", portfolio)
    assert own["rank"] is pd.NA
    assert rows["score"].is_monotonic_decreasing
    assert [row.pod for row in pods] == [pod for pod in rows["pod"] if pod != "benchmark"]
    assert list(rows["rank"].dropna()) == list(range(1, len(pods) + 1))
    report = read_status(finished.folder)
    assert report.trials == len(pods) == 4
    assert [row.pod for row in report.leaderboard] == list(rows["pod"])
    board = Leaderboard(4)
    specs = RunStore(finished.folder).read_specs()
    for result in results:
        submit(board, FinishedPod(specs[result.pod], result))
    lines = [line.split() for line in str(present_leaderboard(board, "sharpe")).splitlines()[2:]]
    assert [line[0] if line[0] == "benchmark" else line[1] for line in lines] == list(rows["pod"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"validation_windows": 2}, {"validation_folds": 2}, {"replicas": 2, "fusions": 2}]
)
def test_several_algorithms_race_by_halving(tmp_path, how):
    """Two algorithms, rungs, and parts of the validation window, blocks that a learner does not
    see, or several learners to a pod."""
    settings = SETTINGS.model_copy(update={"pods": 8, "order": "halving", **how})
    run = RunFolder(tmp_path / "run")
    threads = ThreadLauncher(run, market_file(tmp_path), bodies.train_and_evaluate, workers=1)
    result = real_race(run, settings, agents=(AGENT, A2C(num_steps=8)), seed=1, launcher=threads)
    store = RunStore(result.folder)
    specs = store.read_specs()
    results = store.read_results()
    assert {spec.agent["algo"] for spec in specs.values()} == {"ppo", "a2c"}
    *_, last = specs.values()
    board = [row.pod for row in read_leaderboard(run.leaderboard)]
    assert board[0] == last.pod  # whatever its score, which is of the longest training
    assert last.parent == max(
        (pod for pod, spec in specs.items() if spec.rung == last.rung - 1),
        key=lambda pod: results[pod].score,
    )
    for one in results.values():
        if "validation_windows" not in how:
            assert one.score is not None
            continue
        first, second = one.window_scores
        # Of two numbers, mean and standard error are half their sum and half their distance.
        assert one.score == pytest.approx(min(first, second))
        assert one.metrics["standard_error"] == pytest.approx(abs(first - second) / 2)


def test_a_look_keeps_its_score_when_the_pod_is_killed_after_it(finished, tmp_path, monkeypatch):
    fresh = next(
        spec for spec in RunStore(finished.folder).read_specs().values() if spec.snapshot is None
    )
    spec = replace(fresh, looks=(0.5,))
    whole, _ = train_pod(tmp_path / "whole", spec)
    monkeypatch.setattr(
        bodies, "evaluate", dies_at(2, bodies.evaluate)
    )  # after the look and all of the training
    with pytest.raises(KeyboardInterrupt):
        train_pod(tmp_path / "killed", spec)
    again, _ = train_pod(tmp_path / "killed", spec)
    assert again.rung_scores == whole.rung_scores
    assert (again.score, again.snapshot) == (whole.score, whole.snapshot)


def test_the_best_checkpoint_is_published_and_every_look_is_a_trial(tmp_path, monkeypatch):
    """The validation window is looked at ten times; a kill and a look after it change nothing."""
    spec = first_spec(budget=Budget(env_steps=640), early_stopping="best_validation")
    seen = {}
    evaluate = bodies.evaluate

    def spy(parts, *rest, **named):
        found = evaluate(parts, *rest, **named)
        seen[found.score] = {
            name: tensor.clone() for name, tensor in parts[0][0].state_dict().items()
        }
        return found

    monkeypatch.setattr(bodies, "evaluate", spy)
    whole, context = train_pod(tmp_path / "whole", spec)
    assert len(seen) == whole.looks == 10
    assert whole.score == max(seen)
    assert whole.chosen_at < 1.0  # else this would show nothing
    assert whole.rung_scores[str(whole.chosen_at)] == whole.score
    assert whole.env_steps == 640
    stored = load_policy(context.folder / "policy.safetensors")
    assert all(
        torch.equal(tensor, seen[whole.score][name]) for name, tensor in stored.state_dict().items()
    )
    state = load(RunStore(context.run).get(str(whole.snapshot)))
    assert all(
        torch.equal(tensor, state[f"modules.policy.{name}"])
        for name, tensor in stored.state_dict().items()
    )
    assert any(name.startswith("optimisers.") for name in state)
    backtest = simulate(stored, make_market(240, 3, session_bars=10).split().validation, ENV)
    assert backtest.metrics["sharpe"] == whole.score
    monkeypatch.setattr(bodies, "evaluate", dies_at(8, evaluate))
    with pytest.raises(KeyboardInterrupt):
        train_pod(tmp_path / "killed", spec)
    again, _ = train_pod(tmp_path / "killed", spec)
    assert replace(again, seconds=whole.seconds) == whole
    board = Leaderboard(4)
    submit(board, FinishedPod(spec, again))
    assert board.trials == 10


NETWORK = NetworkSettings(hidden=(8,))
LEARNERS = PPO(network=NETWORK, num_steps=8, num_minibatches=1, learners=2)
PIPELINE = SAC(
    network=NETWORK,
    learning_starts=32,
    batch_size=16,
    buffer_size=1000,
    pipeline=True,
)


@pytest.mark.usefixtures("frequent_reports")
@pytest.mark.parametrize(
    "agent", slow_but(0, every=[AGENT, LEARNERS, PIPELINE]), ids=["plain", "learners", "pipeline"]
)
def test_a_killed_pod_resumes_bit_exactly_and_its_child_goes_on(agent, tmp_path, monkeypatch):
    train = learners.train
    trained = []

    def spy(learner, *rest, **named):
        trained.append((learner, learner.state_dict()))
        return train(learner, *rest, **{**named, "checkpoint_seconds": 0.0})

    monkeypatch.setattr(learners, "train", spy)

    def kill(share, env_steps, note):
        if share >= 0.5:
            raise Killed

    spec = first_spec(agent, budget=Budget(env_steps=256))
    whole, context = train_pod(tmp_path / "whole", spec)
    assert whole.env_steps == 256
    assert whole.score is not None
    with pytest.raises(Killed):
        train_pod(tmp_path / "killed", spec, report=kill)
    again, _ = train_pod(tmp_path / "killed", spec)
    assert again.snapshot == whole.snapshot
    assert (again.score, again.updates) == (whole.score, whole.updates)
    # it was this kind of agent, and what it stored is one policy
    made = trained[0][0]
    assert isinstance(made, PipelinedAgent) == (agent is PIPELINE)
    if isinstance(made, OnPolicyAgent):
        assert (made.make_learners is BatchedLearners) == (agent is LEARNERS)
    stored = RunStore(context.run).get(str(whole.snapshot))
    state = load(stored)
    policy = load_policy(context.folder / "policy.safetensors").state_dict()
    assert all(
        torch.equal(tensor, state[f"modules.policy.{name}"]) for name, tensor in policy.items()
    )
    # a child begins with its parent's networks and moments
    run_folder = tmp_path / "child"
    digest = RunStore(RunFolder(run_folder)).put(stored)
    train_pod(
        run_folder,
        replace(spec, pod="p0001", seed=9, parent=spec.pod, snapshot=digest),
    )
    began = trained[-1][1]
    inherited = [name for name in state if name.startswith(("modules.", "optimisers."))]
    assert any(name.startswith("optimisers.") for name in inherited)
    assert all(torch.equal(began[name], state[name]) for name in inherited)
