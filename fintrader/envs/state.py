"""What a stored state of a `TradingEnv` must hold before an environment continues from it.

The kernels address prices by the numbers in it without looking again, so a bar outside the window would read memory
that is not theirs. Everything is looked at before anything is taken over.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fintrader.envs.ledger import Account
from fintrader.envs.options import Endowment
from fintrader.envs.settings import EnvSettings
from fintrader.errors import CheckpointError

ACCOUNT = tuple(f"account.{name}" for name in Account._fields)
ENDOWMENT = tuple(f"endowment.{name}" for name in Endowment._fields)

_WIDTH = {"account.memory": 2}
_FLOATS = (torch.float64,)
_DTYPES = {
    "account.finished": (torch.bool,),
    # The environment's precision decides how shares are kept; whole ones are exact in both.
    "account.shares": (torch.float32, torch.float64),
    "endowment.shares": (torch.float32, torch.float64),
    **{f"account.{name}": (torch.int64,) for name in ("bar", "start_bar", "end_bar", "episode")},
    "endowment.episode_bars": (torch.int64,),
    "key": (torch.int64,),
}


def check_form(state: Mapping[str, Tensor], num_envs: int, num_assets: int) -> None:
    """Raises CheckpointError unless `state` has the names, dtypes and shapes of B accounts and N assets."""
    wanted = {*ACCOUNT, *ENDOWMENT, "key"}
    if set(state) != wanted:
        odd = ", ".join(sorted(set(state) ^ wanted))
        raise CheckpointError(f"this is no state of a TradingEnv: {odd} missing or unknown")
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise CheckpointError(f"{name} is no tensor but {type(value).__name__}; pass what state_dict() returned")
        width = num_assets if name.endswith(".shares") else _WIDTH.get(name)
        shape = (num_envs,) if width is None else (num_envs, width)
        if tuple(value.shape) != shape:
            raise CheckpointError(f"{name} has shape {tuple(value.shape)}, this environment needs {shape}")
        allowed = _DTYPES.get(name, _FLOATS)
        if value.dtype not in allowed:
            raise CheckpointError(f"{name} is {value.dtype}, this environment needs {allowed[-1]}")
        if value.device.type == "meta":
            raise CheckpointError(f"{name} lies on the meta device and has no values")


def check_values(state: Mapping[str, Tensor], settings: EnvSettings, *, num_bars: int, resets_at_once: bool) -> None:
    """Raises CheckpointError unless accounts in a window of T bars can continue from `state`, all on one device.

    Accounts may owe and be short only with `short`; only shares of a `fractional` environment may have fractions.
    Equity may be anything finite: a ruined account's is, and it is there until the account is reset.
    `resets_at_once` is SAME_STEP: no account is ever left finished.
    """
    start, bar, end = (state[f"account.{name}"] for name in ("start_bar", "bar", "end_bar"))
    if bool((end >= num_bars).any()):
        raise CheckpointError("the state belongs to a longer market; load it into an environment on that one")
    if bool(((start < 0) | (start > bar) | (bar > end)).any()):
        raise _broken("an account stands outside its episode")
    finished = state["account.finished"]
    if bool(((bar == end) & ~finished).any()):
        raise _broken("an account stands at its episode's end and is not finished")
    if resets_at_once and bool(finished.any()):
        raise CheckpointError(
            "the state holds finished accounts, which autoreset mode SAME_STEP never leaves; "
            "load it into an environment of the mode it was made in"
        )
    for name, value in state.items():
        if value.is_floating_point() and not bool(value.isfinite().all()):
            raise _broken(f"{name} holds NaN or infinity")
    if bool((state["endowment.cash"] < 0).any()) or bool((state["endowment.episode_bars"] < 0).any()):
        raise _broken("the accounts' endowment is negative")
    for name in ("account.shares", "endowment.shares"):
        if not settings.fractional and bool((state[name] != state[name].trunc()).any()):
            raise CheckpointError(f"{name} has fractions; load it into an environment with env.fractional")
    if not settings.short:
        for name in ("account.cash", "account.shares", "endowment.shares"):
            if bool((state[name] < 0).any()):
                raise CheckpointError(f"{name} is negative; load it into an environment with env.short")


def _broken(what: str) -> CheckpointError:
    return CheckpointError(f"the stored state is broken: {what}; continue from another one")
