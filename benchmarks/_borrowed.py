"""Training loops of other libraries, each on `TradingEnv` and on an environment of the library's.

`borrowed.py` calls `measure` for one library, in the library's own environment. A loop counts the
steps of all accounts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode

import fintrader
from benchmarks._bench import Run, Values, alternate
from benchmarks._libraries import LIBRARIES, PENDULUM
from fintrader import EnvSettings, TradingEnv
from fintrader.envs.adapters.gymnasium import NumpyVectorEnv
from fintrader.envs.adapters.isaac import IsaacVecEnv, RslRlEnv
from fintrader.market.tensors import MarketTensors

ACCOUNTS = 16
ROLLOUT = 32
STEPS = ACCOUNTS * ROLLOUT
"""Of one rollout."""
EPISODE = 200
"""Steps of an episode, in both environments."""
HIDDEN = [64, 64]
BATCH = 128
SETTINGS = EnvSettings(num_envs=ACCOUNTS, episode_bars=EPISODE)


@lru_cache(maxsize=1)
def load_training_market() -> MarketTensors:
    return fintrader.load_market("quickstart").split().train


def make_env(mode: AutoresetMode = AutoresetMode.SAME_STEP) -> TradingEnv:
    return TradingEnv(load_training_market(), SETTINGS, seed=0, autoreset_mode=mode)


def count_steps(learn: Callable[[int], Any]) -> Run:
    """Count the steps of a function that learns from so many rollouts."""

    def run(rollouts: int) -> int:
        learn(rollouts)
        return rollouts * STEPS

    return run


def repeat(rollout: Callable[[], Any]) -> Run:
    """Count the steps of a function that learns from one rollout."""
    return count_steps(lambda rollouts: [rollout() for _ in range(rollouts)])


# --- gymnasium's pendulum, as these libraries read environments -----------------------------------


class PendulumTensors:
    """gymnasium's vectorised pendulum with tensors in and out, as loops of CleanRL's kind convert
    them."""

    def __init__(self) -> None:
        self.env = gymnasium.make_vec(
            PENDULUM,
            num_envs=ACCOUNTS,
            vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": AutoresetMode.SAME_STEP},
        )

    def reset(self) -> tuple[torch.Tensor, Any]:
        return torch.from_numpy(self.env.reset(seed=0)[0]), {}

    def step(self, actions: torch.Tensor) -> tuple[Any, ...]:
        obs, reward, terminated, truncated, info = self.env.step(actions.numpy())
        final = obs
        if "final_obs" in info:
            rows = info["_final_obs"]
            final = obs.copy()
            final[rows] = np.stack(info["final_obs"][rows])
        flags = (torch.from_numpy(terminated), torch.from_numpy(truncated))
        paid = torch.from_numpy(reward).float()
        return torch.from_numpy(obs), paid, *flags, {"final_obs": torch.from_numpy(final)}


class IsaacPendulum(IsaacVecEnv):
    """The same under the names of Isaac Gym's contract."""

    def __init__(self) -> None:
        self.env: Any = PendulumTensors()
        spaces = self.env.env
        self.env_name = PENDULUM
        self.cfg: dict[str, object] = {}
        self.device = torch.device("cpu")
        self.num_envs = ACCOUNTS
        self.observation_space = spaces.single_observation_space
        self.action_space = spaces.single_action_space
        self.state_dim = 3
        self.action_dim = self.num_actions = 1
        self.max_step = self.max_episode_length = EPISODE
        self._lengths = torch.zeros(ACCOUNTS, dtype=torch.int64)
        self._value = None
        self._gamma = 0.0
        self._obs = None


class RslRlPendulum(IsaacPendulum, RslRlEnv):
    """With rsl_rl's dictionaries."""


# --- a loop each: `own` is TradingEnv -------------------------------------------------------------


