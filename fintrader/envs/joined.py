"""Several environments as one (`SeveralEnvs`), and separate pieces of one market (`JoinedEnv`).

A learner that must not see a block in the middle of a market trains on both sides of it. Every
piece has its own accounts, in proportion to its length, so that no episode crosses the gap.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from fintrader.envs.observation import (
    MarketTable,
    ResetReturn,
    StateDict,
    StepReturn,
    Tensors,
)
from fintrader.envs.settings import EnvSettings
from fintrader.envs.state import count_games
from fintrader.envs.trading import TradingEnv
from fintrader.errors import CheckpointError, EnvError
from fintrader.market.tensors import MarketTensors
from fintrader.numerals import format_count
from fintrader.seeding import derive, draw_seed


class SeveralEnvs:
    """Environments side by side as one `TrainingEnvironment`, gradients included.

    Subclasses set `table` `[T, L*W]`, and define `shown_row`. Observations are `[B, D]`, or
    factored if the settings ask for it; the accounts of the first environment come first.
    """

    table: MarketTable

    def __init__(self, envs: Sequence[TradingEnv], settings: EnvSettings, seed: int) -> None:
        """`seed`: the one that the accounts' random streams began with."""
        self.envs = envs
        self.settings = settings
        self.np_random_seed = seed
        self.num_envs = sum(env.num_envs for env in envs)
        self.num_traders = envs[0].num_traders
        """Consecutive accounts that trade in one game."""
        self.layout = envs[0].layout
        self.device = envs[0].device
        self.autoreset_mode = envs[0].autoreset_mode

    def shown_row(self, number: int, clock: Tensor) -> Tensor:
        """Find the rows that accounts of environment `number` see at its bars `clock` `[B]`."""
        raise TypeError(f"{type(self).__name__} must define shown_row")

    def reset(self, *, seed: int | None = None) -> ResetReturn:
        """Begin episodes everywhere; a seed starts the accounts' random streams anew."""
        if seed is not None:
            self.np_random_seed = seed
        shown = [
            env.reset(seed=None if seed is None else derive(seed, "several", number))[0]
            for number, env in enumerate(self.envs)
        ]
        return self._join(shown), {}

    def step(self, actions: Tensor) -> StepReturn:
        """Step every environment (see `TradingEnv.step`). Raises EnvError unless actions are
        `[B, N]`."""
        shape = (self.num_envs, self.layout.num_actions)
        if not isinstance(actions, Tensor) or tuple(actions.shape) != shape:
            raise EnvError(
                f"actions must be a tensor of shape {shape}, got"
                f" {getattr(actions, 'shape', type(actions))}"
            )
        parts = torch.split(actions, [env.num_envs for env in self.envs])
        steps = [env.step(part) for env, part in zip(self.envs, parts, strict=True)]
        shown, *numbers, infos = zip(*steps, strict=True)
        reward, terminated, truncated = (torch.cat(part) for part in numbers)
        joined = self._join(shown)
        if "final_obs" not in infos[0]:
            return joined, reward, terminated, truncated, {}
        ended = torch.cat([info["_final_obs"] for info in infos])
        last = self._join([info["final_obs"] for info in infos])
        info = {"final_obs": last, "_final_obs": ended, "final_info": {}, "_final_info": ended}
        return joined, reward, terminated, truncated, info

    def state_dict(self) -> StateDict:
        """Collect the state for a bit-exact continuation (without markets and settings)."""
        states = enumerate(env.state_dict() for env in self.envs)
        return {
            f"{number}.{name}": value for number, state in states for name, value in state.items()
        }

    def load_state_dict(self, state: Tensors) -> None:
        """Continue from `state_dict`. Raises CheckpointError unless it fits."""
        own: dict[str, StateDict] = {str(number): {} for number in range(len(self.envs))}
        for name, value in state.items():
            number, _, rest = name.partition(".")
            if number not in own:
                raise CheckpointError(
                    f"this is no state of {len(own)} environments side by side: {name} is unknown"
                )
            own[number][rest] = value
        for env, part in zip(self.envs, own.values(), strict=True):
            env.load_state_dict(part)

    def _join(self, shown: Sequence[Any]) -> Any:
        """Join the environments' observations."""
        if not isinstance(shown[0], Mapping):
            return torch.cat(list(shown))
        private = torch.cat([obs["private"] for obs in shown])
        clock = torch.cat([self.shown_row(k, obs["clock"]) for k, obs in enumerate(shown)])
        if self.settings.observation == "factored":
            return {"private": private, "clock": clock}
        return self.layout.assemble(private, self.table[clock])


