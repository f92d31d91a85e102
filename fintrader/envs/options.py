"""What `TradingEnv.reset` may be told: which accounts, where they start, what they own, how long they trade."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fintrader.envs.settings import EnvSettings
from fintrader.errors import EnvError

RESET_OPTIONS = ("reset_mask", "start", "cash_usd", "shares", "episode_bars")


class Endowment(NamedTuple):
    """What every account begins an episode with."""

    cash: Tensor
    """`[B]` float64, USD."""
    shares: Tensor
    """`[B, N]`."""
    episode_bars: Tensor
    """`[B]` int64: bars of an episode; 0 to the window's end."""


def check_names(options: Mapping[str, Any]) -> None:
    """Raises EnvError for an option that does not exist."""
    unknown = sorted(set(options) - set(RESET_OPTIONS))
    if unknown:
        raise EnvError(f"unknown reset option {unknown[0]!r}; known: {', '.join(RESET_OPTIONS)}")


def endowment(
    options: Mapping[str, Any],
    settings: EnvSettings,
    shape: tuple[int, int],
    dtype: torch.dtype,
    device: torch.device,
    mask: Tensor | None = None,
    before: Endowment | None = None,
) -> Endowment:
    """The accounts' endowment `(B, N)`; with a mask only its accounts change, and only in what the options name.

    Raises EnvError for what is no number, and for a wrong shape or range.
    """
    count, assets = shape
    wanted: dict[str, tuple[Any, tuple[int, ...], torch.dtype]] = {
        "cash_usd": (settings.initial_cash_usd, (count,), torch.float64),
        "shares": (0.0, (count, assets), dtype),
        "episode_bars": (settings.episode_bars or 0, (count,), torch.int64),
    }
    values = []
    for name, (default, size, kind) in wanted.items():
        value = _numbers(name, options.get(name, default), kind, device)
        if name == "cash_usd" and not bool((value.isfinite() & (value >= 0)).all()):
            raise EnvError("options['cash_usd'] must be finite and not negative")
        if name == "episode_bars" and name in options and bool((value < 1).any()):
            raise EnvError("options['episode_bars'] must be at least 1")
        try:
            values.append(value.expand(size).contiguous())
        except RuntimeError:
            raise EnvError(f"options[{name!r}] has shape {tuple(value.shape)}, expected {size}") from None
    _check_shares(values[1], settings)
    if mask is not None and before is not None:
        masks = (mask, mask.unsqueeze(1), mask)
        values = [
            torch.where(chosen, new, old) if name in options else old
            for name, chosen, new, old in zip(wanted, masks, values, before, strict=True)
        ]
    return Endowment(*values)


def _check_shares(shares: Tensor, settings: EnvSettings) -> None:
    if not bool(shares.isfinite().all()):
        raise EnvError("options['shares'] must be finite")
    if not settings.short and bool((shares < 0).any()):
        raise EnvError("options['shares'] must not be negative in a long-only environment")
    if not settings.fractional and bool((shares != torch.trunc(shares)).any()):
        raise EnvError("options['shares'] must be whole numbers unless env.fractional is set")


def reset_mask(value: Any, count: int, device: torch.device) -> Tensor | None:
    """`[B]` bool or None. Raises EnvError unless it is `count` booleans, one of them true."""
    if value is None:
        return None
    mask = _tensor(value, device)
    if mask is None or mask.dtype != torch.bool or tuple(mask.shape) != (count,):
        raise EnvError(f"options['reset_mask'] must be {count} booleans")
    if not bool(mask.any()):
        raise EnvError("options['reset_mask'] selects no account")
    return mask


def start_bars(value: Any, count: int, num_bars: int, device: torch.device) -> Tensor | None:
    """`[B]` int64 or None. Raises EnvError unless it is one bar or `count`, each with a bar to follow."""
    if value is None:
        return None
    start = _numbers("start", value, torch.int64, device)
    if start.ndim > 1 or (start.ndim == 1 and start.shape[0] != count):
        raise EnvError(f"options['start'] must be a bar or {count} of them")
    if bool((start < 0).any()) or bool((start > num_bars - 2).any()):
        raise EnvError(f"options['start'] must lie in [0, {num_bars - 2}]")
    return start.expand(count)


def _tensor(value: Any, device: torch.device) -> Tensor | None:
    """None where torch can make nothing of it."""
    try:
        return torch.as_tensor(value, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _numbers(name: str, value: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Raises EnvError for what is no number, and for one with a fraction where bars are counted."""
    given = _tensor(value, device)
    if given is None or given.dtype == torch.bool or given.is_complex():
        shown = repr(value)
        raise EnvError(f"options[{name!r}] must be numbers, got {shown if len(shown) < 40 else type(value).__name__}")
    counts = given.is_floating_point() and not dtype.is_floating_point
    if counts and not bool((given.isfinite() & (given == given.trunc())).all()):
        raise EnvError(f"options[{name!r}] counts bars: give whole numbers")
    return given.to(dtype)
