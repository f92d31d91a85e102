import json
import math
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from gymnasium.vector import AutoresetMode

from fintrader.agents import PPO, SAC, Budget, NetworkSettings, make_agent, train, training
from fintrader.agents.checkpoint import read_tensors
from fintrader.agents.sac import bound_log_std
from fintrader.agents.training import multiply_at
from fintrader.envs.trading import EnvSettings, TradingEnv
from fintrader.errors import CheckpointError, ConfigError, TrainingError
from tests.engines.tiny import Identity, agent_settings
from tests.factories import make_market, planted_market
from tests.quick import mostly_slow

SMALL = PPO(num_steps=8, num_minibatches=2, update_epochs=2, network=NetworkSettings(hidden=(8,)))
MARKET = planted_market(300, 3)


def market_env(seed=3):
    return TradingEnv(MARKET, EnvSettings(num_envs=8, episode_bars=20), seed=seed)


def test_an_ended_training_returns_at_once(tmp_path):
    env = Identity()
    first = train(make_agent(SMALL, env.layout), env, Budget(env_steps=300), folder=tmp_path)
    before = (tmp_path / "state.safetensors").read_bytes()
    second = train(
        make_agent(SMALL, env.layout), Identity(), Budget(env_steps=300), folder=tmp_path
    )
    assert (second.env_steps, second.updates) == (first.env_steps, first.updates) == (384, 3)
    assert second.metrics["policy_loss"] == first.metrics["policy_loss"]
    assert (tmp_path / "state.safetensors").read_bytes() == before


def test_what_is_done_with_its_progress_takes_no_second_of_the_budget(monkeypatch):
    """On a clock of the test's own: an action takes a second, and each look at where training
    stands an hour."""
    now = [0.0]
    seen = []

    def look(progress):
        now[0] += 3600.0
        seen.append(progress)

    class Slow(Identity):
        def step(self, action):
            now[0] += 1.0
            return super().step(action)

    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    env = Slow()
    result = train(make_agent(SMALL, env.layout), env, Budget(seconds=24.0), on_progress=look)
    assert (result.updates, result.seconds) == (3, 24.0)
    assert [one.fraction for one in seen] == [pytest.approx(1 / 3), pytest.approx(2 / 3), 1.0]


@pytest.mark.parametrize(
    "values", [{}, {"env_steps": 1, "seconds": 1.0}, {"env_steps": 0}, {"seconds": 0.0}]
)
def test_a_budget_is_exactly_one_positive_number(values):
    with pytest.raises(ConfigError, match=r"^Budget: (set exactly one|env_steps: |seconds: )"):
        Budget(**values)


@pytest.mark.slow
def test_slow_saves_become_rare(tmp_path, monkeypatch):
    """On a clock of the test's own, an update takes 10 ms and a save 50 ms: half a second lies
    between two saves."""
    now = [0.0]
    saves = []

    def save(self, name=""):
        saves.append(self.updates)
        now[0] += 0.05

    monkeypatch.setattr(training.TrainingRun, "save", save)
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def tick(_):
        now[0] += 0.01

    env = Identity()
    train(
        make_agent(SMALL, env.layout),
        env,
        Budget(env_steps=150 * 128),
        on_progress=tick,
        checkpoint_seconds=0.1,
    )
    assert len(saves) == 1 + 3, saves
    assert [after - before for before, after in pairwise(saves[:-1])] == pytest.approx(
        [50, 50], abs=2
    )


def test_progress_and_metrics(tmp_path):
    seen = []
    env = Identity()
    train(
        make_agent(SMALL, env.layout),
        env,
        Budget(env_steps=512),
        folder=tmp_path,
        on_progress=seen.append,
    )
    assert [progress.env_steps for progress in seen] == [128, 256, 384, 512]
    assert seen[-1].fraction == 1.0
    record = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    wanted = (
        "policy_loss value_loss kl clip_fraction explained_variance entropy grad_norm memory_mib"
        " reward_mean"
    )
    for name in [
        *wanted.split(),
        "steps_per_second",
        "steps_per_second_env",
        "steps_per_second_learning",
    ]:
        assert name in record, name
    assert record["memory_mib"] > 1


@pytest.mark.parametrize("algo", ["ppo", "a2c", "ddpg", "td3", "sac", "redq", "apg"])
def test_weights_that_run_away_stop_every_algorithm_early(algo, tmp_path):
    values = {"learning_rate": 1e38, "network": {"hidden": [8]}}
    if algo not in (
        "ppo",
        "a2c",
        "apg",
    ):  # their metrics come far apart: it is the actions that tell first
        values |= {"learning_starts": 32, "batch_size": 16}
    agent = make_agent(agent_settings(algo, values), market_env().layout, seed=5)
    with pytest.raises(
        TrainingError, match=r"no longer finite: .*learning_rate.*failed\.safetensors"
    ):
        train(agent, market_env(), Budget(env_steps=4000), folder=tmp_path)
    _, header = read_tensors(tmp_path / "failed.safetensors", "fintrader-training-1")
    assert header["env_steps"] < 1000


