"""A tournament in a classic environment, from its configuration to its test episodes."""

import json
import shutil
import statistics
from functools import partial
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
import yaml

from fintrader.agents import load_policy
from fintrader.config import validate
from fintrader.envs.classic import LEAST_EVALUATION_SEED, WorkerEnv
from fintrader.envs.settings import GymnasiumSettings
from fintrader.errors import ConfigError
from fintrader.pipeline.config import RunConfig, load_config
from fintrader.pipeline.run_stages import run
from fintrader.results.leaderboard_reader import read_leaderboard
from fintrader.runs import RunFolder
from fintrader.tournament.episodes import TEST_EPISODES, VALIDATION_EPISODES, draw_seeds
from fintrader.tournament.store import RunStore
from tests.engines.runs import Struck, fintrader, struck_when
from tests.pipeline.test_run import kill_when

in_this_process = pytest.mark.usefixtures("in_this_process")
ID = "tests.engines.short_pendulum:ShortPendulum-v0"
PENDULUM = {
    "seed": 3,
    "device": "cpu",
    "env": {"kind": "gymnasium", "id": ID, "num_envs": 2, "workers": "sync"},
    "agent": {"algo": "ppo", "num_steps": 32, "network": {"hidden": [8]}},
    "tournament": {
        "pods": 3,
        "pool_size": 2,
        "workers": 1,
        "order": "submission",  # the same bytes whatever finishes first
        "budget": {"env_steps": 128},
        "ensemble_size": 2,
        "fresh": 0.0,
        "founders": 1,
        "search": {"learning_rate": {"low": 3e-5, "high": 3e-3, "log": True}},
    },
}


def write(folder, **tournament):
    """`PENDULUM` as a file whose runs lie beside it, with other settings of its tournament."""
    folder.mkdir(parents=True, exist_ok=True)
    values = PENDULUM | {"runs_dir": str(folder / "runs")}
    values["tournament"] = PENDULUM["tournament"] | tournament
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def results(path):
    """Everything that a seed decides: the results of all pods, and the test episodes."""
    folder = RunFolder(path.parent / "runs" / "tiny")
    pods = {pod: one.reproducible for pod, one in RunStore(folder).read_results().items()}
    return pods, (folder.root / "evaluation" / "episodes.json").read_bytes()


@pytest.fixture(scope="module")
def finished(tmp_path_factory, in_this_process):
    """The configuration of a finished run, and the words of its command."""
    path = write(tmp_path_factory.mktemp("classic"))
    done = fintrader("run", str(path))
    assert done.status == 0, done.err
    return path, done.out


def play(policy, seed):
    """The return of one episode, played step by step in gymnasium's own environment."""
    env = gymnasium.make(ID)
    obs, _ = env.reset(seed=seed)
    total = 0.0
    over = False
    while not over:
        with torch.no_grad():
            action = policy(torch.from_numpy(obs).unsqueeze(0))[0].numpy()
        obs, reward, terminated, truncated, _ = env.step(np.float32(2.0) * action)
        total += float(reward)
        over = terminated or truncated
    return total


def test_scores_are_mean_returns_with_their_error(finished):
    folder = RunFolder(finished[0].parent / "runs" / "tiny")
    store = RunStore(folder)
    validation, test = draw_seeds(store.read_identity().data_hash)
    for row in read_leaderboard(folder.leaderboard):
        policy = load_policy(folder.pod(row.pod) / "policy.safetensors")
        returns = [play(policy, seed) for seed in validation]
        assert store.read_result(row.pod).returns == pytest.approx(returns, rel=1e-4)
        assert row.score == pytest.approx(sum(returns) / len(returns), rel=1e-4)
        error = statistics.stdev(returns) / len(returns) ** 0.5
        assert row.metrics == {"standard_error": pytest.approx(error, rel=1e-3)}
    stored = json.loads((folder.root / "evaluation" / "episodes.json").read_text())
    ensemble = load_policy(folder.ensemble / "policy.safetensors")
    assert stored["returns"]["ensemble"][:3] == pytest.approx(
        [play(ensemble, seed) for seed in test[:3]], rel=1e-4
    )
    assert len(stored["returns"]["best"]) == TEST_EPISODES


def test_words_and_pages_say_returns(finished):
    path, out = finished
    home = path.parent / "runs" / "tiny"
    page = (home / "evaluation" / "report.html").read_text()
    shown = fintrader("status", str(home))
    assert shown.status == 0, shown.err
    assert "standard_error" in shown.out
    assert "Score: return, in validation." in shown.out
    assert "ShortPendulum-v0: mean return -" in out
    assert "ShortPendulum-v0: mean return -" in page
    body = page.partition('<script type="text/plain" id="plotly">')[0].partition("<body>")[2]
    for text in (out, shown.out, body):
        assert not [word for word in ("sharpe", "usd", "bars") if word in text.lower()]
    again = fintrader("run", str(path))
    assert "ShortPendulum-v0: mean return -" in again.out
    checked = fintrader("verify", str(home))
    assert checked.status == 0, checked.out
    refused = fintrader("backtest", str(home))
    assert refused.status == 2
    assert "no market, so there is no backtest" in refused.err


