"""Strategies that ask a policy: fintrader's own, a model of another library, or a callable."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, TypeGuard, cast, runtime_checkable

import gymnasium
import numpy as np
import torch
from torch import Tensor

from fintrader.backtesting.account import BacktestAccount, Float32, flatten_action
from fintrader.backtesting.desk import Desk
from fintrader.envs import EnvSettings, ObservationLayout, Policy
from fintrader.envs.adapters.gymnasium import to_numpy
from fintrader.errors import OWN_FAILURES, BacktestError

REPORT_BARS = 100
"""Bars between two reports of progress."""
REPEATS = 16
"""Number of first decisions that are asked for twice, to detect a policy that varies."""
Watch = Callable[[BacktestAccount], None]
"""An observer of an account at each decision; it changes nothing."""
_DIVERGED = "{}: the policy's action holds NaN or infinity; correct it or train anew"


@runtime_checkable
class Bindable(Protocol):
    """A policy, such as one from `load_policy`, that can be bound to one window's market rows.
    Modules of other packages may have a `bind` too, but not all three members."""

    layout: ObservationLayout
    meta: Mapping[str, Any]

    def bind(self, rows: Float32, /) -> Any:
        """Bind the policy to the rows `[T, W]` (`agents.fast.members.BoundNetworks`); None if
        impossible."""


class Predictor(Protocol):
    """A model of Stable-Baselines3, sb3-contrib or a similar library, or the model's `policy`."""

    observation_space: Any
    action_space: Any

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = False,
    ) -> tuple[Any, Any]:
        """Predict actions `[B, N]` for observations `[B, D]`; return the state for the next call
        too."""


def is_predictor(policy: object) -> TypeGuard[Predictor]:
    """Return True for a model that is asked by `predict(..., deterministic=True)`, not by a
    call."""
    if isinstance(policy, type) or not callable(getattr(policy, "predict", None)):
        return False
    try:
        known = inspect.signature(policy.predict).parameters  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return False
    spaces = hasattr(policy, "observation_space") and hasattr(policy, "action_space")
    return spaces and {"state", "episode_start", "deterministic"} <= set(known)


class _Predicted:
    """A predictor as the policy of one simulation: deterministic, with its state."""

    def __init__(
        self,
        model: Predictor,
        layout: ObservationLayout,
        settings: EnvSettings,
        name: str,
    ) -> None:
        """Wrap a model. Raises BacktestError unless it fits these observations and actions."""
        check_predictor(model, layout, settings, name)
        self._model = model
        self._name = name
        self._normaliser = find_normaliser(model)
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
            values = self._rescale(np.asarray(action, dtype=np.float32))
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            raise BacktestError(
                f"{self._name}: {type(self._model).__name__}.predict fails on an observation of "
                f"shape {tuple(rows.shape)} ({error})"
            ) from error
        self._begins = False
        return torch.from_numpy(values).to(obs.device)

    def _rescale(self, action: Float32) -> Float32:
        """Map actions from the model's own bounds to [-1, 1], as gymnasium's RescaleAction does."""
        space = self._model.action_space
        if not _has_unit_bounds(space):
            action = 2 * (action - space.low) / (space.high - space.low) - 1
        return action


