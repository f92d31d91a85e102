"""Checks of the arguments of `TradingEnv.reset` (seeds, accounts, first bars, endowment) and of its
stored state."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from operator import index
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fintrader.envs.account import Account
from fintrader.envs.observation import StateDict, Tensors
from fintrader.envs.settings import MOST_CASH_USD, EnvSettings, TradingSettings
from fintrader.errors import CheckpointError, EnvError, suggest

AUTO_GROUPS = 16
"""Groups of `env.start_groups: auto`. With fewer, a rollout shows too little of the market; more
cost time."""
ARRAY_WRAPPERS = (
    "DictInfoToList",
    "FlattenObservation",
    "NormalizeObservation",
    "NormalizeReward",
    "RecordEpisodeStatistics",
    "RescaleObservation",
    "VectorizeTransformObservation",
)
"""Vector wrappers of gymnasium that fail on tensors."""
RESET_OPTIONS = ("reset_mask", "start", "cash_usd", "shares", "episode_bars")


class Endowment(NamedTuple):
    """Cash, shares and time of every account at the start of an episode."""

    cash: Tensor
    """`[B]` float64, USD."""
    shares: Tensor
    """`[B, N]`."""
    episode_bars: Tensor
    """`[B]` int64: bars of an episode; 0: it lasts until the window's end."""


def seed_numbers(seed: Any, count: int) -> int | list[int]:
    """Read a seed: a whole number, or `count` of them. Raises EnvError for any other."""
    try:
        return int(index(seed))
    except TypeError:
        pass
    try:
        numbers = [int(index(number)) for number in seed]
    except TypeError:
        raise EnvError(
            f"a seed is a whole number, or a list of one for each account; got {_shown(seed)}"
        ) from None
    if len(numbers) != count:
        raise EnvError(
            f"got {len(numbers)} seeds for {count} accounts; pass one number or one each"
        )
    return numbers


def start_groups(settings: EnvSettings, accounts: int) -> int:
    """Count the groups of accounts, or of games, that begin their episodes on the same bar.

    Raises EnvError unless the traders of a game, and the groups, divide the `accounts`.
    """
    games = count_games(settings, accounts)
    if settings.start_groups == "auto":
        return min(games, AUTO_GROUPS)
    groups = settings.start_groups
    if settings.start != "first" and games % groups:
        nearest = max(number for number in range(1, min(groups, games) + 1) if games % number == 0)
        kind = "accounts" if games == accounts else "games"
        raise EnvError(
            f"env.start_groups is {groups}, which does not divide {games} {kind}; set it to"
            f" {nearest}, or to auto"
        )
    return min(groups, games)


def count_games(settings: TradingSettings, accounts: int) -> int:
    """Count the games that the `accounts` play. Raises EnvError unless the traders divide them."""
    traders = settings.num_traders
    games, rest = divmod(accounts, traders)
    if rest or not games:
        raise EnvError(
            f"env.num_envs is {accounts}, no multiple of the {traders} traders of a game; set it to"
            f" {max(games, 1) * traders}"
        )
    return games


def check_names(options: Any) -> None:
    """Check that options are a mapping with known names. Raises EnvError."""
    if not isinstance(options, Mapping):
        raise EnvError(f"reset options are a dict, such as {{'start': 0}}; got {_shown(options)}")
    unknown = [name for name in options if name not in RESET_OPTIONS]
    if unknown:
        raise EnvError(f"unknown reset option {unknown[0]!r}; known: {', '.join(RESET_OPTIONS)}")


def check_wrappers() -> None:
    """Check that none of `ARRAY_WRAPPERS` is calling, two frames above. Raises EnvError, since the
    wrapper itself would fail with an error about arrays that names no remedy."""
    frame = sys._getframe(2).f_back
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("gymnasium."):
        name = type(frame.f_locals.get("self")).__name__
        if name in ARRAY_WRAPPERS:
            raise EnvError(
                f"{name} needs arrays: {name}(NumpyVectorEnv(TradingEnv(market,"
                " autoreset_mode=AutoresetMode.NEXT_STEP))), from fintrader.envs.adapters.gymnasium"
            )
        frame = frame.f_back