def test_evaluation_never_plays_a_seed_of_training():
    seen = []

    class Spy(gymnasium.wrappers.TimeLimit):
        def reset(self, *, seed=None, options=None):
            seen.append(seed)
            return super().reset(seed=seed, options=options)

    gymnasium.register("Spied-v0", lambda: Spy(gymnasium.make("Pendulum-v1"), 5))
    try:
        env = WorkerEnv.make(GymnasiumSettings(id="Spied-v0", num_envs=64, workers="sync"), seed=1)
        env.reset()
        env.reset(seed=list(range(64)))
        assert seen[-64:] == list(range(64))
        assert max(seen[-128:-64]) < LEAST_EVALUATION_SEED
        env.close()
    finally:
        gymnasium.registry.pop("Spied-v0")
    for data_hash in ("0" * 64, "f" * 64):
        validation, test = draw_seeds(data_hash)
        assert min(*validation, *test) >= LEAST_EVALUATION_SEED
        assert len({*validation, *test}) == VALIDATION_EPISODES + TEST_EPISODES
    assert draw_seeds("0" * 64) != draw_seeds("f" * 64)


@pytest.mark.slow
@in_this_process
def test_ended_at_any_stage_the_same_call_completes_with_the_same_result(finished, tmp_path):
    path = write(tmp_path)
    moments = ("runs/tiny/environment.json", "pods/*/result.json", "evaluation/episodes.json")
    for moment in moments:
        with pytest.raises(Struck), struck_when(moment):
            run(load_config(path))
    run(load_config(path))
    assert results(path) == results(finished[0])


@pytest.mark.slow
def test_a_killed_process_is_completed_with_the_same_result(finished, tmp_path):
    path = write(tmp_path)
    assert kill_when("run", path, "runs/tiny/pods/*/result.json")
    done = fintrader("run", str(path))
    assert done.status == 0, done.err
    assert results(path)[0].keys() == results(finished[0])[0].keys()
    assert results(path)[0]["p0000"] == results(finished[0])[0]["p0000"]


@in_this_process
def test_more_pods_extend_a_finished_run_and_its_test_is_played_again(finished, tmp_path):
    shutil.copytree(finished[0].parent, tmp_path, dirs_exist_ok=True)
    path = write(tmp_path, pods=4)
    run(load_config(path))
    pods, episodes = results(path)
    assert list(pods) == ["p0000", "p0001", "p0002", "p0003"]
    assert json.loads(episodes)["trials"] == 4


@pytest.mark.slow
@in_this_process
def test_generations_of_fused_learners_publish_their_best_look(tmp_path):
    path = write(
        tmp_path,
        order="generations",
        pods=4,
        replicas=2,
        fusions=2,
        early_stopping="best_validation",
    )
    run(load_config(path))
    pods, _ = results(path)
    specs = RunStore(RunFolder(tmp_path / "runs" / "tiny")).read_specs()
    assert {spec.origin for spec in specs.values()} == {"fresh", "survivor", "exploit"}
    assert {spec.parent for spec in specs.values()} >= {None}
    assert all(one.looks == 10 for one in pods.values())
    assert all(one.score == max(one.score, *one.rung_scores.values()) for one in pods.values())


def test_settings_that_need_a_market_are_refused():
    read = partial(validate, RunConfig, where="here")
    env = {"kind": "gymnasium"}
    assert read({"env": env}).tournament.metric == "return"
    assert read({}).tournament.metric == "sharpe"
    for tournament in (
        {"metric": "sharpe"},
        {"validation_folds": 3},
        {"validation_windows": 2},
        {"ensemble_shrinkage": "james_stein"},
    ):
        with pytest.raises(ConfigError, match=f"tournament.{next(iter(tournament))} needs a mark"):
            read({"env": env, "tournament": tournament})
    with pytest.raises(ConfigError, match="from_run needs a market"):
        read({"env": env, "from_run": str(Path("runs") / "other")})


def test_what_cannot_learn_is_refused_before_a_pod_and_the_name_stays_free(tmp_path):
    path = write(tmp_path)
    for option, value, words in (
        ("--env.id", "CartPole-v1", "agents need a continuous Box"),
        ("--env.id", "Nope-v0", "doesn't exist"),
        ("--agent.algo", "apg", "needs the trading environment"),
    ):
        refused = fintrader("tournament", str(path), option, value)
        assert refused.status == 2
        assert words in refused.err
        assert not (tmp_path / "runs" / "tiny" / "pods").exists()
    assert fintrader("tournament", str(path)).status == 0
