"""GPU simulators of locomotion and manipulation, for fintrader's own agents.

`SimulatorEnv` takes the contract of Isaac Gym and Isaac Lab, to which others are often wrapped:

    num_envs, device       number of copies, and where their tensors are
    reset()                observations, or (observations, extras)
    step(actions [B, A])   Isaac Gym: observations, rewards, resets, extras with `time_outs`
                           Isaac Lab: observations, rewards, terminated, truncated, extras

Observations are a tensor `[B, D]`, or a dictionary with `policy` (Isaac Lab) or `obs` (Isaac Gym).
A copy whose episode ends begins the next one inside the step. No state can be read or written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fintrader.envs.observation import FlatLayout, ResetReturn, StateDict, StepReturn, Tensors
from fintrader.errors import EnvError

GROUPS = ("policy", "obs")
"""Names of the policy's observation in a dictionary."""
FINAL = ("final_obs", "final_observation", "terminal_observation")
"""Names in the extras of the observations before the resets, where a simulator has them."""


class SimulatorEnv:
    """A simulator as the training loop's environment, flat observations `[B, D]` in float32.

    Actions in [-1, 1] are multiplied by `action_scale`. Without final observations a time-out
    bootstraps from the observation before it, as the simulators' own learners do. A resumed
    training begins with new episodes.
    """

    resumable = False

    def __init__(self, env: Any, *, action_scale: float = 1.0) -> None:
        """Wrap `env` and reset it once, for its width. Raises EnvError for observations or
        actions that cannot be read."""
        self.env = env
        base = getattr(env, "unwrapped", env)
        self.num_envs = int(base.num_envs)
        self.device = torch.device(base.device)
        self.action_scale = action_scale
        self.num_actions = _count_actions(base)
        self._obs = self._read(env.reset())
        self.layout = FlatLayout(self._obs.shape[1], self.num_actions)

    def reset(self, *, seed: int | None = None) -> ResetReturn:
        """Begin episodes in all copies; a `seed` reaches simulators that take one."""
        try:
            began = self.env.reset() if seed is None else self.env.reset(seed=seed)
        except TypeError:  # Isaac Gym seeds when the simulator is made
            began = self.env.reset()
        self._obs = self._read(began)
        return self._obs, {}

    def step(self, actions: Tensor) -> StepReturn:
        """Step every copy: obs `[B, D]`, reward, terminated, truncated `[B]`, and the final
        observations."""
        stepped = self.env.step(actions.detach() * self.action_scale)
        if len(stepped) == 5:
            shown, reward, terminated, truncated, extras = stepped
        elif len(stepped) == 4:
            shown, reward, ended, extras = stepped
            time_outs = extras.get("time_outs")
            truncated = torch.zeros_like(ended) if time_outs is None else time_outs
            terminated = ended.bool() & ~truncated.bool()
        else:
            raise EnvError(f"step returned {len(stepped)} values; simulators return 4 or 5")
        before = self._obs
        self._obs = self._read(shown)
        known = next((extras[name] for name in FINAL if name in extras), None)
        final = before if known is None else self._read(known)
        ends = terminated.bool(), truncated.bool()
        info = {"final_obs": final, "_final_obs": ends[0] | ends[1]}
        return self._obs, reward.float().reshape(-1), *ends, info

    def state_dict(self) -> StateDict:
        """Return nothing: a simulator's state cannot be read."""
        return {}

    def load_state_dict(self, state: Tensors) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close the simulator, if it can be closed."""
        getattr(self.env, "close", lambda: None)()

    def _read(self, value: Any) -> Tensor:
        """Copy the policy's observations, since simulators write the next ones over them."""
        shown = value[0] if isinstance(value, tuple) else value
        if isinstance(shown, Mapping):
            names = [name for name in GROUPS if name in shown]
            if not names:
                raise EnvError(
                    f"the observations hold {', '.join(map(str, shown))}, neither"
                    f" {' nor '.join(GROUPS)}; wrap the simulator so that one of these is a tensor"
                )
            shown = shown[names[0]]
        if not isinstance(shown, Tensor) or shown.shape[:1] != (self.num_envs,):
            raise EnvError(
                f"the observations must be a tensor of {self.num_envs} rows, not"
                f" {getattr(shown, 'shape', type(shown).__name__)}"
            )
        return shown.detach().float().reshape(self.num_envs, -1).clone()


def _count_actions(env: Any) -> int:
    """Count the actions of one copy, by its space or the simulator's own number."""
    space = getattr(env, "single_action_space", None) or getattr(env, "action_space", None)
    shape = getattr(space, "shape", None)
    if shape:
        return int(shape[-1])
    number = getattr(env, "num_actions", None) or getattr(env, "num_acts", None)
    if number is None:
        raise EnvError(
            "the simulator has neither action_space nor num_actions; set env.num_actions"
        )
    return int(number)
