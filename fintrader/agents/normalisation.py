"""Observations as networks read them: standardised by running statistics that are part of the
policy; and the scale of rewards."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from fintrader.envs.observation import Layout, MarketTable, statistic_groups
from fintrader.errors import ConfigError

PerturbRows = Callable[[Tensor, Tensor | None], Tensor]
"""Maps standardised rows of the market `[U, L*W]` and their bars `[U]` (None: unknown) to the rows
shown instead."""

CLIP = 10.0
"""Standardised values are clipped to ± this."""
EPSILON = 1e-8
"""Added to variances, so that a column that does not vary is not divided by zero."""
_ROWS_AT_ONCE = 4096
"""Rows of a table merged into the statistics at once, to bound memory."""


class Batch(NamedTuple):
    """Standardised observations of R samples. All accounts at a bar see the same market, so its
    rows are stored once."""

    private: Tensor
    """`[R, A + N]`: account and holdings; of a classic environment everything, `[R, D]`."""
    rows: Tensor
    """`[U, L*W]`: rows of the market; of a classic environment `[U, 0]`."""
    row_index: Tensor | None
    """`[R]` int64: the row that each sample sees; None: row i is sample i's."""

    def select(self, samples: Tensor) -> Self:
        """Select the samples with these numbers and, on a CPU, only the rows that they see."""
        private = self.private.index_select(0, samples)
        if self.row_index is None:
            return type(self)(private, self.rows.index_select(0, samples), None)
        chosen = self.row_index.index_select(0, samples)
        if chosen.device.type != "cpu":
            return type(self)(private, self.rows, chosen)
        occurring, row_index = index_occurring(chosen, len(self.rows))
        return type(self)(private, self.rows.index_select(0, occurring), row_index)

    def take_first(self, count: int) -> Self:
        """Take the first `count` samples, and all rows."""
        if self.row_index is None:
            return type(self)(self.private[:count], self.rows[:count], None)
        return type(self)(self.private[:count], self.rows, self.row_index[:count])

    def expand(self, per_row: Tensor, dim: int = 0) -> Tensor:
        """Repeat the result of each row for the samples that see it: `dim` has U entries and gets
        R."""
        return per_row if self.row_index is None else per_row.index_select(dim, self.row_index)


def index_occurring(numbers: Tensor, count: int, *, wait: bool = True) -> tuple[Tensor, Tensor]:
    """Return the distinct values of `numbers` `[R]` (each in 0 ... count - 1), ascending, and for
    each of `numbers` its position among them.

    A GPU's result is padded with zeros to a power of two, so that few sizes occur. Without `wait`
    it is padded to the largest possible size, because counting the values makes the host wait.
    """
    occurs = numbers.new_zeros(count, dtype=torch.int64)
    occurs.index_fill_(0, numbers, 1)
    if numbers.device.type == "cpu":
        occurring = occurs.nonzero()
    else:
        most = min(len(numbers), count)
        if wait:
            most = min(most, 1 << (int(occurs.sum()) - 1).bit_length())
        occurring = torch.nonzero_static(occurs, size=most, fill_value=0)
    return occurring.squeeze(1), (occurs.cumsum(0) - 1).index_select(0, numbers)


class RunningStatistics(nn.Module):
    """Mean and variance of all merged values, by the parallel algorithm of Chan, Golub and LeVeque
    (1979), in float64."""

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, *shape: int, var: float) -> None:
        """`var`: the variance before the first values."""
        super().__init__()
        for name, start in (("mean", 0.0), ("var", var), ("count", 0.0)):
            self.register_buffer(name, torch.full(shape, start, dtype=torch.float64))

    def merge(self, mean: Tensor, var: Tensor, number: Tensor | int) -> None:
        """Merge the mean and variance of a batch of `number` values."""
        total = self.count + number
        share = number / total.clamp_min(1)
        delta = mean - self.mean
        squares = self.var * self.count + var * number
        merged = (squares + delta**2 * self.count * share) / total.clamp_min(1)
        self.var.copy_(torch.where(total > 0, merged, self.var))
        self.mean.add_(delta * share)
        self.count.copy_(total)


