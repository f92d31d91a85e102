"""`JoinedEnv`: accounts in several pieces of one market as one training environment, none of which ever leaves its own.

A learner that must not see a block in the middle of a market trains on what lies on both sides of it. Every piece has
accounts of its own, in proportion to its length, so that no episode runs across the hole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fintrader.data.tensors import MarketTensors
from fintrader.envs.settings import EnvSettings
from fintrader.envs.trading import TradingEnv
from fintrader.errors import EnvError
from fintrader.seeding import derive


class JoinedEnv:
    """What `train` needs of an environment (`TrainingEnvironment`), made of a `TradingEnv` for each piece.

    `observation: factored` shows a bar's number among the bars of all pieces, one after another, as `market_rows` has
    them.
    """

    def __init__(
        self,
        pieces: Sequence[MarketTensors],
        settings: EnvSettings,
        *,
        device: torch.device | str | None = None,
        seed: int = 0,
    ) -> None:
        """Raises EnvError for fewer accounts (or groups of them) than pieces, and what `TradingEnv` raises."""
        accounts = shares_of(settings, [piece.num_bars for piece in pieces])
        groups = settings.start_groups
        each = 1 if groups == "auto" else settings.num_envs // groups
        self._seed = seed
        self.settings, self.num_envs = settings, sum(accounts)
        self.envs = [
            TradingEnv(
                piece,
                settings if groups == "auto" else settings.model_copy(update={"start_groups": count // each}),
                num_envs=count,
                device=device,
                seed=derive(seed, "piece", number),
            )
            for number, (piece, count) in enumerate(zip(pieces, accounts, strict=True))
        ]
        first = self.envs[0]
        self.layout, self.autoreset_mode, self.device = first.layout, first.autoreset_mode, first.device
        self._offsets = [sum(env.market.num_bars for env in self.envs[:number]) for number in range(len(self.envs))]

    def with_settings(self, **changes: Any) -> JoinedEnv:
        """An environment like this one but for these settings, before its first reset."""
        settings = self.settings.model_copy(update=changes)
        return JoinedEnv([env.market for env in self.envs], settings, device=self.device, seed=self._seed)

    @cached_property
    def market_rows(self) -> Tensor:
        """`[T, L*W]`: what accounts see of the market, the pieces' bars one after another."""
        return torch.cat([env.market_rows for env in self.envs])

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin episodes; obs `[B, D]`, the accounts of the first piece first."""
        shown = []
        for number, env in enumerate(self.envs):
            shown.append(env.reset(seed=None if seed is None else derive(seed, "piece", number))[0])
        return self._join(shown), {}

    def step(self, actions: Tensor) -> tuple[Any, Tensor, Tensor, Tensor, dict[str, Any]]:
        """As `TradingEnv.step`, with `final_obs` in info. Raises what it raises."""
        parts = torch.split(actions, [env.num_envs for env in self.envs])
        steps = [env.step(part) for env, part in zip(self.envs, parts, strict=True)]
        shown, rewards, terminated, truncated, infos = zip(*steps, strict=True)
        done = torch.cat([info["_final_obs"] for info in infos])
        info = {"final_obs": self._join([info["final_obs"] for info in infos]), "_final_obs": done}
        return self._join(shown), torch.cat(rewards), torch.cat(terminated), torch.cat(truncated), info

    def state_dict(self) -> dict[str, Tensor]:
        """Everything a bit-exact continuation needs."""
        states = [env.state_dict() for env in self.envs]
        return {f"{number}.{name}": tensor for number, state in enumerate(states) for name, tensor in state.items()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from `state_dict`. Raises CheckpointError when it does not fit."""
        for number, env in enumerate(self.envs):
            own = {name.partition(".")[2]: value for name, value in state.items() if name.startswith(f"{number}.")}
            env.load_state_dict(own)

    def _join(self, shown: Sequence[Any]) -> Any:
        if self.settings.observation == "flat":
            return torch.cat(list(shown))
        clocks = [one["clock"] + offset for one, offset in zip(shown, self._offsets, strict=True)]
        return {"private": torch.cat([one["private"] for one in shown]), "clock": torch.cat(clocks)}


def shares_of(settings: EnvSettings, bars: Sequence[int]) -> list[int]:
    """Accounts of each piece: in proportion to its bars, one (or one group of `start_groups`) at least, and all of
    `num_envs` together.

    Raises EnvError when there are fewer accounts, or groups of them, than pieces.
    """
    groups = settings.start_groups
    units = settings.num_envs if groups == "auto" else groups
    if units < len(bars) or settings.num_envs % units:
        raise EnvError(
            f"{settings.num_envs} accounts in {units} group(s) cannot trade in {len(bars)} pieces of the market; raise "
            "env.num_envs, or set env.start_groups to auto"
        )
    due = [units * count / sum(bars) for count in bars]
    shares = [max(1, int(part)) for part in due]
    while (missing := units - sum(shares)) != 0:  # whoever is furthest from what is due to it, the first of equals
        step = 1 if missing > 0 else -1
        apart = [step * (part - share) for part, share in zip(due, shares, strict=True)]
        shares[apart.index(max(apart))] += step
    return [share * (settings.num_envs // units) for share in shares]
