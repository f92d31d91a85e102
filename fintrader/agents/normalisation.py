"""Running statistics of observations and rewards; they are part of the policy and travel with
it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from fintrader.agents.trunks import Seen, numbered_anew
from fintrader.envs.observation import FlatLayout, Layout, statistic_groups
from fintrader.errors import ConfigError

Perturbation = Callable[[Tensor, Tensor | None], Tensor]
"""Standardised rows of the market `[U, L*W]`, and their bars `[U]` where these are known, to what
is shown instead."""

CLIP = 10.0
"""Standardised values lie within ± this."""
EPSILON = 1e-8
"""Added to variances, so that a column that does not vary divides by something."""
_ROWS = 4096
"""Rows of a table whose statistics are taken at once."""


class ObservationNormaliser(nn.Module):
    """Subtracts the mean and divides by the deviation of each column seen so far, clipped to ±10.

    Columns that mean the same thing for different assets share one statistic, so that permuting the
    assets permutes the result. Statistics merge by the parallel algorithm of Chan, Golub and
    LeVeque (1979), in float64.

    Observations are flat, `[..., D]`, or *clocked*, `[..., A + N + 1]`: the private part and the
    number of a bar (exact in float32 up to 2**24), whose row stands in a table that all accounts
    share. Of a table every row is as good as seen: the market's columns get their statistics from
    all of it, once.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    groups: Tensor

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.private = layout.width if isinstance(layout, FlatLayout) else layout.private_width
        """Columns of the private part, which come first."""
        self.width = layout.width
        self.row_width = 0 if isinstance(layout, FlatLayout) else layout.row_width
        groups = statistic_groups(layout)
        number = int(groups.max()) + 1
        self.register_buffer("groups", groups, persistent=False)
        self.register_buffer("mean", torch.zeros(number, dtype=torch.float64))
        self.register_buffer("var", torch.ones(number, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(number, dtype=torch.float64))
        self._refresh()

    def _refresh(self) -> None:
        """Float32 copies per column: what `see` reads, once a step."""
        shift, scale = shift_and_scale(self.mean, self.var)
        self._shift = -(shift * scale)[self.groups]
        self._scale = scale[self.groups]

    @property
    def knows_market(self) -> bool:
        """Whether the market's columns have statistics, or there are none."""
        return not self.row_width or bool(self.count[self.groups[-1]])

    def see(
        self,
        obs: Tensor,
        table: Tensor | None = None,
        *,
        wait: bool = True,
        perturb: Perturbation | None = None,
    ) -> Seen:
        """Raw `obs`, flat `[R, D]` or clocked `[R, A + N + 1]`, as what networks read; `table` `[T,
        L*W]` belongs to clocks, and `wait` as in `numbered_anew`. Raises ConfigError for clocks
        without a table."""
        perturb = perturb or (lambda rows, bars: rows)
        private = self._standardise(obs[..., : self.private], slice(0, self.private))
        if obs.shape[-1] == self.width:
            return Seen(private, perturb(self.see_rows(obs[..., self.private :]), None), None)
        if table is None:
            raise ConfigError(
                f"observations are {obs.shape[-1]} wide, the layout's {self.width}; clocks need the"
                " market's rows: call agent.training_env(env) first, as `train` does"
            )
        occurring, place = numbered_anew(obs[..., -1].detach().long(), len(table), wait=wait)
        return Seen(private, self.see_bars(occurring, table, obs.dtype, perturb), place)

    def see_bars(
        self, bars: Tensor, table: Tensor, dtype: torch.dtype, perturb: Perturbation
    ) -> Tensor:
        """The rows `[U, L*W]` of the bars with these numbers `[U]`, standardised and perturbed."""
        return perturb(self.see_rows(table[bars].to(dtype)), bars)

    def see_rows(self, rows: Tensor) -> Tensor:
        """Rows of the market `[U, L*W]`, standardised."""
        return self._standardise(rows, slice(self.private, self.width))

    def _standardise(self, values: Tensor, columns: slice) -> Tensor:
        # (values - mean) / deviation, in two passes
        standard = torch.addcmul(self._shift[columns], values, self._scale[columns])
        return (
            standard.clamp(-CLIP, CLIP) if standard.requires_grad else standard.clamp_(-CLIP, CLIP)
        )

    def update(self, obs: Tensor) -> None:
        """Merge a batch of observations `[..., D]` or `[..., A + N + 1]` into the statistics: of
        the latter what is private."""
        self._merge(obs if obs.shape[-1] == self.width else obs[..., : self.private], 0)

    def update_market(self, table: Tensor) -> None:
        """Merge a table `[T, L*W]` into the statistics: of each row the newest bar, since the
        others have their own."""
        width = self.row_width
        for rows in torch.split(table[:, -width:], _ROWS):
            self._merge(rows, self.width - width)

    @torch.no_grad()
    def _merge(self, values: Tensor, first: int) -> None:
        """A batch of the columns from number `first` on."""
        rows = values.reshape(-1, values.shape[-1])
        groups = self.groups[first : first + rows.shape[1]]
        zeros = torch.zeros_like(self.mean)
        sizes = torch.bincount(groups, minlength=len(zeros)).double()
        # Offsets by the first row keep float32 sums exact enough for columns with a large mean.
        origin = rows[0].float()
        centred = rows - origin
        column_mean = centred.mean(dim=0).double() + origin.double()
        # As `var(dim=0)`, which takes five times as long.
        column_var = (
            (centred * centred).mean(dim=0).double() - centred.mean(dim=0).double() ** 2
        ).clamp_min(0)
        seen = sizes > 0
        sizes = sizes.clamp_min(1)
        mean = zeros.index_add(0, groups, column_mean) / sizes
        between = (column_mean - mean[groups]) ** 2
        var = zeros.index_add(0, groups, column_var + between) / sizes
        _merge(self, mean, var, torch.where(seen, float(rows.shape[0]), 0.0).double())
        self._refresh()

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._refresh()

    def _apply(self, fn: object, recurse: bool = True) -> ObservationNormaliser:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._refresh()
        return self


def _merge(
    own: ObservationNormaliser | RewardScaler, mean: Tensor, var: Tensor, number: Tensor | int
) -> None:
    """Take a batch of `number` values into running statistics."""
    total = own.count + number
    share = number / total.clamp_min(1)
    delta = mean - own.mean
    merged = (own.var * own.count + var * number + delta**2 * own.count * share) / total.clamp_min(
        1
    )
    own.var.copy_(torch.where(total > 0, merged, own.var))
    own.mean.add_(delta * share)
    own.count.copy_(total)


def shift_and_scale(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """What is subtracted from columns of these statistics, and what they are multiplied by then;
    float32."""
    return mean.float(), (var + EPSILON).rsqrt().float()


class RewardScaler(nn.Module):
    """Divides rewards by the deviation of the discounted return (https://arxiv.org/abs/2005.12729,
    section 2).

    The mean stays: subtracting it would change which policy is best when episodes can end.
    """

    var: Tensor
    mean: Tensor
    count: Tensor

    def __init__(self, gamma: float) -> None:
        super().__init__()
        self.gamma = gamma
        self.register_buffer("mean", torch.zeros((), dtype=torch.float64))
        self.register_buffer("var", torch.zeros((), dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.running: Tensor | None = None
        """`[B]`: discounted return of each account so far."""

    @torch.no_grad()
    def update(self, rewards: Tensor, done: Tensor) -> None:
        """Follow `[T, B]` rewards; `done` ends an account's return."""
        running = torch.zeros_like(rewards[0]) if self.running is None else self.running
        returns = torch.empty_like(rewards)
        keep = self.gamma * (~done).to(rewards.dtype)
        for t in range(rewards.shape[0]):
            running = running + rewards[t]
            returns[t] = running
            running = running * keep[t]
        self.running = running
        wide = returns.double()
        _merge(self, wide.mean(), wide.var(correction=0), wide.numel())

    def forward(self, rewards: Tensor) -> Tensor:
        """Scaled rewards, clipped to ±10; unchanged before the first update."""
        scale = torch.where(self.count > 0, (self.var + 1e-16).rsqrt(), torch.ones_like(self.var))
        return (rewards * scale.to(rewards.dtype)).clamp(-CLIP, CLIP)

    def to_json(self) -> dict[str, float | None]:
        """Plain JSON that `from_json` reads; None for numbers that are not finite."""
        numbers = {
            "gamma": self.gamma,
            **{name: float(buffer) for name, buffer in self.named_buffers()},
        }
        return {name: number if math.isfinite(number) else None for name, number in numbers.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, float | None]) -> RewardScaler:
        """Scales as the stored one did. Raises KeyError or TypeError when something is missing."""
        numbers = {
            name: math.nan if number is None else float(number) for name, number in value.items()
        }
        scaler = cls(numbers["gamma"])
        for name, buffer in scaler.named_buffers():
            buffer.fill_(numbers[name])
        return scaler
