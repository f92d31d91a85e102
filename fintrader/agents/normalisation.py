"""Running statistics of observations and rewards; they are part of the policy and travel with it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from fintrader.envs.observation import Layout, statistic_groups

_CLIP = 10.0


class ObservationNormaliser(nn.Module):
    """Subtracts the mean and divides by the deviation of each column seen so far, clipped to ±10.

    Columns that mean the same thing for different assets share one statistic, so that permuting the assets
    permutes the result. Statistics merge by the parallel algorithm of Chan, Golub and LeVeque (1979), in float64.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    groups: Tensor
    sizes: Tensor

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        groups = statistic_groups(layout)
        number = int(groups.max()) + 1
        self.register_buffer("groups", groups, persistent=False)
        self.register_buffer("sizes", torch.bincount(groups, minlength=number).double(), persistent=False)
        self.register_buffer("mean", torch.zeros(number, dtype=torch.float64))
        self.register_buffer("var", torch.ones(number, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self._refresh()

    def _refresh(self) -> None:
        """Float32 copies per column: what `forward` reads, once a step."""
        shift, scale = shift_and_scale(self.mean, self.var)
        self._shift, self._scale = shift[self.groups], scale[self.groups]

    def forward(self, obs: Tensor) -> Tensor:
        """`[..., D]` raw to `[..., D]` standardised."""
        return ((obs - self._shift) * self._scale).clamp(-_CLIP, _CLIP)

    @torch.no_grad()
    def update(self, obs: Tensor) -> None:
        """Merge a batch `[..., D]` into the statistics."""
        rows = obs.reshape(-1, obs.shape[-1])
        number = rows.shape[0]
        zeros = torch.zeros_like(self.mean)
        # Offsets by the first row keep float32 sums exact enough for columns with a large mean.
        origin = rows[0]
        centred = rows - origin
        column_mean = centred.mean(dim=0).double() + origin.double()
        column_var = centred.var(dim=0, correction=0).double()
        mean = zeros.index_add(0, self.groups, column_mean) / self.sizes
        between = (column_mean - mean[self.groups]) ** 2
        var = zeros.index_add(0, self.groups, column_var + between) / self.sizes
        _merge(self, mean, var, number)
        self._refresh()

    def _load_from_state_dict(self, *args: object, **kwargs: object) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self._refresh()

    def _apply(self, fn: object, recurse: bool = True) -> ObservationNormaliser:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._refresh()
        return self


def _merge(own: ObservationNormaliser | RewardScaler, mean: Tensor, var: Tensor, number: int) -> None:
    """Take a batch of `number` values into running statistics."""
    total = own.count + number
    delta = mean - own.mean
    own.var.copy_((own.var * own.count + var * number + delta**2 * own.count * number / total) / total)
    own.mean.add_(delta * number / total)
    own.count.copy_(total)


def shift_and_scale(mean: Tensor, var: Tensor) -> tuple[Tensor, Tensor]:
    """What is subtracted from columns of these statistics, and what they are multiplied by then; float32."""
    return mean.float(), (var + 1e-8).rsqrt().float()


class RewardScaler(nn.Module):
    """Divides rewards by the deviation of the discounted return (https://arxiv.org/abs/2005.12729, section 2).

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
        return (rewards * scale.to(rewards.dtype)).clamp(-_CLIP, _CLIP)

    def to_json(self) -> dict[str, float | None]:
        """Plain JSON that `from_json` reads; None for numbers that are not finite."""
        numbers = {"gamma": self.gamma, **{name: float(buffer) for name, buffer in self.named_buffers()}}
        return {name: number if math.isfinite(number) else None for name, number in numbers.items()}

    @classmethod
    def from_json(cls, value: Mapping[str, float | None]) -> RewardScaler:
        """Scales as the stored one did. Raises KeyError or TypeError when something is missing."""
        numbers = {name: math.nan if number is None else float(number) for name, number in value.items()}
        scaler = cls(numbers["gamma"])
        for name, buffer in scaler.named_buffers():
            buffer.fill_(numbers[name])
        return scaler
