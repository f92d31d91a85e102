"""Any policy over any window, one account, float64, by the environment's own ledger.

result = simulate(load_policy(path), market.split().test, settings, name="ensemble")
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol, TypeGuard, cast, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fintrader.backtesting.account import Action, BacktestAccount, Holdings
from fintrader.backtesting.result import BacktestResult
from fintrader.envs import EnvSettings, ObservationLayout, Policy
from fintrader.errors import BacktestError
from fintrader.market.tensors import BarSpan, MarketTensors
from fintrader.progress import SILENT, Progress

Decide = Callable[[BacktestAccount], "Action | Holdings | None"]
"""What a strategy does at a decision: an action `[1, N]` or `[N]`, the holdings it wants, or None
to order nothing."""
Watch = Callable[[BacktestAccount], None]
"""Looks at an account that stands at a decision; changes nothing."""
Due = Callable[[int], int]
"""The first bar after a bar at which a strategy wants to be asked (again)."""
REPORT_BARS = 100
"""Bars between two words of progress."""
Bound = Callable[[int, "NDArray[np.float32]"], "NDArray[np.float32]"]
"""`bound(bar, private [A + N]) -> action [N]`: a policy laid out for one window's market rows."""
_DIVERGED = "{}: the policy's action holds NaN or infinity; its networks have diverged"


@runtime_checkable
class Bindable(Protocol):
    """A policy that can be laid out for one window's market rows, such as those that `load_policy`
    returns."""

    def bind(self, rows: NDArray[np.float32], /) -> Bound | None:
        """The policy over the rows `[T, W]`; None where it cannot be done."""


class Predictor(Protocol):
    """A model of Stable-Baselines3, sb3-contrib or the same kind, or such a model's `policy`."""

    observation_space: Any
    action_space: Any

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[Any, Any]:
        """Actions `[B, N]` for observations `[B, D]`, and the state to be given with the next."""


def is_predictor(policy: object) -> TypeGuard[Predictor]:
    """True for what is to be asked by `predict(..., deterministic=True)` and not by a call."""
    if isinstance(policy, type) or not callable(getattr(policy, "predict", None)):
        return False
    try:
        known = inspect.signature(policy.predict).parameters  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return False
    spaces = hasattr(policy, "observation_space") and hasattr(policy, "action_space")
    return spaces and {"state", "episode_start", "deterministic"} <= set(known)


class _Predicted:
    """A predictor as the policy of one simulation: deterministic, its state carried on."""

    def __init__(
        self,
        model: Predictor,
        layout: ObservationLayout,
        settings: EnvSettings,
        name: str,
    ) -> None:
        """Raises BacktestError for a model that does not fit these observations and actions."""
        check_predictor(model, layout, settings, name)
        self._model = model
        self._name = name
        self._normaliser = normaliser_of(model)
        self._dtype = model.observation_space.dtype
        self._state: Any = None
        self._begins = True

    def __call__(self, obs: Tensor) -> Tensor:
        rows = obs.detach().to("cpu", torch.float32).numpy().astype(self._dtype)
        starts = np.full(len(rows), self._begins)
        try:
            if self._normaliser is not None:
                rows = self._normaliser.normalize_obs(rows)
            asked = {"state": self._state, "episode_start": starts, "deterministic": True}
            action, self._state = self._model.predict(rows, **asked)
            values = np.asarray(action, dtype=np.float32)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            raise BacktestError(
                f"{self._name}: {type(self._model).__name__}.predict fails on an observation of "
                f"shape {tuple(rows.shape)} ({error})"
            ) from error
        self._begins = False
        return torch.from_numpy(values).to(obs.device)


def normaliser_of(model: Predictor) -> Any:
    """The `VecNormalize` that a model was trained under, as far as it holds it; None elsewhere.

    Its statistics stay as they are: `normalize_obs` does not update them.
    """
    found = getattr(model, "get_vec_normalize_env", None)
    return found() if callable(found) else None


def check_predictor(
    model: Predictor,
    layout: ObservationLayout,
    settings: EnvSettings,
    name: str,
) -> None:
    """Raises BacktestError unless the model reads these observations and gives these actions."""
    kind = type(model).__name__
    if settings.observation != "flat":
        raise BacktestError(
            f"{name}: {kind} reads flat observations; give settings with observation='flat', not "
            f"{settings.observation!r}"
        )
    shape = getattr(model.observation_space, "shape", None)
    if shape != (layout.width,):
        raise BacktestError(
            f"{name}: {kind} reads observations of shape {shape}, and this market shows "
            f"({layout.width},); use a market with the symbols and features it was trained on, and "
            "the same lookback. Frames that VecFrameStack put together are not shown here: train "
            "with EnvSettings(lookback=...) in its place"
        )
    space = model.action_space
    low = getattr(space, "low", None)
    high = getattr(space, "high", None)
    if low is None or high is None or getattr(space, "shape", None) != (layout.num_assets,):
        raise BacktestError(
            f"{name}: {kind} acts in {space}, and this market takes a number in [-1, 1] for each "
            f"of {layout.num_assets} assets; train it in an environment of this market"
        )
    if bool((np.asarray(low) < -1.0).any()) or bool((np.asarray(high) > 1.0).any()):
        raise BacktestError(
            f"{name}: {kind} acts between {np.min(low):g} and {np.max(high):g}, and this market "
            "takes numbers in [-1, 1]; train it without a wrapper that rescales actions"
        )


def callable_policy(
    policy: Policy | Predictor,
    layout: ObservationLayout,
    settings: EnvSettings,
    name: str,
) -> Policy:
    """The policy as a callable for one simulation, a predictor with a state of its own.

    Raises BacktestError for a predictor that does not fit these observations and actions.
    """
    if is_predictor(policy):
        return _Predicted(policy, layout, settings, name)
    return cast(Policy, policy)