def run_stable_baselines3(own: bool) -> Run:
    from stable_baselines3 import PPO

    return _learn(PPO, "MlpPolicy", own, policy_kwargs={"net_arch": HIDDEN})


def run_sb3_contrib(own: bool) -> Run:
    from sb3_contrib import RecurrentPPO

    return _learn(RecurrentPPO, "MlpLstmPolicy", own, policy_kwargs={"net_arch": HIDDEN})


def _learn(kind: Any, policy: str, own: bool, **options: Any) -> Run:
    from stable_baselines3.common.env_util import make_vec_env

    from fintrader.envs.adapters.sb3 import Sb3VecEnv

    env = Sb3VecEnv(make_env()) if own else make_vec_env(PENDULUM, ACCOUNTS, seed=0)
    model = kind(policy, env, n_steps=ROLLOUT, batch_size=BATCH, device="cpu", **options)
    return count_steps(lambda count: model.learn(count * STEPS, reset_num_timesteps=False))


def run_cleanrl_style(own: bool) -> Run:
    from torch import nn
    from torch.distributions import Normal

    env = make_env() if own else PendulumTensors()
    assets = load_training_market().num_assets if own else 1

    def make_layers(outputs: int) -> nn.Sequential:
        hidden = [part for width in HIDDEN for part in (nn.LazyLinear(width), nn.Tanh())]
        return nn.Sequential(*hidden, nn.LazyLinear(outputs))

    actor, critic = nn.Sequential(make_layers(assets), nn.Tanh()), make_layers(1)
    state = {"obs": env.reset()[0]}
    actor(state["obs"]), critic(state["obs"])
    adam = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)

    def step() -> None:
        obs = state["obs"]
        choice = Normal(actor(obs), 0.3)
        action = choice.sample()
        after, reward, terminated, truncated, info = env.step(action)
        led_to = torch.where((terminated | truncated)[:, None], info["final_obs"], after)
        ahead = critic(led_to).squeeze(-1).detach() * ~terminated
        advantage = reward + 0.99 * ahead - critic(obs).squeeze(-1)
        gain = (choice.log_prob(action).sum(1) * advantage.detach()).mean()
        loss = advantage.square().mean() - gain
        adam.zero_grad()
        loss.backward()
        adam.step()
        state["obs"] = after

    return repeat(lambda: [step() for _ in range(ROLLOUT)])


def run_tianshou(own: bool) -> Run:
    from tianshou.algorithm.modelfree.ppo import PPO
    from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
    from tianshou.algorithm.optim import AdamOptimizerFactory
    from tianshou.data import Collector, VectorReplayBuffer
    from tianshou.env import DummyVectorEnv
    from tianshou.trainer import OnPolicyTrainerParams
    from tianshou.utils.net.common import Net
    from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
    from torch.distributions import Independent, Normal

    trading = {"market": load_training_market(), "settings": EnvSettings(episode_bars=EPISODE)}
    name, options = ("fintrader/Trading-v0", trading) if own else (PENDULUM, {})
    envs = DummyVectorEnv([lambda: gymnasium.make(name, **options)] * ACCOUNTS)
    shape, space = envs.observation_space[0].shape, envs.action_space[0]
    nets = [Net(state_shape=shape, hidden_sizes=HIDDEN) for _ in range(2)]
    policy = ProbabilisticActorPolicy(
        actor=ContinuousActorProbabilistic(preprocess_net=nets[0], action_shape=space.shape),
        dist_fn=lambda parts: Independent(Normal(*parts), 1),
        action_space=space,
    )
    critic = ContinuousCritic(preprocess_net=nets[1])
    algorithm = PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=3e-4))
    collector = Collector(algorithm, envs, VectorReplayBuffer(4096, ACCOUNTS))

    def learn(rollouts: int) -> None:
        params = OnPolicyTrainerParams(
            training_collector=collector,
            max_epochs=1,
            epoch_num_steps=rollouts * STEPS,
            collection_step_num_env_steps=STEPS,
            batch_size=BATCH,
            update_step_num_repetitions=10,
            show_progress=False,
            verbose=False,
        )
        algorithm.run_training(params)

    return count_steps(learn)