class _Called:
    """A callable as the policy of one simulation; it may take and return tensors or arrays."""

    def __init__(self, policy: Callable[[Any], Any], num_assets: int, name: str) -> None:
        self._policy = policy
        self._num_assets = num_assets
        self._name = name
        self._forms: list[Callable[[Any], Any]] = [lambda obs: obs, to_numpy]

    def __call__(self, obs: Any) -> Tensor:
        """Call the policy with tensors, or with arrays if that fails, and keep the form that
        works."""
        errors = []
        for form in self._forms:
            try:
                action = self._policy(form(obs))
            except OWN_FAILURES as error:
                errors.append(error)
                continue
            self._forms = [form]
            return self._read(action)
        shape = tuple(obs.shape) if isinstance(obs, Tensor) else tuple(obs["private"].shape)
        missing = getattr(errors[0], "name", None)
        remedy = (
            f"it must return an action of shape (1, {self._num_assets}), see TradingEnv.layout for"
            " the columns"
        )
        if missing and hasattr(Desk, missing):
            remedy = "pass a rule that takes a Desk as fintrader.backtesting.OrderRule(rule)"
        raise BacktestError(
            f"{self._name} fails on an observation of shape {shape}"
            f" ({'; as an array: '.join(map(str, errors))}); {remedy}"
        ) from errors[0]

    def _read(self, action: Any) -> Tensor:
        try:
            values = np.array(to_numpy(action), dtype=np.float32)
        except (RuntimeError, ValueError, TypeError):
            raise BacktestError(
                f"{self._name}: the policy gave {type(action).__name__} for {self._num_assets}"
                " assets, not [1, N]; return the action alone, or pass the model itself"
            ) from None
        return torch.from_numpy(np.atleast_2d(values))


def find_normaliser(model: Predictor) -> Any:
    """Find the `VecNormalize` that a model was trained under; None if the model holds none.

    `normalize_obs` does not update its statistics.
    """
    getter = getattr(model, "get_vec_normalize_env", None)
    return getter() if callable(getter) else None


def list_caveats(policy: object) -> list[str]:
    """List the parts of a predictor's training that a backtest cannot show it, in words that
    complete "with ..."."""
    if not is_predictor(policy):
        return []
    # A stored on-policy model keeps its last observations, before and after a VecNormalize.
    names = ("_last_obs", "_last_original_obs")
    seen, raw = (getattr(policy, name, None) for name in names)  # type: Any, Any
    is_known = raw is not None and not hasattr(policy, "replay_buffer")
    is_lost = is_known and find_normaliser(policy) is None and not np.array_equal(seen, raw)
    caveats = {
        "observations without the VecNormalize that it was trained under, which the model no longer"
        " holds": is_lost,
        "observations without the gymnasium wrappers that it was trained under": any(
            ask_env(policy, "env_is_wrapped", gymnasium.ObservationWrapper)
        ),
    }
    return [caveat for caveat, applies in caveats.items() if applies]


def _has_unit_bounds(space: Any) -> bool:
    return bool((space.low == -1.0).all() and (space.high == 1.0).all())


def check_predictor(
    model: Predictor,
    layout: ObservationLayout,
    settings: EnvSettings,
    name: str,
) -> None:
    """Check that a model reads these observations and returns these actions. Raises
    BacktestError."""
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
            "the same lookback. VecFrameStack is not applied here: train "
            "with EnvSettings(lookback=...) instead"
        )
    space = model.action_space
    low = getattr(space, "low", None)
    high = getattr(space, "high", None)
    if low is None or high is None or getattr(space, "shape", None) != (layout.num_actions,):
        raise BacktestError(
            f"{name}: {kind} acts in {space}, and this market takes a number in [-1, 1] for each "
            f"of {layout.num_assets} assets; train it in an environment of this market"
        )
    rescaled = ask_env(model, "env_is_wrapped", gymnasium.wrappers.RescaleAction)
    if not _has_unit_bounds(space) and not (rescaled and all(rescaled)):
        raise BacktestError(
            f"{name}: {kind} acts between {np.min(low):g} and {np.max(high):g}, and this market "
            "takes numbers in [-1, 1]; train it without a wrapper that rescales actions, or pass a "
            "callable from observations to actions in [-1, 1]"
        )


def callable_policy(
    policy: Policy | Predictor,
    layout: ObservationLayout,
    settings: EnvSettings,
    name: str,
) -> Policy:
    """Wrap the policy as a callable on tensors for one simulation; the wrapper holds a predictor's
    state.

    A callable may take and return tensors or arrays. Raises BacktestError for a predictor that does
    not fit these observations and actions.
    """
    if is_predictor(policy):
        return _Predicted(policy, layout, settings, name)
    if isinstance(policy, Bindable):
        return cast(Policy, policy)
    return _Called(cast(Callable[[Any], Any], policy), layout.num_actions, name)