class Spoilt:
    """An agent whose actions are NaN from the third on, made to believe that it works on a GPU."""

    def __init__(self, agent):
        self.agent = agent
        self.acted = 0

    def __getattr__(self, name):
        return torch.device("meta") if name == "device" else getattr(self.agent, name)

    def act(self, obs):
        self.acted += 1
        action = self.agent.act(obs)
        return action if self.acted < 3 else torch.full_like(action, torch.nan)


class Forgiving(Identity):
    """Takes a NaN for 0, as the trading environment does on a GPU."""

    def step(self, action):
        return super().step(action.nan_to_num())


def test_on_a_gpu_bad_actions_are_noticed_where_metrics_are_read():
    env = Forgiving()
    agent = Spoilt(make_agent(SMALL, env.layout))
    with pytest.raises(TrainingError, match="update 1: no longer finite: actions"):
        train(agent, env, Budget(env_steps=10_000))
    assert (
        agent.acted == SMALL.num_steps
    )  # not in the step itself, which would be to wait for the device


def test_a_last_update_that_breaks_the_policy_leaves_the_last_good_state(tmp_path):
    env = Identity()
    agent = make_agent(SMALL, env.layout)

    learn = agent.update
    learned = []

    def update():
        metrics = learn()
        if metrics:
            learned.append(metrics)
        if len(learned) == 3:  # these metrics were taken before the step that went wrong
            with torch.no_grad():
                next(agent.policy.parameters()).fill_(torch.nan)
        return metrics

    agent.update = update
    with pytest.raises(TrainingError, match="update 3: no longer finite: weights"):
        train(agent, env, Budget(env_steps=3 * 128), folder=tmp_path, checkpoint_seconds=0)
    _, header = read_tensors(tmp_path / "state.safetensors", "fintrader-training-1")
    assert header["updates"] == 2


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"autoreset_mode": AutoresetMode.NEXT_STEP}, r"autoreset_mode=AutoresetMode\.SAME_STEP"),
        ({"autoreset_mode": AutoresetMode.DISABLED}, r"autoreset_mode=AutoresetMode\.SAME_STEP"),
        ({}, "layout"),
    ],
)
def test_environments_that_do_not_fit_are_refused(how, message):
    env = TradingEnv(MARKET, EnvSettings(num_envs=8, episode_bars=20), **how)
    layout = Identity().layout if message == "layout" else env.layout
    with pytest.raises(ConfigError, match=message):
        train(make_agent(SMALL, layout), env, Budget(env_steps=64))


def test_a_training_goes_on_in_its_own_market_by_its_own_rules_only(tmp_path):
    settings = EnvSettings(num_envs=8, episode_bars=20)

    def go_on(market, settings, steps=64, agent=SMALL, seed=0):
        env = TradingEnv(market, settings)
        train(
            make_agent(agent, env.layout, seed=seed), env, Budget(env_steps=steps), folder=tmp_path
        )

    go_on(MARKET, settings)
    for column in ("high", "features", "benchmark"):  # of the same shape, with another bar in it
        changed = getattr(MARKET, column).clone()
        changed[250] *= 1.001
        with pytest.raises(
            CheckpointError,
            match=r"training \(market\.content_hash: \w{40} stored, \w{40} requested\)",
        ):
            go_on(replace(MARKET, **{column: changed}), settings)
    with pytest.raises(
        CheckpointError,
        match=r"\(agent\.learning_rate: 0\.003 stored, 0\.1 requested\); .*another folder",
    ):
        go_on(MARKET, settings, agent=SMALL.model_copy(update={"learning_rate": 0.1}))
    with pytest.raises(CheckpointError, match=r"\(env\.cost_bps: \S+ stored, 5\.0 requested\)"):
        go_on(MARKET, settings.model_copy(update={"cost_bps": 5.0}))
    with pytest.raises(
        CheckpointError, match=r"env\.cost_bps: .*env\.reward: .*num_envs: 8 stored, 4 requested"
    ):
        go_on(MARKET, EnvSettings(num_envs=4, episode_bars=20, cost_bps=5, reward="profit"))
    with pytest.raises(
        CheckpointError, match=r"\(seed: 0 stored, 1 requested\); go on with its seed"
    ):
        go_on(MARKET, settings, seed=1)
    go_on(replace(MARKET), settings, steps=128)  # equal content in another object
    _, header = read_tensors(tmp_path / "state.safetensors", "fintrader-training-1")
    assert header["env_steps"] == 128


def test_a_parent_of_another_shape_is_refused():
    layout = market_env().layout
    parent = make_agent(SMALL, layout).state_dict()
    wide = make_agent(SMALL.model_copy(update={"network": NetworkSettings(hidden=(16,))}), layout)
    with pytest.raises(CheckpointError, match="shape"):
        wide.inherit(parent)
    deep = make_agent(SMALL.model_copy(update={"network": NetworkSettings(hidden=(8, 8))}), layout)
    with pytest.raises(CheckpointError, match="architecture"):
        deep.inherit(parent)
    with pytest.raises(CheckpointError, match="random state"):
        make_agent(SMALL, layout).load_state_dict(
            {k: v for k, v in parent.items() if k != "generator"}
        )


