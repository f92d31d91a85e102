"""torchrl: `TradingEnv` as an `EnvBase` of batch size `[B]`.

    from torchrl.collectors import Collector
    env = TorchRLEnv(TradingEnv(market, settings, autoreset_mode=AutoresetMode.DISABLED))
    collector = Collector(env, policy, frames_per_batch=4096, total_frames=1_000_000)

torchrl resets finished accounts itself, by mask, and puts the true last observation under `("next",
"observation")`; so the environment must be in DISABLED mode, and bootstrapping at a time limit is
right as it stands.
"""

from __future__ import annotations

import torch
from gymnasium.vector import AutoresetMode
from tensordict import TensorDict, TensorDictBase
from torchrl.data import Binary, Bounded, Composite, Unbounded
from torchrl.envs import EnvBase

from fintrader.envs.trading import TradingEnv
from fintrader.errors import EnvError


class TorchRLEnv(EnvBase):  # type: ignore[misc]
    """A DISABLED-mode `TradingEnv` with flat observations. Raises EnvError for any other mode or
    observation.

    Entries: `observation` `[B, D]`, `action` `[B, N]`, `reward`, `done`, `terminated`, `truncated`
    `[B, 1]`.
    """

    def __init__(self, env: TradingEnv) -> None:
        if env.autoreset_mode is not AutoresetMode.DISABLED or env.settings.observation != "flat":
            raise EnvError(
                "torchrl needs autoreset_mode=DISABLED (it resets by mask) and flat observations"
            )
        size = torch.Size([env.num_envs])
        super().__init__(device=env.device, batch_size=size)
        self.env = env
        self._pending_seed: int | None = None
        device = env.device
        assets = env.layout.num_assets
        width = env.layout.width
        self.observation_spec = Composite(
            observation=Unbounded((env.num_envs, width), device=device, dtype=torch.float32),
            shape=size,
            device=device,
        )
        self.action_spec = Bounded(
            -1.0, 1.0, (env.num_envs, assets), device=device, dtype=torch.float32
        )
        self.reward_spec = Unbounded((env.num_envs, 1), device=device, dtype=torch.float32)
        flag = Binary(1, (env.num_envs, 1), device=device, dtype=torch.bool)
        self.done_spec = Composite(
            done=flag.clone(),
            terminated=flag.clone(),
            truncated=flag.clone(),
            shape=size,
            device=device,
        )

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        mask = None if tensordict is None else tensordict.get("_reset", None)
        seed = self._pending_seed
        self._pending_seed = None
        if mask is None or bool(mask.all()):
            obs, _ = self.env.reset(seed=seed)
        else:
            obs, _ = self.env.reset(seed=seed, options={"reset_mask": mask.reshape(-1)})
        no = torch.zeros((self.env.num_envs, 1), dtype=torch.bool, device=self.env.device)
        values = {
            "observation": obs.float(),
            "done": no,
            "terminated": no.clone(),
            "truncated": no.clone(),
        }
        return TensorDict(values, batch_size=self.batch_size, device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        obs, reward, terminated, truncated, _ = self.env.step(tensordict.get("action"))
        values = {
            "observation": obs.float(),
            "reward": reward.unsqueeze(-1),
            "terminated": terminated.unsqueeze(-1),
            "truncated": truncated.unsqueeze(-1),
            "done": (terminated | truncated).unsqueeze(-1),
        }
        return TensorDict(values, batch_size=self.batch_size, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self._pending_seed = seed