def run_torchrl(own: bool) -> Run:
    from tensordict.nn import TensorDictModule
    from torchrl.collectors import Collector
    from torchrl.envs import GymEnv, SerialEnv
    from torchrl.modules import (
        MLP,
        NormalParamExtractor,
        ProbabilisticActor,
        TanhNormal,
        ValueOperator,
    )
    from torchrl.objectives import ClipPPOLoss

    from fintrader.envs.adapters.torchrl import TorchRLEnv

    if own:
        env = TorchRLEnv(make_env(AutoresetMode.DISABLED))
    else:
        env = SerialEnv(ACCOUNTS, lambda: GymEnv(PENDULUM))
    width, actions = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    body = torch.nn.Sequential(
        MLP(width, 2 * actions, num_cells=HIDDEN, device="cpu"), NormalParamExtractor()
    )
    net = TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"])
    keys = {"in_keys": ["loc", "scale"], "return_log_prob": True}
    actor = ProbabilisticActor(net, **keys, distribution_class=TanhNormal)
    critic = ValueOperator(MLP(width, 1, num_cells=HIDDEN), in_keys=["observation"])
    loss = ClipPPOLoss(actor, critic)
    adam = torch.optim.Adam(loss.parameters(), lr=3e-4)
    batches = iter(Collector(env, actor, frames_per_batch=STEPS, total_frames=-1))

    def rollout() -> None:
        losses = loss(next(batches))
        adam.zero_grad()
        sum(losses[f"loss_{name}"] for name in ("objective", "critic", "entropy")).backward()
        adam.step()

    return repeat(rollout)


def run_skrl(own: bool) -> Run:
    from skrl.agents.torch.ppo import PPO, PPO_CFG
    from skrl.envs.wrappers.torch import wrap_env
    from skrl.memories.torch import RandomMemory
    from skrl.trainers.torch import SequentialTrainer
    from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model

    from fintrader.envs.adapters.skrl import SkrlEnv

    if own:
        env = SkrlEnv(make_env())
    else:
        plain = gymnasium.make_vec(PENDULUM, num_envs=ACCOUNTS, vectorization_mode="sync")
        env = wrap_env(plain, verbose=False)
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    spaces["device"] = "cpu"
    layers = [{"name": "net", "input": "OBSERVATIONS", "layers": HIDDEN, "activations": "elu"}]
    models = {
        "policy": gaussian_model(**spaces, network=layers, output="ACTIONS"),
        "value": deterministic_model(**spaces, network=layers, output="ONE"),
    }
    memory = RandomMemory(memory_size=ROLLOUT, num_envs=ACCOUNTS, device="cpu")
    config = PPO_CFG(rollouts=ROLLOUT)
    config.mini_batches = STEPS // BATCH
    config.experiment.write_interval = config.experiment.checkpoint_interval = 0
    agent = PPO(models=models, memory=memory, cfg=config, **spaces)
    if own:
        env.bootstrap_with(agent)
    quiet = {"headless": True, "disable_progressbar": True, "close_environment_at_exit": False}

    def learn(rollouts: int) -> None:
        settings = {"timesteps": rollouts * ROLLOUT, **quiet}
        SequentialTrainer(env=env, agents=agent, cfg=settings).train()

    return count_steps(learn)


def run_rsl_rl(own: bool) -> Run:
    from rsl_rl.runners import OnPolicyRunner

    env = RslRlEnv(make_env()) if own else RslRlPendulum()
    noise = {"class_name": "GaussianDistribution", "init_std": 0.5}
    net = {"class_name": "MLPModel", "hidden_dims": HIDDEN}
    config = {"num_steps_per_env": ROLLOUT, "save_interval": 10**9}
    config["obs_groups"] = {"actor": ["policy"], "critic": ["policy"]}
    config |= {"actor": {**net, "distribution_cfg": noise}, "critic": net}
    config["algorithm"] = {"class_name": "PPO", "gamma": 0.99}
    runner = OnPolicyRunner(env, config)
    env.bootstrap_with(lambda obs: runner.alg.critic(env.pack(obs)), 0.99)
    return count_steps(runner.learn)