class JoinedEnv(SeveralEnvs):
    """A `TradingEnv` for each piece.

    With `observation: factored` the clock is a bar's number in `table`, among the bars of all
    pieces.
    """

    def __init__(
        self,
        pieces: Sequence[MarketTensors],
        settings: EnvSettings,
        *,
        device: torch.device | str | None = None,
        seed: int | None = None,
    ) -> None:
        """Make the environments; without a `seed` one is drawn from the system's entropy.

        Raises EnvError for fewer accounts (or groups of them) than pieces, and as `TradingEnv`.
        """
        accounts = share_accounts(settings, [piece.num_bars for piece in pieces])
        groups = settings.start_groups
        each = 1 if groups == "auto" else settings.num_envs // groups
        seed = draw_seed() if seed is None else seed
        envs = [
            TradingEnv(
                piece,
                settings.model_copy(
                    update={"start_groups": "auto" if groups == "auto" else count // each}
                ),
                num_envs=count,
                device=device,
                seed=derive(seed, "piece", number),
            )
            for number, (piece, count) in enumerate(zip(pieces, accounts, strict=True))
        ]
        super().__init__(envs, settings, seed)
        self._offsets = [0, *accumulate(piece.num_bars for piece in pieces)]

    def with_settings(self, settings: EnvSettings) -> JoinedEnv:
        """Make an environment like this one with other settings, before its first reset."""
        pieces = [env.market for env in self.envs]
        return JoinedEnv(pieces, settings, device=self.device, seed=self.np_random_seed)

    @cached_property
    def table(self) -> MarketTable:  # type: ignore[override]
        """Market rows `[T, L*W]` of the pieces, one after another."""
        tables = [env.table for env in self.envs]
        parts = [torch.cat(part) for part in zip(*(one.parts for one in tables), strict=True)]
        first = torch.cat(
            [torch.full((len(one),), at) for at, one in zip(self._offsets, tables, strict=False)]
        )
        return MarketTable(parts, tables[0].dtype, tables[0].lookback, first.to(self.device))

    def shown_row(self, number: int, clock: Tensor) -> Tensor:
        return clock + self._offsets[number]


def share_accounts(settings: EnvSettings, bars: Sequence[int]) -> list[int]:
    """Share `num_envs` accounts out among the pieces in proportion to their bars, at least one (or
    one group of `start_groups`) each.

    Raises EnvError for fewer accounts, or groups of them, than pieces.
    """
    groups = settings.start_groups
    units = count_games(settings, settings.num_envs) if groups == "auto" else groups
    if units < len(bars) or settings.num_envs % units:
        raise EnvError(
            f"{format_count(units, 'group')} of {settings.num_envs} accounts cannot trade in"
            f" {len(bars)} pieces of the market; raise env.num_envs, or set start_groups to auto"
        )
    due = [units * count / sum(bars) for count in bars]
    shares = [max(1, int(part)) for part in due]
    # The piece furthest from its due share gives or takes one, the first of equals.
    while sum(shares) != units:
        step = 1 if sum(shares) < units else -1
        apart = [step * (part - share) for part, share in zip(due, shares, strict=True)]
        shares[apart.index(max(apart))] += step
    return [share * (settings.num_envs // units) for share in shares]