@pytest.mark.parametrize("bootstrap", [True, "running", False])
def test_an_end_counts_as_the_tasks_end_unless_a_value_follows(bootstrap):
    given = {"bootstrap": bootstrap, "network": {"hidden": [8]}}
    agent = make_agent(agent_settings("ppo", given), market_env().layout, seed=5)
    seen = []
    agent.observe, observe = lambda step: seen.append(step) or observe(step), agent.observe
    train(agent, market_env(), Budget(env_steps=8 * 64))
    ended = {
        name: sum(int(getattr(step, name).sum()) for step in seen)
        for name in ("terminated", "truncated")
    }
    assert (ended["truncated"] > 0) is (bootstrap is True)
    assert (ended["terminated"] > 0) is (bootstrap is not True)


@pytest.mark.usefixtures("frequent_reports")
@pytest.mark.parametrize("algo", mostly_slow("ppo", every=["ppo", "sac", "apg"]))
def test_step_sizes_fall_to_zero_over_the_budget(algo, tmp_path):
    given = {
        "anneal": True,
        "network": {"hidden": [8]},
    }

    def rate():
        return float(next(iter(agent.optimisers.values())).param_groups[0]["lr"])

    for steps in (8 * 16 * 4, 8 * 16 * 8):  # the longer budget goes on where its own line stands
        agent = make_agent(agent_settings(algo, given), market_env().layout, seed=5)
        first = rate()
        seen = []

        def look(progress, seen=seen):
            seen.append((rate(), 1 - progress.fraction))

        train(agent, market_env(), Budget(env_steps=steps), folder=tmp_path, on_progress=look)
        assert [found for found, _ in seen] == pytest.approx([first * left for _, left in seen])
        assert rate() == 0


@pytest.mark.parametrize("values", [{"anneal": True}, {"pipeline": True}])
def test_replay_agents_stop_within_a_step_of_their_budget(values, tmp_path):
    """130 env-steps of 8 accounts are 17 steps: no multiple of those between two reports."""
    settings = agent_settings("sac", {"network": {"hidden": [8]}, "learning_starts": 16, **values})

    def run(*shares):
        for share in shares:
            agent = make_agent(settings, market_env().layout, seed=5)
            folder = tmp_path / str(len(shares))
            found = train(agent, market_env(), Budget(env_steps=130), folder=folder, share=share)
            assert found.env_steps == 8 * math.ceil(130 * share / 8)
        return getattr(agent, "agent", agent)

    undisturbed = run(1.0)
    assert undisturbed.learned == 16  # one update a step, from the second step on
    if "anneal" in values:  # a pause takes over a pipelined agent's weights a step earlier
        paused = run(0.3, 0.77, 1.0).state_dict()
        for name, value in undisturbed.state_dict().items():
            assert torch.equal(paused[name], value), name


def test_matrix_products_have_their_precision_while_training_only():
    market = planted_market(200, 3, session_bars=20)
    for matmul in ("highest", "medium"):
        env = TradingEnv(market, num_envs=4)
        agent = make_agent(PPO(num_steps=8, matmul=matmul), env.layout, seed=0)
        seen = set()
        act = agent.act

        def watch(obs, act=act, seen=seen):
            seen.add(torch.get_float32_matmul_precision())
            return act(obs)

        agent.act = watch
        train(agent, env, Budget(env_steps=64))
        assert seen == {matmul}
        assert torch.get_float32_matmul_precision() == "highest"


def test_a_precision_stays_within_the_block_that_set_it():
    """Learners that share a process set it in threads, one after another."""
    with multiply_at("medium"):
        with multiply_at("medium"):
            pass
        assert torch.get_float32_matmul_precision() == "medium"
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize("noise", [0.001, 30.0])
def test_a_deviation_beyond_the_bounds_is_bounded(noise):
    deviation = bound_log_std(torch.zeros(()), noise).exp()
    assert math.exp(-5) < deviation < math.e
    assert deviation == pytest.approx(min(max(noise, math.exp(-5)), math.e), rel=0.01)


def test_the_first_step_is_warm_up_even_without_any():
    env = TradingEnv(make_market(60, 2), EnvSettings(), num_envs=4, seed=0)
    agent = make_agent(SAC(learning_starts=0, buffer_size=400, batch_size=8), env.layout, seed=0)
    train(agent, env, Budget(env_steps=40))
    assert agent.replay.written == 10
    assert agent.learned == 10
    statistics = agent.normaliser.state_dict()
    before = make_agent(SAC(), env.layout, seed=0).normaliser.state_dict()
    assert any(not torch.equal(statistics[name], before[name]) for name in before)