def ask_env(model: Any, method: str, subject: Any) -> Any:
    """Ask the vectorised environment that a predictor holds; an empty list if it holds none."""
    env: Any = model.get_env() if callable(getattr(model, "get_env", None)) else None
    if not callable(getattr(env, "has_attr", None)):
        return []
    try:
        return getattr(env, method)(subject)
    except (AttributeError, OSError, EOFError):  # the environment's processes have ended
        return []


class PolicyStrategy:
    """A strategy that asks a policy, bound to the window's rows if possible, else through
    observations."""

    def __init__(
        self,
        policy: Policy | Predictor,
        account: BacktestAccount,
        name: str,
        *,
        watch: Watch | None = None,
    ) -> None:
        """watch: called with the account before each decision."""
        self._watch = watch
        self._start = partial(callable_policy, policy, account.layout, account.settings, name)
        self._policy = self._start()
        self._account = account
        self._name = name
        self.bound: Any = None
        if isinstance(self._policy, Bindable) and account.rows is not None:
            self.bound = self._policy.bind(account.rows)
        self._first: list[tuple[Any, Float32]] = []

    @property
    def can_follow(self) -> bool:
        """True if `follow` can trade: the policy is bound and no decision is watched."""
        return self.bound is not None and self._watch is None

    def move(self, account: BacktestAccount) -> None:
        """Go on with another account, on a market of the same layout."""
        self._account = account
        if self.bound is not None:
            self.bound.watch(account.rows)

    def __call__(self, account: BacktestAccount) -> Float32:
        if self._watch is not None:
            self._watch(account)
        if self.bound is None:
            obs = account.observe()
            rows = self._check(self._policy(obs), 1)
            if len(self._first) < REPEATS:
                self._first.append((obs, rows))
        else:
            rows = self.act(account.bar, account.private()[None])
        row: Float32 = rows[0]
        return row

    def act(self, bar: int, private: Float32) -> Float32:
        """Ask for the actions `[B, N]` of accounts at `bar` with private parts `[B, A + N]`. Raises
        BacktestError for what cannot be traded."""
        if self.bound is not None:
            return self._check_finite(self.bound(bar, private))
        action = self._policy(self._account.show(bar, private))
        if len(action) == 1 < len(private):  # the policy decides for one account at a time
            shown = (self._account.show(bar, row[None]) for row in private)
            action = torch.cat([self._policy(obs) for obs in shown])
        return self._check(action, len(private))

    def gives_same(self) -> bool:
        """Return True if the policy, newly started, repeats the first decisions."""
        policy = self._start()
        with torch.no_grad():
            again = [(self._check(policy(obs), 1), action) for obs, action in self._first]
        return all(np.allclose(*pair, rtol=0.0, atol=1e-6) for pair in again)

    def follow(self) -> bool:
        """Trade on for about `REPORT_BARS` by the bound policy; return True at the account's
        end."""
        over = self._account.follow(self.bound, REPORT_BARS)
        self._check_finite(self.bound.action)
        return over

    def _check(self, action: object, count: int) -> Float32:
        layout = self._account.layout
        shape = (count, layout.num_actions)
        if not isinstance(action, Tensor) or action.shape != shape:
            found = tuple(action.shape) if isinstance(action, Tensor) else type(action).__name__
            times = layout.num_actions // layout.num_assets
            width = "N" if times == 1 else f"{times} N"
            raise BacktestError(
                f"{self._name}: the policy gave {found} for {layout.num_assets} assets, not"
                f" [{count}, {width}]"
            )
        return self._check_finite(flatten_action(action).reshape(shape))

    def _check_finite(self, action: Float32) -> Float32:
        # The sum comes first because it takes a fraction of the time.
        if not math.isfinite(action.sum()) and not np.isfinite(action).all():
            raise BacktestError(_DIVERGED.format(self._name))
        return action
