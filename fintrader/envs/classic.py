"""Classic environments for the same agents: worker processes that step, tensors in and out.

Algorithms are compared on common benchmarks, so agents can train in any gymnasium environment with
a continuous action space: from Python, or with `env: {kind: gymnasium, id: Pendulum-v1}` in a
configuration. Each worker is a process of gymnasium's `AsyncVectorEnv` with its own seed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from torch import Tensor

from fintrader.envs.observation import FlatLayout, ResetReturn, StateDict, StepReturn, Tensors
from fintrader.envs.settings import GymnasiumSettings
from fintrader.errors import ConfigError, EnvError, install_command
from fintrader.seeding import derive, draw_seed

LEAST_EVALUATION_SEED = 1 << 31
"""Training seeds are below this number, seeds of a tournament's evaluation episodes are not."""
MOST_STEPS = 100_000
"""Steps after which an evaluation episode is taken to have no end."""


class WorkerEnv:
    """A gymnasium vector environment behind the training loop's interface.

    Observations are flattened to float32 `[B, D]`; actions in [-1, 1] are stretched to the
    environment's bounds. A classic environment cannot be stored: a resumed training begins with new
    episodes.
    """

    resumable = False
    on_host = True
    """The simulators take actions on the host, whatever the agent's device."""

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        """Wrap `env`, which must reset in the same step. Without a `seed` the system's entropy
        gives one.

        Raises ConfigError for spaces that are not continuous boxes.
        """
        action, observation = require_boxes(env.single_action_space, env.single_observation_space)
        mode = env.metadata.get("autoreset_mode")
        if mode is not AutoresetMode.SAME_STEP:
            raise ConfigError(
                "make the vector environment with autoreset_mode=AutoresetMode.SAME_STEP"
            )
        self.env = env
        self.seed = draw_seed() if seed is None else seed
        """The seed that the copies' random streams began with."""
        self._is_seeded = False
        self.device = torch.device(device)
        self.num_envs: int = env.num_envs
        self.settings: GymnasiumSettings | None = None
        """The settings that `make` used."""
        self._shape = action.shape
        self._low = action.low.reshape(-1)
        self._span = (action.high - action.low).reshape(-1)
        self.layout = FlatLayout(int(np.prod(observation.shape)), int(np.prod(action.shape)))

    @classmethod
    def make(
        cls,
        settings: GymnasiumSettings,
        *,
        seed: int | None = None,
        device: torch.device | str = "cpu",
    ) -> WorkerEnv:
        """Make the environment of the settings. Raises ConfigError if gymnasium does not know it
        or a package is missing."""

        def make_copy() -> gymnasium.Env[Any, Any]:
            return gymnasium.make(settings.id)

        makers: Sequence[Callable[[], gymnasium.Env[Any, Any]]] = [make_copy] * settings.num_envs
        # A first copy in this process reports its errors without a worker's traceback.
        try:
            probe = make_copy()
        except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
            module, has_module, _ = settings.id.partition(":")
            hint = f"`{install_command('classic')}` brings MuJoCo and classic control"
            if has_module:
                hint = f"install the package of {module!r}, or put its folder on PYTHONPATH"
            raise ConfigError(
                f"env.id {settings.id!r} needs a package ({_first_line(error)}); {hint}"
            ) from None
        except gymnasium.error.Error as error:
            raise ConfigError(
                f"env.id {settings.id!r} cannot be made ({_first_line(error)}); correct it"
            ) from None
        require_boxes(probe.action_space, probe.observation_space)
        probe.close()
        vector = AsyncVectorEnv if settings.workers == "async" else SyncVectorEnv
        made = cls(vector(makers, autoreset_mode=AutoresetMode.SAME_STEP), seed=seed, device=device)
        made.settings = settings
        return made

    def reset(self, *, seed: int | Sequence[int] | None = None) -> ResetReturn:
        """Begin episodes; copy i is seeded by `derive(seed, "worker", i)`, which is below
        `LEAST_EVALUATION_SEED`, or by `seed[i]`.

        The first call without a seed takes the environment's seed; later ones continue the copies'
        random streams.
        """
        seeds: list[int] | None = None
        if isinstance(seed, int):
            self.seed = seed
        if isinstance(seed, Sequence):
            seeds = list(seed)
        elif seed is not None or not self._is_seeded:
            workers = range(self.num_envs)
            seeds = [
                derive(self.seed, "worker", number) % LEAST_EVALUATION_SEED for number in workers
            ]
        obs, _ = self.env.reset(seed=seeds)  # type: ignore[arg-type]
        self._is_seeded = True
        return self._tensor(obs), {}

    def step(self, actions: Tensor) -> StepReturn:
        """Step every copy. Raises EnvError for actions with NaN, which simulators accept."""
        unit = actions.detach().cpu().numpy().astype(np.float64)
        if not np.isfinite(unit).all():
            raise EnvError(
                "actions contain NaN or infinity; check the policy's weights and the observations"
            )
        scaled = (self._low + (unit + 1.0) / 2.0 * self._span).astype(
            self.env.single_action_space.dtype
        )
        obs, reward, terminated, truncated, info = self.env.step(
            scaled.reshape(self.num_envs, *self._shape)
        )
        observation = self._tensor(obs)
        final = observation
        if "final_obs" in info:
            final = observation.clone()
            ended = np.flatnonzero(info["_final_obs"])
            final[ended] = self._tensor(np.stack(info["final_obs"][ended]))
        out = {"final_obs": final, "_final_obs": self._flag(terminated | truncated)}
        reward_tensor = torch.as_tensor(np.asarray(reward), dtype=torch.float32, device=self.device)
        return observation, reward_tensor, self._flag(terminated), self._flag(truncated), out

    def state_dict(self) -> StateDict:
        """Return nothing: gymnasium cannot store an environment."""
        return {}

    def load_state_dict(self, state: Tensors) -> None:
        """Do nothing."""

    def close(self) -> None:
        """End the worker processes."""
        self.env.close()

    def _tensor(self, obs: Any) -> Tensor:
        rows = np.array(obs, dtype=np.float32).reshape(len(obs), -1)
        return torch.from_numpy(rows).to(self.device)

    def _flag(self, values: Any) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=bool)).to(self.device)