class ObservationNormaliser(RunningStatistics):
    """Subtracts each column's mean and divides by its deviation, clipped to ±10.

    Columns of equal meaning share one statistic, so that permuted assets permute the result.

    Observations are flat, `[..., D]`, or *clocked*, `[..., A + N + 1]`: the private part and the
    number of a bar (exact in float32 up to 2**24), whose row is in a table that all accounts share.
    The market's columns get their statistics from the whole table at once.
    """

    groups: Tensor

    def __init__(self, layout: Layout) -> None:
        groups = statistic_groups(layout)
        super().__init__(int(groups.max()) + 1, var=1.0)
        self.private = layout.private_width
        """Columns of the private part, which come first."""
        self.width = layout.width
        self.row_width = layout.row_width
        self.register_buffer("groups", groups, persistent=False)
        self._refresh()

    def _refresh(self) -> None:
        """Update the float32 copies per column that `_standardise` reads at every step."""
        shift, scale = to_shift_and_scale(self.mean, self.var)
        self._shift = -(shift * scale)[self.groups]
        self._scale = scale[self.groups]

    @property
    def has_market_statistics(self) -> bool:
        """True if the market's columns have statistics, or there are no such columns."""
        return not self.row_width or bool(self.count[self.groups[-1]])

    def normalise(
        self,
        obs: Tensor,
        table: MarketTable | None = None,
        *,
        wait: bool = True,
        perturb: PerturbRows | None = None,
    ) -> Batch:
        """Standardise raw `obs`, flat `[R, D]` or clocked `[R, A + N + 1]`; `table` `[T, L*W]` has
        the rows of clocked ones; `wait` as in `index_occurring`. Raises ConfigError for clocked
        observations without a table."""
        private = self._standardise(obs[..., : self.private], slice(0, self.private))
        if not self._is_clocked(obs, table):
            rows = self.normalise_rows(obs[..., self.private :])
            return Batch(private, rows if perturb is None else perturb(rows, None), None)
        if table is None:
            raise ConfigError(
                f"observations are {obs.shape[-1]} wide, the layout's {self.width}; bar numbers"
                " need the market's rows: call agent.prepare_env(env) first, as `train` does"
            )
        bars, row_index = index_occurring(obs[..., -1].detach().long(), len(table), wait=wait)
        return Batch(private, self.normalise_bars(bars, table, obs.dtype, perturb), row_index)

    def normalise_bars(
        self, bars: Tensor, table: MarketTable, dtype: torch.dtype, perturb: PerturbRows | None
    ) -> Tensor:
        """Standardise, and perturb, the rows `[U, L*W]` of the bars with these numbers `[U]`."""
        rows = self.normalise_rows(table[bars].to(dtype))
        return rows if perturb is None else perturb(rows, bars)

    def normalise_rows(self, rows: Tensor) -> Tensor:
        """Standardise rows of the market `[U, L*W]`."""
        return self._standardise(rows, slice(self.private, self.width))

    def _standardise(self, values: Tensor, columns: slice) -> Tensor:
        # (values - mean) / deviation, in two passes
        standard = torch.addcmul(self._shift[columns], values, self._scale[columns])
        if standard.requires_grad:
            return standard.clamp(-CLIP, CLIP)
        return standard.clamp_(-CLIP, CLIP)

    def update(self, obs: Tensor, table: MarketTable | None = None) -> None:
        """Merge observations, or the private part of clocked ones; `table` as in `normalise`."""
        self._merge(obs[..., : self.private] if self._is_clocked(obs, table) else obs, 0)

    def _is_clocked(self, obs: Tensor, table: MarketTable | None) -> bool:
        """Report whether `obs` end in a bar's number; with rows as wide, a `table` shows it."""
        return obs.shape[-1] != self.width or (table is not None and self.width - self.private == 1)

    def update_market(self, table: MarketTable) -> None:
        """Merge the newest bar of each row of a table `[T, L*W]` into the statistics; earlier bars
        have their own rows."""
        for bars in torch.split(torch.arange(len(table), device=self.mean.device), _ROWS_AT_ONCE):
            self._merge(table.show_bars(bars), self.width - self.row_width)

    @torch.no_grad()
    def _merge(self, values: Tensor, first: int) -> None:
        """Merge a batch `[..., columns]` of the columns from number `first` on."""
        rows = values.reshape(-1, values.shape[-1])
        groups = self.groups[first : first + rows.shape[1]]
        zeros = torch.zeros_like(self.mean)
        sizes = torch.bincount(groups, minlength=len(zeros)).double()
        # Subtracting the first row keeps float32 sums exact enough for columns with a large mean.
        origin = rows[0].float()
        centred = rows - origin
        moved = centred.mean(dim=0).double()
        column_mean = moved + origin.double()
        # Equals `var(dim=0)`, five times faster.
        column_var = (centred.square_().mean(dim=0).double() - moved**2).clamp_min(0)
        occurs = sizes > 0
        sizes = sizes.clamp_min(1)
        mean = zeros.index_add(0, groups, column_mean) / sizes
        between = (column_mean - mean[groups]) ** 2
        var = zeros.index_add(0, groups, column_var + between) / sizes
        self.merge(mean, var, torch.where(occurs, float(rows.shape[0]), 0.0).double())
        self._refresh()

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._refresh()

    def _apply(self, fn: object, recurse: bool = True) -> ObservationNormaliser:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._refresh()
        return self


def to_shift_and_scale(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """Return float32 columns: the mean to subtract, then the factor to multiply by."""
    return mean.float(), (var + EPSILON).rsqrt().float()


class RewardScaler(RunningStatistics):
    """Divides rewards by the deviation of the discounted return (https://arxiv.org/abs/2005.12729,
    section 2).

    Rewards keep their mean: subtracting it would change which policy is best when episodes can end.
    """

    def __init__(self, gamma: float) -> None:
        super().__init__(var=0.0)
        self.gamma = gamma
        self.running: Tensor | None = None
        """`[B]`: discounted return of each account so far."""

    @torch.no_grad()
    def update(self, rewards: Tensor, done: Tensor) -> None:
        """Add rewards `[T, B]` to the discounted returns and their statistics; `done` restarts an
        account's return at 0."""
        running = torch.zeros_like(rewards[0]) if self.running is None else self.running
        keep = self.gamma * (~done).to(rewards.dtype)
        returns = []
        for reward, factor in zip(rewards.unbind(), keep.unbind(), strict=True):
            returns.append(running + reward)
            running = returns[-1] * factor
        self.running = running
        wide = torch.stack(returns).double()
        self.merge(wide.mean(), wide.var(correction=0), wide.numel())

    def forward(self, rewards: Tensor) -> Tensor:
        """Scale rewards, clipped to ±10; unchanged before the first update."""
        scale = torch.where(self.count > 0, (self.var + 1e-16).rsqrt(), 1.0)
        return (rewards * scale.to(rewards.dtype)).clamp(-CLIP, CLIP)
