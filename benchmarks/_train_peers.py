"""The peers of `training.py` and `time_to_return.py` that train in our own environment.

- Stable-Baselines3's PPO (2.9.2, in a folder of its own under `.venv-bench`, with the torch and
  gymnasium that run here) through `FastVecEnv`, which copies nothing, on a rollout buffer that
  copies each number once, with fused Adam and without the checks of torch's distributions. The
  package itself is as it was published.
- The loop of `_train_clean.py`.
- TorchTrade's PPO example (https://github.com/TorchTrade/torchtrade, examples/online_rl/ppo and
  ppo_vectorized), rebuilt from its published settings on that loop: one torso of three layers of
  128 with tanh under linear heads, 64 accounts, 10,000 frames a batch, three passes of three
  minibatches, values and advantages anew in each pass, standardised observations. The example
  trades a single asset by a categorical choice, and none trains on the portfolio environment: here
  its policy is a Gaussian over the same latents as everyone's, weights begin orthogonal as in the
  loop, and without torchrl and TensorDict around it, it runs faster than the original.

All act on the latents of our `aim` head (`_train_clean.aim`): target weights by a softmax with cash
in it.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks._bench import import_peer
from benchmarks._learning import OutOfTime
from benchmarks._planted import Referee, observe_with
from benchmarks._train_clean import ACTIVATIONS, CleanPPO, Normaliser, Recipe, aim, peer_env
from fintrader.backtesting.account import BacktestAccount
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.market.tensors import MarketTensors

TORCHTRADE = Recipe(
    num_steps=156,
    update_epochs=3,
    num_minibatches=3,
    learning_rate=2.5e-4,
    adam_eps=1e-6,
    gamma=0.9,
    clip_coef=0.1,
    ent_coef=0.01,
    vf_coef=1.0,
    hidden=(128, 128, 128),
    normalise=True,
    shared=True,
    advantages_each_epoch=True,
)
"""As published; step size and clip fall to zero over 100 million frames there, which these budgets
do not see."""


SB3 = ("stable-baselines3", "2.9.2")
JAX = {"jax": "0.10.2", "jaxlib": "0.10.2", "ml_dtypes": "0.6.0", "opt_einsum": "3.4.0"}


def load_sb3() -> Any:
    """Stable-Baselines3. Raises NoPeer."""
    return import_peer("stable_baselines3", SB3)


def load_jax() -> Any:
    """The module of `JaxPPO`. Raises NoPeer."""
    return import_peer("benchmarks._train_jax", *JAX.items())


def sb3_ppo(env: TradingEnv, recipe: Recipe, seed: int) -> Any:
    """Stable-Baselines3's PPO on `env` (made with `copy=True`). Raises NoPeer."""
    package = load_sb3()
    from gymnasium.spaces import Box
    from stable_baselines3.common.buffers import RolloutBuffer
    from stable_baselines3.common.logger import Logger

    from fintrader.envs.adapters.sb3 import Sb3VecEnv

    torch.distributions.Distribution.set_default_validate_args(False)

    class FastVecEnv(Sb3VecEnv):
        """Latents in, numpy views of the environment's tensors out."""

        def __init__(self) -> None:
            super().__init__(env)
            # SB3 clips what it draws to finite bounds; these are beyond anything drawn.
            self.action_space = Box(-1e3, 1e3, (env.layout.num_assets + 1,), np.float32)
            self.normaliser = Normaliser(env.layout.width) if recipe.normalise else None
            self.steps = 0

        def seen(self, obs: Tensor) -> Any:
            return (obs if self.normaliser is None else self.normaliser(obs)).numpy()

        def reset(self) -> Any:
            obs, _ = env.reset(seed=seed)
            if self.normaliser is not None:
                self.normaliser.update(obs)
            return self.seen(obs)

        def step_async(self, actions: Any) -> None:
            self.action = aim(torch.from_numpy(actions))

        def step_wait(self) -> Any:
            obs, reward, terminated, truncated, info = env.step(self.action)
            done = (terminated | truncated).numpy()
            self.steps += 1
            if self.normaliser is not None and self.steps % recipe.num_steps == 0:
                self.normaliser.update(obs)  # one step of a rollout tells enough
            # SB3 looks into them where an account is done, and nowhere else.
            infos = [{}] * self.num_envs
            for account in np.flatnonzero(done):
                infos[account] = {
                    "terminal_observation": self.seen(info["final_obs"][account]),
                    "TimeLimit.truncated": bool(truncated[account]),
                }
            return self.seen(obs), reward.numpy(), done, infos

    class OneCopyBuffer(RolloutBuffer):  # type: ignore[misc]
        """The same numbers, each copied once on its way in and once into a minibatch."""

        def add(
            self, obs: Any, action: Any, reward: Any, episode_start: Any, value: Any, log_prob: Any
        ) -> None:
            row = self.pos
            self.observations[row] = obs
            self.actions[row] = action
            self.rewards[row] = reward
            self.episode_starts[row] = episode_start
            self.values[row], self.log_probs[row] = value.numpy().ravel(), log_prob.numpy()
            self.pos += 1
            self.full = self.pos == self.buffer_size

        def to_torch(self, array: Any, copy: bool = True) -> Tensor:
            return torch.from_numpy(array)

    rows = recipe.num_steps * env.num_envs
    noise = {"use_sde": True, "sde_sample_freq": recipe.gsde} if recipe.gsde is not None else {}
    model = package.PPO(
        "MlpPolicy",
        FastVecEnv(),
        n_steps=recipe.num_steps,
        n_epochs=recipe.update_epochs,
        batch_size=rows // recipe.num_minibatches,
        learning_rate=recipe.learning_rate,
        gamma=recipe.gamma,
        gae_lambda=recipe.gae_lambda,
        clip_range=recipe.clip_coef,
        ent_coef=recipe.ent_coef,
        vf_coef=recipe.vf_coef,
        max_grad_norm=recipe.max_grad_norm,
        rollout_buffer_class=OneCopyBuffer,
        policy_kwargs={
            "net_arch": {"pi": list(recipe.hidden), "vf": list(recipe.hidden)},
            "activation_fn": ACTIVATIONS[recipe.activation],
            "log_std_init": math.log(recipe.noise),
            "optimizer_kwargs": {"eps": recipe.adam_eps, "fused": True},
        },
        seed=seed,
        device="cpu",
        **noise,
    )
    model.set_logger(Logger(None, []))
    return model


