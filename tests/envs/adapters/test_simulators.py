"""Simulators of the Isaac contracts, trained by our own agents; Brax where it is installed."""

from types import SimpleNamespace

import pytest
import torch

import fintrader
from fintrader.agents import PPO, SAC
from fintrader.envs.adapters.simulators import SimulatorEnv
from fintrader.errors import EnvError
from tests.quick import slow_but

COPIES = 32
LENGTH = 20


class Tracker:
    """Tensors in and out, resets inside the step, no state: the action is to equal the first
    observation. Time-outs after LENGTH steps, all copies at different ones."""

    num_envs = COPIES
    device = "cpu"
    num_actions = 1
    kind = "lab"

    def __init__(self, kind="lab", **given):
        self.kind = kind
        self.generator = torch.Generator().manual_seed(0)
        self.clock = torch.arange(COPIES) % LENGTH
        self.obs = torch.zeros(COPIES, 2)
        self.given = given

    def draw(self):
        # Written in place, as simulators do.
        self.obs[:, 0] = 2 * torch.rand(COPIES, generator=self.generator) - 1
        self.obs[:, 1] = self.clock / LENGTH

    def show(self):
        return {"policy" if self.kind == "lab" else "obs": self.obs}

    def reset(self):
        self.draw()
        return (self.show(), {}) if self.kind == "lab" else self.show()

    def step(self, actions):
        assert actions.shape == (COPIES, 1)
        reward = 1 - (actions[:, 0] - self.obs[:, 0]) ** 2
        self.clock += 1
        ended = self.clock >= LENGTH
        self.clock[ended] = 0
        self.draw()
        if self.kind == "lab":
            return self.show(), reward, torch.zeros_like(ended), ended, self.given
        return self.show(), reward, ended.long(), {"time_outs": ended}


@pytest.mark.parametrize("kind", ["lab", "gym"])
def test_both_contracts_are_read(kind):
    env = SimulatorEnv(Tracker(kind))
    assert (env.num_envs, env.layout.width, env.layout.num_actions) == (COPIES, 2, 1)
    obs, _ = env.reset(seed=3)
    before = obs.clone()
    ends = 0
    for _ in range(LENGTH):
        after, reward, terminated, truncated, info = env.step(before[:, :1])
        torch.testing.assert_close(reward, torch.ones(COPIES))
        assert not terminated.any()
        assert truncated.dtype == torch.bool
        # The episode's last known observation, not the first one of the next episode.
        torch.testing.assert_close(info["final_obs"], before)
        assert (after[truncated, 1] == 0).all()
        assert (info["final_obs"][truncated, 1] == (LENGTH - 1) / LENGTH).all()
        ends += int(truncated.sum())
        before = after.clone()
    assert ends == COPIES


def test_a_simulators_own_final_observations_are_used():
    final = torch.full((COPIES, 2), 7.0)
    env = SimulatorEnv(Tracker(final_obs={"policy": final}))
    env.reset()
    assert torch.equal(env.step(torch.zeros(COPIES, 1))[4]["final_obs"], final)


def test_actions_are_scaled_to_the_simulators():
    env = SimulatorEnv(Tracker(), action_scale=0.5)
    obs, _ = env.reset()
    reward = env.step(2 * obs[:, :1])[1]
    torch.testing.assert_close(reward, torch.ones(COPIES))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "steps"),
    slow_but(
        1,
        every=[
            (PPO(num_steps=16, gamma=0.5), 20_000),
            (SAC(gamma=0.5, learning_starts=512), 6_000),
        ],
    ),
)
def test_our_agents_learn_there(agent, steps, tmp_path):
    env = SimulatorEnv(Tracker())
    result = fintrader.train(agent, env, env_steps=steps, seed=1, folder=tmp_path)
    obs, _ = env.reset()
    reward = env.step(result.policy(obs))[1]
    assert reward.mean() > 0.9
    again = fintrader.train(
        agent, SimulatorEnv(Tracker()), env_steps=steps, seed=1, folder=tmp_path
    )
    assert again.env_steps == result.env_steps


@pytest.mark.slow
def test_a_constant_reward_is_worth_its_geometric_sum():
    """A learner that took time-outs for deaths would learn about a third of it."""

    class Constant(Tracker):
        def step(self, actions):
            shown, reward, *rest = super().step(actions)
            return shown, torch.ones_like(reward), *rest

    env = SimulatorEnv(Constant())
    agent = fintrader.agents.make_agent(
        PPO(num_steps=16, gamma=0.95, normalise=("observations",)), env.layout, seed=0
    )
    fintrader.train(agent, env, env_steps=60_000)
    values = agent.critic(agent.normalise(env.reset()[0]))
    assert values.mean().item() == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"show": lambda: {"state": torch.zeros(COPIES, 2)}}, "neither policy nor obs"),
        ({"show": lambda: torch.zeros(3, 2)}, "32 rows"),
        ({"num_actions": None}, "neither action_space"),
    ],
)
def test_another_contract_is_refused(change, words):
    simulator = Tracker()
    vars(simulator).update(change)
    with pytest.raises(EnvError, match=words):
        SimulatorEnv(simulator)


class BraxSimulator:
    """Brax behind Isaac Lab's contract, its arrays through DLPack."""

    device = "cpu"

    def __init__(self, name, copies):
        jax = pytest.importorskip("jax")
        envs = pytest.importorskip("brax.envs")
        self.num_envs = copies
        made = envs.create(name, batch_size=copies, episode_length=100, auto_reset=True)
        self.single_action_space = SimpleNamespace(shape=(made.action_size,))
        self.jax = jax
        self._reset, self._step = jax.jit(made.reset), jax.jit(made.step)

    def read(self, array):
        return torch.from_dlpack(array)

    def reset(self, seed=0):
        self.state = self._reset(self.jax.random.PRNGKey(seed))
        return {"policy": self.read(self.state.obs)}, {}

    def step(self, actions):
        self.state = self._step(self.state, self.jax.numpy.from_dlpack(actions.contiguous()))
        done = self.read(self.state.done).bool()
        truncated = self.read(self.state.info["truncation"]).bool()
        shown = {"policy": self.read(self.state.obs)}
        return shown, self.read(self.state.reward), done & ~truncated, truncated, {}


@pytest.mark.parametrize(
    ("agent", "steps"),
    [(PPO(num_steps=32, gamma=0.97), 120_000), (SAC(gamma=0.97, learning_starts=2_000), 100_000)],
)
def test_our_agents_balance_a_pendulum_in_brax(agent, steps):
    env = SimulatorEnv(BraxSimulator("inverted_pendulum", 64))

    def measure_length(policy):
        """Mean length of the copies' first episodes, up to 100 steps."""
        obs, _ = env.reset(seed=5)
        alive, steps = torch.ones(64, dtype=torch.bool), torch.zeros(64)
        for _ in range(99):
            steps += alive
            obs, _, terminated, _, _ = env.step(policy(obs))
            alive &= ~terminated
        return steps.mean().item()

    policy = fintrader.train(agent, env, env_steps=steps, seed=0).policy
    idle = measure_length(lambda obs: torch.zeros(64, 1))
    assert measure_length(policy) > max(90, 2 * idle)