def require_boxes(
    action: Any, observation: Any
) -> tuple[gymnasium.spaces.Box, gymnasium.spaces.Box]:
    """Return both spaces if agents can use them. Raises ConfigError otherwise."""
    if not isinstance(action, gymnasium.spaces.Box):
        raise ConfigError(
            f"the actions are {action}; agents need a continuous Box, choose another environment"
        )
    if not isinstance(observation, gymnasium.spaces.Box):
        raise ConfigError(
            f"the observations are {observation}; wrap the environment so that they are one Box"
        )
    if not (np.isfinite(action.low).all() and np.isfinite(action.high).all()):
        raise ConfigError("the actions have no bounds; wrap the environment with RescaleAction")
    return action, observation


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def episode_returns(
    env: WorkerEnv,
    policy: Callable[[Tensor], Tensor],
    episodes: int,
    *,
    seed: int | Sequence[int],
) -> list[float]:
    """Play `episodes` episodes from fresh resets, equally many of each copy (give or take one), and
    return their undiscounted returns. `seed`: as `WorkerEnv.reset` takes it.

    The first `episodes` to end would over-represent short ones. Raises EnvError for an episode of
    more than `MOST_STEPS`.
    """
    obs, _ = env.reset(seed=seed)
    running = torch.zeros(env.num_envs, dtype=torch.float64)
    steps = torch.zeros(env.num_envs, dtype=torch.int64)
    wanted = [len(range(copy, episodes, env.num_envs)) for copy in range(env.num_envs)]
    ended: list[list[float]] = [[] for _ in wanted]
    while any(len(own) < count for own, count in zip(ended, wanted, strict=True)):
        with torch.no_grad():
            obs, reward, terminated, truncated, _ = env.step(policy(obs))
        running += reward.cpu()
        steps += 1
        if int(steps.max()) > MOST_STEPS:
            raise EnvError(
                f"an episode has not ended after {MOST_STEPS:,} steps; register the environment"
                " with max_episode_steps"
            )
        for copy in (terminated | truncated).nonzero().flatten().tolist():
            ended[copy].append(float(running[copy]))
            running[copy] = 0.0
            steps[copy] = 0
    return [value for own, count in zip(ended, wanted, strict=True) for value in own[:count]]