def make_peer(
    kind: str, market: MarketTensors, settings: EnvSettings, recipe: Recipe, seed: int
) -> Any:
    """Stable-Baselines3's model (`sb3`) or the loop (`clean`) in our environment. Raises NoPeer."""
    env = peer_env(market, settings, recipe, seed=seed, copy=kind == "sb3")
    return sb3_ppo(env, recipe, seed) if kind == "sb3" else CleanPPO(env, recipe, seed)


LEARNERS: dict[str, tuple[str, Recipe]] = {
    "sb3": ("sb3", Recipe(normalise=True)),
    "sb3_gsde": ("sb3", Recipe(normalise=True, gsde=16, noise=0.1)),
    "clean": ("clean", Recipe(normalise=True, persistence=0.9, learn_noise=False)),
    "torchtrade": ("clean", TORCHTRADE),
}
"""The peers of `time_to_return.py`: what trains, and its hyper-parameters, tuned on seeds from 100
on."""


def train_peer(
    side: str, market: MarketTensors, settings: EnvSettings, referee: Referee, seed: int
) -> None:
    """Train one of `LEARNERS` under a referee. Raises NoPeer."""
    kind, recipe = LEARNERS[side]
    if kind == "clean":
        make_peer(kind, market, settings, recipe, seed).update()
        loop = make_peer(kind, market, settings, recipe, seed)
        referee.follow(loop.update, lambda: observe_with(loop.policy))
        return

    load_sb3()
    from stable_baselines3.common.callbacks import BaseCallback

    class Look(BaseCallback):  # type: ignore[misc]
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            if self.num_timesteps:
                referee.look(self.num_timesteps, lambda: decide)

    @torch.no_grad()
    def decide(account: BacktestAccount) -> Tensor:
        rows = torch.from_numpy(model.env.seen(account.observe()))
        return aim(model.policy._predict(rows, deterministic=True))

    make_peer(kind, market, settings, recipe, seed).learn(1)
    model = make_peer(kind, market, settings, recipe, seed)
    referee.start()
    with contextlib.suppress(OutOfTime):
        model.learn(1 << 40, callback=Look())