def run_rl_games(own: bool) -> Run:
    import rl_games
    import yaml
    from rl_games.common import env_configurations, ivecenv, vecenv
    from rl_games.torch_runner import Runner

    kind = IsaacVecEnv if own else IsaacPendulum
    env = type("Env", (kind, ivecenv.IVecEnv), {})(*([make_env()] if own else []))
    name = f"borrowed_{own}"
    vecenv.register(name, lambda *names, **options: env)
    env_configurations.register(name, {"vecenv_type": name})
    path = Path(rl_games.__path__[0]) / "configs/ppo_continuous.yaml"
    params = yaml.safe_load(path.read_text())["params"]
    params["torch_threads"] = 1
    params["network"]["mlp"]["units"] = HIDDEN
    params["config"] |= {"env_name": name, "horizon_length": ROLLOUT, "num_actors": ACCOUNTS}
    params["config"] |= {"minibatch_size": BATCH, "device": "cpu", "env_config": {}}
    runner = Runner()
    runner.load({"params": params})
    agent = runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)
    scale = params["config"]["reward_shaper"]["scale_value"]
    env.bootstrap_with(lambda obs: agent.get_values({"obs": obs}) / scale, agent.gamma)
    agent.init_tensors()
    agent.obs = agent.env_reset()
    return repeat(agent.train_epoch)


def run_elegantrl(own: bool) -> Run:
    from elegantrl.agents.AgentPPO import AgentPPO
    from elegantrl.envs.PointChasingEnv import PointChasingVecEnv
    from elegantrl.train.config import Config

    chasing = {"env_num": ACCOUNTS, "sim_gpu_id": -1}
    env = IsaacVecEnv(make_env()) if own else PointChasingVecEnv(**chasing)
    names = ("env_name", "max_step", "state_dim", "action_dim", "if_discrete")
    described = {name: getattr(env, name) for name in names}
    config = Config(AgentPPO, None, {**described, "num_envs": ACCOUNTS})
    config.batch_size = BATCH
    agent = AgentPPO(HIDDEN, env.state_dim, env.action_dim, gpu_id=-1, args=config)
    if own:
        env.bootstrap_with(agent.cri, config.gamma)
    agent.last_state = env.reset()

    def rollout() -> None:
        with torch.no_grad():
            steps = agent.explore_env(env, ROLLOUT)
        agent.update_net(steps)

    return repeat(rollout)


def run_rllib(own: bool) -> Run:
    import ray
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    from fintrader.envs.adapters.rllib import rllib_env

    if not ray.is_initialized():
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    register_env("fintrader", rllib_env)
    world = {"market": load_training_market(), "settings": SETTINGS}
    name, mode = ("fintrader", "vector_entry_point") if own else (PENDULUM, "sync")
    sizes = {"train_batch_size_per_learner": STEPS, "minibatch_size": BATCH}
    config = PPOConfig().environment(name, env_config=world if own else {})
    config = config.training(**sizes, num_epochs=10)
    config = config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=HIDDEN))
    config = config.env_runners(
        num_env_runners=0, num_envs_per_env_runner=ACCOUNTS, gym_env_vectorize_mode=mode
    )
    algorithm = config.build_algo()
    state = {"steps": 0}

    def run(rollouts: int) -> int:
        before = state["steps"]
        for _ in range(rollouts):
            found = algorithm.train()["env_runners"]
        state["steps"] = int(found["num_env_steps_sampled_lifetime"])
        return state["steps"] - before

    return run


