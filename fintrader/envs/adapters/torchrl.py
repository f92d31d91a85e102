"""torchrl: `TradingEnv` as an `EnvBase` of batch size `[B]`.

    from torchrl.collectors import Collector
    env = TorchRLEnv(TradingEnv(market, settings, autoreset_mode=AutoresetMode.DISABLED))
    collector = Collector(env, policy, frames_per_batch=4096, total_frames=1_000_000)

torchrl resets finished accounts itself, by mask, and puts the true last observation under `("next",
"observation")`; so the environment must be in DISABLED mode, and bootstrapping at a time limit
needs no correction.
"""

from __future__ import annotations

import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict, TensorDictBase
from torch import Tensor
from torchrl.data import Binary, Bounded, Composite, Unbounded
from torchrl.envs import EnvBase

from fintrader.envs.adapters.gymnasium import require_flat
from fintrader.envs.trading import TradingEnv


class TorchRLEnv(EnvBase):  # type: ignore[misc]
    """A DISABLED-mode `TradingEnv` with flat observations. Raises EnvError for any other mode or
    observation.

    Entries: `observation` `[B, D]`, `action` `[B, layout.num_actions]`, `reward`, `done`,
    `terminated`, `truncated` `[B, 1]`.
    """

    def __init__(self, env: TradingEnv) -> None:
        require_flat(env, AutoresetMode.DISABLED, "torchrl, which resets by mask,")
        size = torch.Size([env.num_envs])
        device = env.device
        super().__init__(device=device, batch_size=size)
        self.env = env
        self._pending_seed: int | None = None
        number = {"device": device, "dtype": torch.float32}
        self.observation_spec = Composite(
            observation=Unbounded((*size, env.layout.width), **number), shape=size, device=device
        )
        self.action_spec = Bounded(-1.0, 1.0, (*size, env.layout.num_actions), **number)
        self.reward_spec = Unbounded((*size, 1), **number)
        flag = Binary(1, (*size, 1), device=device, dtype=torch.bool)
        flags = {name: flag.clone() for name in ("done", "terminated", "truncated")}
        self.done_spec = Composite(**flags, shape=size, device=device)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        seed = self._pending_seed
        self._pending_seed = None
        options = None
        if mask is not None and not mask.all():
            options = {"reset_mask": mask.reshape(-1)}
        obs, _ = self.env.reset(seed=seed, options=options)
        false = torch.zeros(self.env.num_envs, dtype=torch.bool, device=self.env.device)
        return self._pack(obs, false, false.clone())

    def _pack(
        self, obs: Tensor, terminated: Tensor, truncated: Tensor, **extra: Tensor
    ) -> TensorDict:
        flags = {
            "terminated": terminated,
            "truncated": truncated,
            "done": terminated | truncated,
        }
        columns = {name: value.unsqueeze(-1) for name, value in (flags | extra).items()}
        values = {"observation": obs.float(), **columns}
        return TensorDict(values, batch_size=self.batch_size, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        obs, reward, terminated, truncated, _ = self.env.step(tensordict.get("action"))
        return self._pack(obs, terminated, truncated, reward=reward)

    def _set_seed(self, seed: int | None) -> None:
        self._pending_seed = seed