def initial_shares(settings: EnvSettings, symbols: Sequence[str]) -> Tensor:
    """Shares `[N]` float64 that episodes begin with. Raises EnvError for an unknown symbol, and for
    shares that these accounts cannot hold."""
    amounts = settings.initial_shares
    if not isinstance(amounts, Mapping):
        amounts = dict.fromkeys(symbols, amounts)
    for name in amounts:
        if name not in symbols:
            raise EnvError(f"env.initial_shares: no symbol {name!r}; {suggest(name, symbols)}")
    shares = torch.tensor([amounts.get(name, 0.0) for name in symbols], dtype=torch.float64)
    _check_shares(shares, settings, "env.initial_shares")
    return shares


def endowment(
    options: Mapping[str, Any],
    settings: EnvSettings,
    shape: tuple[int, int],
    shares: Tensor,
    mask: Tensor | None = None,
    before: Endowment | None = None,
) -> Endowment:
    """Make the endowment of accounts and assets `(B, N)`, with `shares` `[N]` unless the options
    name others; with a mask, only the masked accounts change, and only in the options that are set.

    Raises EnvError unless all values are numbers of the right shape and range.
    """
    count, assets = shape
    wanted: dict[str, tuple[Any, tuple[int, ...], torch.dtype]] = {
        "cash_usd": (settings.initial_cash_usd, (count,), torch.float64),
        "shares": (shares, (count, assets), torch.float64),
        "episode_bars": (settings.episode_bars or 0, (count,), torch.int64),
    }
    values = []
    for name, (default, size, kind) in wanted.items():
        value = _numbers(name, options.get(name, default), kind, shares.device)
        if name == "cash_usd" and not (value.isfinite() & (value >= 0)).all():
            raise EnvError("options['cash_usd'] must be finite and not negative")
        if name == "cash_usd" and (value > MOST_CASH_USD).any():
            raise EnvError(
                f"options['cash_usd'] must be at most {MOST_CASH_USD:,.0f}: larger sums are not"
                " exact"
            )
        if name == "episode_bars" and name in options and (value < 1).any():
            raise EnvError("options['episode_bars'] must be at least 1")
        try:
            values.append(value.expand(size).contiguous())
        except RuntimeError:
            raise EnvError(
                f"options[{name!r}] has shape {tuple(value.shape)}, expected {size}"
            ) from None
    _check_shares(values[1], settings, "options['shares']")
    if mask is not None and before is not None:
        masks = (mask, mask.unsqueeze(1), mask)
        values = [
            torch.where(chosen, new, old) if name in options else old
            for name, chosen, new, old in zip(wanted, masks, values, before, strict=True)
        ]
    return Endowment(*values)


def _check_shares(shares: Tensor, settings: EnvSettings, name: str) -> None:
    if not shares.isfinite().all():
        raise EnvError(f"{name} must be finite")
    if not settings.short and (shares < 0).any():
        raise EnvError(f"{name} must not be negative in a long-only environment")
    if not settings.fractional and (shares != torch.trunc(shares)).any():
        raise EnvError(f"{name} must be whole numbers unless env.fractional is set")


def reset_mask(value: Any, count: int, device: torch.device) -> Tensor | None:
    """Read a mask `[B]` bool or None. Raises EnvError unless it is `count` booleans, at least one
    true."""
    if value is None:
        return None
    mask = _tensor(value, device)
    if mask is None or mask.dtype != torch.bool or tuple(mask.shape) != (count,):
        raise EnvError(f"options['reset_mask'] must be {count} booleans")
    if not mask.any():
        raise EnvError("options['reset_mask'] selects no account")
    return mask


def start_bars(value: Any, count: int, num_bars: int, device: torch.device) -> Tensor | None:
    """Read first bars `[B]` int64 or None. Raises EnvError unless it is one bar or `count`, each
    with a later bar."""
    if value is None:
        return None
    start = _numbers("start", value, torch.int64, device)
    if start.ndim > 1 or (start.ndim == 1 and start.shape[0] != count):
        raise EnvError(f"options['start'] must be a bar or {count} of them")
    if (start < 0).any() or (start > num_bars - 2).any():
        raise EnvError(f"options['start'] must lie in [0, {num_bars - 2}]")
    return start.expand(count)


