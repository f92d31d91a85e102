from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fintrader.agents import A2C, load_policy
from fintrader.backtesting import simulate
from fintrader.envs import TradingEnv
from fintrader.files import read_json
from fintrader.results.leaderboard import read_leaderboard
from fintrader.runs import RunFolder
from fintrader.tournament import pod_training as bodies
from fintrader.tournament.run import TournamentResult
from fintrader.tournament.store import RunStore
from tests.engines.killing import dies_at
from tests.engines.races import AGENT, ENV, SETTINGS, market_file, real_race, train_pod
from tests.engines.thread_launcher import ThreadLauncher
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
        assert results[pod].score < specs[pod].stops[0].score
        assert results[pod].reason == "stopped_early"
    for one in results.values():
        first, second = one.window_scores
        mean, spread = (first + second) / 2, abs(first - second) / 2
        assert one.score == pytest.approx(mean - 0.5 * spread)


def test_a_rung_keeps_its_score_when_the_pod_is_killed_after_it(
    finished: TournamentResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = next(spec for spec in RunStore(finished.folder).specs().values() if spec.snapshot is None)
    spec = fresh.model_copy(update={"rungs": (0.5,)})
    whole, _ = train_pod(tmp_path / "whole", spec)
    monkeypatch.setattr(bodies, "evaluate", dies_at(2, bodies.evaluate))  # after the rung and all of the training
    with pytest.raises(KeyboardInterrupt):
        train_pod(tmp_path / "killed", spec)
    again, _ = train_pod(tmp_path / "killed", spec)
    assert whole.rung_scores["0.5"] != whole.score
    assert again.rung_scores == whole.rung_scores
    assert (again.score, again.snapshot) == (whole.score, whole.snapshot)