def simulate(
    policy: Policy | Predictor,
    market: MarketTensors,
    settings: EnvSettings,
    *,
    name: str = "policy",
    progress: Progress | None = None,
    note: str = "",
    watch: Watch | None = None,
) -> BacktestResult:
    """Trade the whole of `market` (a window of it, usually) with `policy`, decisions, fills and
    costs as `settings`.

    The account is to the last bit the one that `TradingEnv` would step; the policy is bound to the
    window's rows where it can be, and its actions agree to float32 rounding. A model of
    Stable-Baselines3 is asked deterministically, on observations that its VecNormalize has
    normalised where it holds one. `note` is kept beside the result; without one, such a model says
    how it was asked, and a policy on other symbols than it was trained on that it is. `watch` is
    shown the account at each decision. Raises BacktestError for a window of fewer than two bars and
    for an output that cannot be traded.
    """
    account = open_account(market, settings, name)
    decide = ask(policy, account, name)
    if watch is not None:
        decide = _watched(decide, watch)
    done = trade(decide, account, name=name, progress=progress, note=note or origin(policy))
    is_seen = any(span.overlaps(market.span) for span in seen_by(policy))
    return replace(done, is_seen=is_seen)


def _watched(decide: Decide, watch: Watch) -> Decide:
    def seen(account: BacktestAccount) -> Action | Holdings | None:
        watch(account)
        return decide(account)

    return seen


def seen_by(policy: object) -> list[BarSpan]:
    """The bars that a policy was trained or chosen on, as far as it says.

    A trained policy has them in its meta, and a predictor in the environment that it still holds.
    """
    if is_predictor(policy):
        return _trained_in(policy)
    meta = getattr(policy, "meta", None)
    stored = meta.get("seen", ()) if isinstance(meta, Mapping) else ()
    return [BarSpan.from_json(one) for one in stored]


def _trained_in(model: Any) -> list[BarSpan]:
    env: Any = model.get_env() if callable(getattr(model, "get_env", None)) else None
    if not callable(getattr(env, "has_attr", None)):
        return []
    try:
        # Asked first: an attribute that is not there would end the process of an account.
        known = env.has_attr("market_span")
        return list(dict.fromkeys(env.get_attr("market_span"))) if known else []
    except (AttributeError, OSError, EOFError):  # its processes have ended
        return []


def origin(policy: object) -> str:
    """What a predictor, or a policy on other symbols than its own, says of itself; else empty."""
    if is_predictor(policy):
        seen = "as they are (it holds no VecNormalize)"
        if normaliser_of(policy) is not None:
            seen = "normalised by its VecNormalize"
        return f"asked deterministically, observations {seen}"
    symbols = getattr(policy, "meta", {}).get("transfer")
    if not symbols:
        return ""

    def some(symbols: list[str]) -> str:
        return (
            f"{len(symbols)} symbols"
            f" ({', '.join(symbols[:4])}{', ...' if len(symbols) > 4 else ''})"
        )

    return f"trained on {some(symbols['trained_on'])}, traded on {some(symbols['traded_on'])}"


def ask(policy: Policy | Predictor, account: BacktestAccount, name: str) -> Decide:
    """How this policy is asked for this account: bound to the window where both can, through
    observations elsewhere."""
    policy = callable_policy(policy, account.layout, account.settings, name)
    rows = account.rows if isinstance(policy, Bindable) else None
    bound = policy.bind(rows) if isinstance(policy, Bindable) and rows is not None else None
    if bound is not None:
        return _ask_bound(bound, account, name)

    def decide(account: BacktestAccount) -> Tensor:
        action = policy(account.observe())
        if not isinstance(action, Tensor) or action.shape != (1, account.layout.num_assets):
            shape = tuple(action.shape) if isinstance(action, Tensor) else type(action).__name__
            raise BacktestError(
                f"{name}: the policy gave {shape} for an account of {account.layout.num_assets}"
                " assets"
            )
        if not bool(action.isfinite().all()):
            raise BacktestError(_DIVERGED.format(name))
        return action.detach()

    return decide


def _ask_bound(bound: Bound, account: BacktestAccount, name: str) -> Decide:
    def decide(_: BacktestAccount) -> NDArray[np.float32]:
        action = bound(account.bar, account.private())
        if not math.isfinite(
            action.sum()
        ):  # actions lie in [-1, 1]: their sum is finite where all of them are
            raise BacktestError(_DIVERGED.format(name))
        return action

    return decide


def open_account(market: MarketTensors, settings: EnvSettings, name: str) -> BacktestAccount:
    """An account at the window's first bar. Raises BacktestError for a window of fewer than two
    bars."""
    if market.num_bars < 2:
        raise BacktestError(
            f"{name}: the window holds {market.num_bars} bar(s); a backtest needs at least two"
        )
    return BacktestAccount(market, settings)


def trade(
    decide: Decide,
    account: BacktestAccount,
    *,
    name: str,
    due: Due | None = None,
    progress: Progress | None = None,
    note: str = "",
) -> BacktestResult:
    """Run an account to the end of its window, asking `decide` at every decision (`due`: at bar 0
    and then)."""
    last = account.market.num_bars - 1
    with (
        torch.no_grad(),
        (progress or SILENT).task(f"backtest {name}", total=last, unit="bars") as task,
    ):
        over = False
        reported = 0
        while not over:
            action = decide(account)
            over = account.act(action, None if due is None else due(account.bar) - account.bar)
            if account.bar - reported >= REPORT_BARS or over:
                reported = account.bar
                task.update(float(reported))
    return account.trade_log.result(name, note)