def check_finite(action: Tensor) -> Tensor:
    """Check that actions are finite. On CUDA, where a check would wait for the device, NaN counts
    as 0. Raises EnvError."""
    if action.device.type != "cpu":
        return torch.nan_to_num(action, nan=0.0)
    if not action.isfinite().all():
        raise EnvError("actions contain NaN or infinity; check the policy's output")
    return action


def _tensor(value: Any, device: torch.device) -> Tensor | None:
    """Convert to a tensor; None if torch cannot."""
    try:
        return torch.as_tensor(value, device=device)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def _numbers(name: str, value: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Convert an option to numbers. Raises EnvError unless it is numeric, and whole if it counts
    bars."""
    numbers = _tensor(value, device)
    if numbers is None or numbers.dtype == torch.bool or numbers.is_complex():
        raise EnvError(f"options[{name!r}] must be numbers, got {_shown(value)}")
    counts = numbers.is_floating_point() and not dtype.is_floating_point
    if counts and not (numbers.isfinite() & (numbers == numbers.trunc())).all():
        raise EnvError(f"options[{name!r}] counts bars: give whole numbers")
    return numbers.to(dtype)


def _shown(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) < 40 else type(value).__name__


def name_tensors(account: Account, endow: Endowment, key: Tensor) -> StateDict:
    """Name the tensors of a state."""
    state = {f"account.{name}": value for name, value in account._asdict().items()}
    state |= {f"endowment.{name}": value for name, value in endow._asdict().items()}
    return state | {"key": key}


def check_form(state: Tensors, like: Tensors) -> None:
    """Check that a state has the names, dtypes and shapes of another. Raises CheckpointError."""
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"a state is the dict that state_dict() returned, not {type(state).__name__}"
        )
    if set(state) != set(like):
        odd = ", ".join(sorted(set(state) ^ set(like)))
        raise CheckpointError(f"this is no state of a TradingEnv: {odd} missing or unknown")
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(
                f"{name} is no tensor but {type(value).__name__}; pass what state_dict() returned"
            )
        wanted = like[name]
        if value.shape != wanted.shape:
            raise CheckpointError(
                f"{name} has shape {tuple(value.shape)}, this environment needs"
                f" {tuple(wanted.shape)}"
            )
        if value.dtype != wanted.dtype:
            raise CheckpointError(f"{name} is {value.dtype}, this environment needs {wanted.dtype}")
        if value.device.type == "meta":
            raise CheckpointError(f"{name} is on the meta device and has no values")


def check_values(
    state: Tensors, settings: EnvSettings, *, num_bars: int, resets_at_once: bool
) -> None:
    """Check that accounts in a window of T bars can continue from `state`. Raises CheckpointError.

    Accounts may owe and be short only with `short`; shares may have fractions only with
    `fractional`. Equity may be any finite number, because a ruined account keeps its equity until
    it is reset. `resets_at_once` is SAME_STEP, which leaves no account finished.
    """
    start, bar, end = (state[f"account.{name}"] for name in ("start_bar", "bar", "end_bar"))
    if (end >= num_bars).any():
        raise CheckpointError(
            "the state belongs to a longer market; load it into an environment on that one"
        )
    if ((start < 0) | (start > bar) | (bar > end)).any():
        raise _broken("an account is outside its episode")
    finished = state["account.finished"]
    if ((bar == end) & ~finished).any():
        raise _broken("an account is at its episode's end but not finished")
    if resets_at_once and finished.any():
        raise CheckpointError(
            "the state holds finished accounts, which autoreset mode SAME_STEP never leaves; "
            "load it into an environment of the mode it was made in"
        )
    for name, value in state.items():
        if value.is_floating_point() and not value.isfinite().all():
            raise _broken(f"{name} holds NaN or infinity")
    if (state["endowment.cash"] < 0).any() or (state["endowment.episode_bars"] < 0).any():
        raise _broken("the accounts' endowment is negative")
    for name in ("account.shares", "endowment.shares"):
        if not settings.fractional and (state[name] != state[name].trunc()).any():
            raise CheckpointError(
                f"{name} has fractions; load it into an environment with env.fractional"
            )
    if not settings.short:
        for name in ("account.cash", "account.shares", "endowment.shares"):
            if (state[name] < 0).any():
                raise CheckpointError(
                    f"{name} is negative; load it into an environment with env.short"
                )


def _broken(fault: str) -> CheckpointError:
    return CheckpointError(f"the stored state is broken: {fault}; load another one")