def run_agilerl(own: bool) -> Run:
    from agilerl.algorithms import TD3
    from agilerl.components import ReplayBuffer
    from agilerl.training.train_off_policy import train_off_policy
    from agilerl.utils.utils import make_vect_envs

    if own:
        env = NumpyVectorEnv(make_env(AutoresetMode.NEXT_STEP))
    else:
        env = make_vect_envs(PENDULUM, num_envs=ACCOUNTS, should_async_vector=False)
    encoder = {"encoder_config": {"hidden_size": HIDDEN}}
    spaces = (env.single_observation_space, env.single_action_space)
    agent = TD3(*spaces, net_config=encoder, vect_noise_dim=ACCOUNTS, batch_size=BATCH)
    memory = ReplayBuffer(max_size=10_000)
    state = {"steps": 0}

    def learn(rollouts: int) -> None:
        steps = rollouts * STEPS
        state["steps"] += steps
        limits = {"max_steps": state["steps"], "evo_steps": steps, "eval_steps": 1}
        train_off_policy(env, "borrowed", "TD3", [agent], memory, **limits, verbose=False)

    return count_steps(learn)


def run_jax(own: bool) -> Run:
    import jax
    import jax.numpy as jnp

    from fintrader.envs.adapters.dlpack import DlpackEnv

    if own:
        env = DlpackEnv(make_env(), jax.dlpack.from_dlpack)
    else:
        env = gymnasium.make_vec("phys2d/Pendulum-v0", num_envs=ACCOUNTS)
    actions = load_training_market().num_assets if own else 1
    obs, _ = env.reset(seed=0)

    def make_layer(key: Any, inputs: int, outputs: int) -> Any:
        return jax.random.normal(key, (inputs, outputs)) / inputs**0.5

    keys = jax.random.split(jax.random.key(0), 3)
    widths = [obs.shape[1], *HIDDEN, actions]
    weights = [make_layer(*sizes) for sizes in zip(keys, widths, widths[1:], strict=False)]

    @jax.jit
    def act(weights: Any, obs: Any) -> Any:
        for layer in weights:
            obs = jnp.tanh(obs @ layer)
        return obs

    @jax.jit
    def improve(weights: Any, obs: Any, action: Any, reward: Any) -> Any:
        advantage = (reward - reward.mean()) / (reward.std() + 1e-8)
        gain = lambda weights: (  # noqa: E731
            -((action - act(weights, obs)) ** 2).sum(1) / 0.18 * advantage
        ).mean()
        return jax.tree.map(lambda w, g: w + 0.01 * g, weights, jax.grad(gain)(weights))

    state = {"obs": obs, "weights": weights, "key": keys[0]}

    def step() -> None:
        state["key"], key = jax.random.split(state["key"])
        action = act(state["weights"], state["obs"])
        action = (action + 0.3 * jax.random.normal(key, action.shape)).clip(-1, 1)
        after, reward, *_ = env.step(action)
        state["weights"] = improve(state["weights"], state["obs"], action, jnp.asarray(reward))
        state["obs"] = after

    return repeat(lambda: [step() for _ in range(ROLLOUT)])


def measure(name: str, rounds: int, seconds: float) -> Values:
    """Both environments in turn, in process CPU time: steps a second, and the ratio of each
    round."""
    make = globals()[f"run_{name}"]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with Path(os.devnull).open("w") as out, redirect_stdout(out), redirect_stderr(out):
        runs = {"trading": make(True), "reference": make(False)}
        rates = alternate(runs, rounds, seconds)
    ratios = [own / other for own, other in zip(*rates.values(), strict=True)]
    found = {
        key: {"median": median(values), "range": [min(values), max(values)]}
        for key, values in {**rates, "times": ratios}.items()
    }
    packages = filter(None, (LIBRARIES[name].package, "torch", "gymnasium", "numpy"))
    found["versions"] = {package: version(package) for package in packages}
    return found
