"""`TradingEnv`: thousands of accounts in one market, stepping at once, as a gymnasium `VectorEnv`
on torch tensors.

Time, orders, costs and rewards follow one contract: the observation at bar t uses bars <= t; orders
fill in bar t + 1 at its open (by default) and the account is marked at the close of t + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from fintrader.config import override
from fintrader.envs.account import Account, Advanced, advance, may_hold
from fintrader.envs.benchmark import lay_out
from fintrader.envs.episodes import (
    account_keys,
    begin,
    is_listed,
    observe,
    observe_private,
    select,
)
from fintrader.envs.fast.buffers import Generation, StepResult
from fintrader.envs.fast.step import FusedStep
from fintrader.envs.games import advance_games, find_ended
from fintrader.envs.market_view import MarketView, build_market_view
from fintrader.envs.observation import (
    MarketTable,
    ResetReturn,
    StateDict,
    StepReturn,
    observation_space,
)
from fintrader.envs.resting import advance_resting
from fintrader.envs.reward import make_reward
from fintrader.envs.settings import EnvSettings
from fintrader.envs.state import (
    Endowment,
    check_finite,
    check_form,
    check_names,
    check_values,
    check_wrappers,
    endowment,
    initial_shares,
    name_tensors,
    reset_mask,
    seed_numbers,
    start_bars,
    start_groups,
)
from fintrader.errors import EnvError, check_keywords
from fintrader.market.tensors import BarSpan, MarketTensors
from fintrader.memory import pickle_by_value, require_memory
from fintrader.seams import KERNELS, load_part
from fintrader.seeding import draw_seed

__all__ = ["EnvSettings", "Policy", "TradingEnv"]

Policy = Callable[[Tensor], Tensor]
"""Observation `[B, D]` float32 -> action `[B, N]` in [-1, 1], deterministic."""

ENGINES = ("auto", "torch", "fused", "triton")
_ARGUMENTS = ("device", "seed", "autoreset_mode", "record", "engine", "copy", "render_mode")
"""Keywords of `TradingEnv` that are no settings."""


def unpack(state: Account | Generation) -> Account:
    """Return the accounts of a state."""
    return state if isinstance(state, Account) else state.account


def name_engine(settings: EnvSettings, device: torch.device | str) -> str:
    """Name the engine of `engine="auto"`: `fused` (CPU kernel), `triton` (CUDA kernel), or `torch`
    with the reason why neither applies."""
    return choose_engine("auto", settings, torch.device(device), record=False)[0]


def choose_engine(
    engine: str, settings: EnvSettings, device: torch.device, *, record: bool
) -> tuple[str, Any]:
    """Choose the engine that steps the accounts: its name, as in `name_engine`, and its kernel's
    class, None for torch. Raises EnvError for an unknown engine, or one that does not apply."""
    if engine not in ENGINES:
        raise EnvError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    if engine == "torch":
        return "torch (by request)", None
    on_cuda = engine == "triton" or (engine == "auto" and device.type == "cuda")
    kernel = load_part(KERNELS, "triton") if on_cuda else FusedStep
    reason = kernel.find_obstacle(settings, device, record=record)
    if settings.num_traders > 1:
        reason = "traders share the price"
    if reason is None:
        return "triton" if on_cuda else "fused", kernel
    if engine == "auto":
        return f"torch ({reason})", None
    raise EnvError(f"the {engine} engine does not apply here: {reason}; use engine='auto'")


class TradingEnv(VectorEnv[Any, Any, Tensor]):
    """B accounts in one market.

    Observations `[B, D]` follow `layout`; actions `[B, N]` lie in [-1, 1]; rewards `[B]` are
    float32. With `observation: factored` an observation is `{"private": [B, A + N], "clock": [B]
    int64}`, and `layout.assemble(private, env.market_rows[clock])` is the flat one. Returned
    tensors are never written to again, but under SAME_STEP `info["final_obs"]` may be the
    observation itself: do not write to either.

    Info under SAME_STEP: `final_obs` `[B, D]` and `final_info`, valid where `_final_obs` `[B]` (=
    `_final_info`) is true; the other rows mean nothing. The keys are always there, because a check
    for finished accounts would wait for the device.

    With `record`, info also holds the fields of `account.Record` (decision and fill bar, shares
    traded, prices, costs, equity at each bar of the decision interval), which describe the step
    that was taken, also where SAME_STEP has reset the account since.

    Options of `reset` (all optional): `reset_mask` `[B]` bool (reset these accounts only), `start`
    (first bar), `cash_usd`, `shares` `[B, N]`, `episode_bars`: a number or one per account. `start`
    holds for this reset, the others until the next full reset; a later episode begins without the
    shares of symbols not listed at its start.
    """

    @check_keywords
    def __init__(
        self,
        market: MarketTensors | Path | str,
        settings: EnvSettings | None = None,
        *,
        num_envs: int | None = None,
        device: torch.device | str | None = None,
        seed: int | Sequence[int] | None = None,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        record: bool = False,
        engine: Literal["auto", "torch", "fused", "triton"] = "auto",
        copy: bool = True,
        render_mode: None = None,
        **changes: Any,
    ) -> None:
        """Make the environment of a market, or of a market file; `record` adds the fills to info;
        there is nothing to render. `changes` are fields of `EnvSettings` that override `settings`:
        `TradingEnv(market, cost_bps=5)`.

        `seed` begins the accounts' random streams, as in `reset`. Without one the system's entropy
        gives it (`np_random_seed`).

        `engine`: `torch` is `envs.account`, the readable reference; `fused` is one CPU kernel and
        `triton` one CUDA kernel with the same results, for most settings (the latter needs triton);
        `auto` takes a kernel if one applies, otherwise `torch`. If an action requires a gradient,
        `torch` takes the step. With `copy=False` the CUDA kernel, then a CUDA graph, overwrites the
        returned observation and reward in the next step, `account` and the flags two steps later,
        and `final_obs` has rows only for finished accounts. Copy results that must last longer.

        Raises ConfigError for a setting that is unknown or wrong, EnvError for an argument of the
        wrong type, an unavailable device, a window of one bar, an unknown turbulence column, or
        `fused` where the kernel does not apply.
        """
        settings = EnvSettings() if settings is None else settings
        if not isinstance(settings, EnvSettings):
            raise EnvError(
                "settings must be EnvSettings, such as EnvSettings(**values); got"
                f" {type(settings).__name__}"
            )
        settings = override(settings, changes, "TradingEnv", _ARGUMENTS)
        if not isinstance(market, MarketTensors | Path | str):
            raise EnvError(
                "market must be MarketTensors (fintrader.load_market makes one) or the path of a"
                f" market file, got {type(market).__name__}; of a split, pass one window, such as"
                " split.train"
            )
        try:
            self.autoreset_mode = AutoresetMode(autoreset_mode)
        except ValueError:
            modes = ", ".join(f"AutoresetMode.{mode.name}" for mode in AutoresetMode)
            raise EnvError(
                f"autoreset_mode must be one of {modes}; got {autoreset_mode!r}"
            ) from None
        if settings.num_traders > 1 and self.autoreset_mode is not AutoresetMode.SAME_STEP:
            raise EnvError(
                "traders that share a market begin the next game in the same step; leave"
                " autoreset_mode out"
            )
        count = settings.num_envs if num_envs is None else num_envs
        if not isinstance(count, int | np.integer) or isinstance(count, bool) or count < 1:
            raise EnvError(f"num_envs must be a whole number, at least 1; got {count!r}")
        if not isinstance(market, MarketTensors):
            market = MarketTensors.load(market)
        self.num_envs = int(count)
        self.num_traders = settings.num_traders
        """K: consecutive accounts that trade in one game."""
        self.settings = settings.model_copy(update={"num_envs": self.num_envs})
        self.market = market if device is None else market.to(_device(device))
        self.device = self.market.device
        self.metadata = {"autoreset_mode": self.autoreset_mode, "render_modes": []}
        self.render_mode = render_mode
        self.record = record
        self.layout = lay_out(market, settings)
        self._obs_dtype: torch.dtype = getattr(torch, settings.observation_dtype)
        self.reward = make_reward(settings)
        width = self.layout.width if settings.observation == "flat" else self.layout.private_width
        books = self.layout.num_assets * (1 + settings.resting_rows)
        # Two generations of accounts, an action, and two observations: the caller still holds the
        # last one.
        needed = self.num_envs * (
            2 * (14 * 8 + 4 + 8 * books) + 4 * self.layout.num_actions + 8 * width
        )
        require_memory(
            needed, self.device, f"{self.num_envs:,} accounts", "lower env.num_envs", EnvError
        )

        self.single_action_space = gymnasium.spaces.Box(
            -1.0, 1.0, (self.layout.num_actions,), np.float32
        )
        clocks = 0 if settings.observation == "flat" else self.market.num_bars
        self.single_observation_space = observation_space(self.layout, self._obs_dtype, clocks)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)

        self.wanted_engine = engine
        self.copies = copy
        self.engine, self._kernel = choose_engine(engine, settings, self.device, record=record)
        """Name of the engine that steps the accounts, as in `name_engine`."""
        self.view: MarketView = build_market_view(self.market, settings, self._obs_dtype)
        """The market as accounts read it; do not write to it."""
        self.start_groups = start_groups(settings, self.num_envs)
        seed = draw_seed() if seed is None else seed
        self._seed: int | list[int] | None = seed_numbers(seed, self.num_envs)
        self._key = self._make_keys(self._seed)
        self._endowment = self._endow({})
        self._state: Account | Generation | None = None

    @classmethod
    def evaluation(
        cls,
        market: MarketTensors,
        settings: EnvSettings | None = None,
        num_envs: int = 1,
        record: bool = True,
    ) -> TradingEnv:
        """Make an environment that plays the whole window once, from its first bar (autoreset is
        disabled)."""
        settings = (settings or EnvSettings()).model_copy(
            update={"start": "first", "episode_bars": None}
        )
        if settings.traders is not None:
            alone = settings.traders.model_copy(update={"teams": (1,)})
            settings = settings.model_copy(update={"traders": alone})
        return cls(
            market,
            settings,
            num_envs=num_envs,
            seed=0,  # decides nothing, since every account begins at the first bar
            autoreset_mode=AutoresetMode.DISABLED,
            record=record,
        )

    def with_settings(self, settings: EnvSettings, *, copy: bool | None = None) -> TradingEnv:
        """Make an environment like this one with other settings, before its first reset."""
        return type(self)(
            self.market,
            settings,
            num_envs=self.num_envs,
            seed=self._seed,
            autoreset_mode=self.autoreset_mode,
            record=self.record,
            engine=self.wanted_engine,
            copy=self.copies if copy is None else copy,
        )

    def __repr__(self) -> str:
        return f"TradingEnv of engine {self.engine}: {self.settings!r}\n{self.market!r}"

    @property
    def np_random_seed(self) -> int | tuple[int, ...]:  # type: ignore[override]
        """The seed that the accounts' random streams began with, or one for each account.

        -1 after `load_state_dict`, because a state holds no seed.
        """
        if self._seed is None:
            return -1
        return self._seed if isinstance(self._seed, int) else tuple(self._seed)

    @property
    def market_span(self) -> BarSpan:
        """The bars that agents learn from here."""
        return self.market.span

    @property
    def account(self) -> Account:
        """The present accounts. Raises EnvError before the first reset."""
        if self._state is None:
            raise EnvError("call reset() first: there are no accounts yet")
        return unpack(self._state)

    @property
    def equity(self) -> Tensor:
        """`[B]` float64, USD: cash + shares at the last close, less the option's value."""
        return self.account.equity

    @cached_property
    def _fused(self) -> Any:
        """The kernel: `FusedStep`, `TritonStep`, or None. Made for the first step, because an
        environment that is only converted for training needs no flat rows."""
        if self._kernel is None:
            return None
        resets = self.autoreset_mode is AutoresetMode.SAME_STEP
        reuse = {"reuse": not self.copies} if self.engine == "triton" else {}
        common = (self.view, self.settings, self.reward, self.num_envs)
        return self._kernel(*common, resets=resets, **reuse)

    @property
    def market_rows(self) -> Tensor:
        """The market's part of observations `[T, L*W]`, in their dtype; do not write to it. A copy
        of the features, made at first use."""
        return self.table.whole

    @property
    def table(self) -> MarketTable:
        """Rows of `market_rows`, assembled when they are read."""
        return self.view.table

    def __getstate__(self) -> Any:
        """Pickle without kernel, view and reward, which are made anew."""
        left_out = ("_fused", "view", "reward")
        parts = {name: part for name, part in vars(self).items() if name not in left_out}
        account = None if self._state is None else self.account
        return pickle_by_value(parts | {"_state": account})

    def __copy__(self) -> TradingEnv:
        return deepcopy(self)

    def __setstate__(self, state: Any) -> None:
        vars(self).update(state)
        self.reward = make_reward(self.settings)
        self.view = build_market_view(self.market, self.settings, self._obs_dtype)

    def state_dict(self) -> StateDict:
        """Collect the state for a bit-exact continuation (without market and settings)."""
        state = name_tensors(self.account, self._endowment, self._key)
        return {name: value.clone() for name, value in state.items()}

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from `state_dict`, on any device.

        Raises CheckpointError, changing nothing, if it does not fit or is impossible for accounts.
        """
        # A template: only its form is compared with the state, not its values.
        fresh = begin(self.view, self._key, self._key, *self._endowment, self.settings)
        if not self.settings.orders_rest and isinstance(state, Mapping):
            # States of older versions have no resting orders.
            state = {"account.resting": fresh.resting, **state}
        check_form(state, name_tensors(fresh, self._endowment, self._key))
        moved = {name: value.to(self.device, copy=True) for name, value in state.items()}
        # A ruined trader stays finished until its game ends.
        at_once = self.autoreset_mode is AutoresetMode.SAME_STEP and self.num_traders == 1
        check_values(moved, self.settings, num_bars=self.market.num_bars, resets_at_once=at_once)
        self._state = Account(*(moved[f"account.{name}"] for name in Account._fields))
        self._endowment = Endowment(*(moved[f"endowment.{name}"] for name in Endowment._fields))
        self._key = moved["key"]
        self._seed = None

    def render(self) -> Any:
        """Raise EnvError: there is no picture of an account."""
        raise EnvError("there is nothing to render; plot a market or a backtest: market.plot()")

    @check_keywords
    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> ResetReturn:
        """Begin episodes; obs `[B, D]`. A seed, or one for each account, restarts the accounts'
        random streams; without one the streams go on.

        Raises EnvError, changing nothing, for unknown options or ones of the wrong shape or range.
        """
        check_wrappers()
        options = {} if options is None else options
        check_names(options)
        options = dict(options)
        mask = reset_mask(options.pop("reset_mask", None), self.num_envs, self.device)
        start = start_bars(
            options.pop("start", None), self.num_envs, self.market.num_bars, self.device
        )
        previous = None if self._state is None else self.account
        if mask is not None and previous is None:
            raise EnvError("options['reset_mask'] needs accounts; call reset() without it first")
        key = self._key if seed is None else self._make_keys(seed)
        endow = self._endow(options, mask)
        episode = (
            previous.episode if previous is not None and seed is None else torch.zeros_like(key)
        )
        fresh = begin(self.view, key, episode, *endow, self.settings, start)
        chosen = torch.ones_like(fresh.finished) if mask is None else mask
        self._check_games(fresh, chosen)
        self._check_start(fresh, endow.shares if "shares" in options else None, chosen)
        self._check_restarts(endow)
        self._endowment = endow
        self._key = key if mask is None else torch.where(mask, key, self._key)
        if seed is not None and mask is None:
            self._seed = seed_numbers(seed, self.num_envs)
        self._state = fresh if mask is None or previous is None else select(mask, fresh, previous)
        return self._pack(self.observe_accounts(self._state), self._state.bar), {}

    def step(self, actions: Any) -> StepReturn:
        """Carry out one decision of every account: obs `[B, D]`, reward `[B]`, terminated `[B]`,
        truncated `[B]`, info.

        Raises EnvError, changing nothing, for actions of the wrong shape, dtype or device or with
        NaN, before the first reset, and for a finished account in DISABLED mode. On CUDA, where a
        check would wait for the device, a NaN counts as 0 and a finished account stays as it is,
        with reward 0.
        """
        if self._state is None:
            raise EnvError("call reset() first: there are no accounts yet")
        action = self._check_action(actions)
        mode = self.autoreset_mode
        is_checked = mode is AutoresetMode.DISABLED and self.device.type == "cpu"
        if is_checked and self.account.finished.any():
            raise EnvError(
                "an account's episode is over; reset it with options={'reset_mask': ...} before"
                " the next step"
            )
        if self._fused is None or action.requires_grad:
            step = self._step_torch(self.account, action)
        else:
            state = self._state
            old = self._fused.pack(state) if isinstance(state, Account) else state
            step = self._fused(old, self._endowment, self._key, action)
        if mode is AutoresetMode.NEXT_STEP:
            step = self._begin_finished(self.account, step)
        elif mode is AutoresetMode.DISABLED:
            step = self._hold_finished(self.account, step)
        self._state = step.state
        info = {} if step.record is None else step.record._asdict()
        if mode is AutoresetMode.SAME_STEP:
            final_obs = self._pack(step.final, step.final_bar)
            info |= {
                "final_obs": final_obs,
                "_final_obs": step.done,
                "final_info": dict(info),
                "_final_info": step.done,
            }
        obs = self._pack(step.obs, step.state.bar)
        return obs, step.reward, step.terminated, step.truncated, info

    def _step_torch(self, account: Account, action: Tensor) -> StepResult:
        """Step by `envs.account`; under SAME_STEP accounts whose episodes end begin the next."""
        carry_on: Callable[..., Advanced] = advance
        if self.settings.orders_rest:
            carry_on = advance_resting
        if self.num_traders > 1:
            carry_on = advance_games
        after, reward, terminated, truncated, record = carry_on(
            self.view, account, action, self.settings, self.reward, record=self.record
        )
        done = terminated | truncated
        final_bar = after.bar
        final = obs = self.observe_accounts(after)
        if self.autoreset_mode is AutoresetMode.SAME_STEP and may_hold(done):
            ended = find_ended(done, self.num_traders)
            after = select(ended, self.begin_next(after), after)
            obs = self.observe_accounts(after)
        reward = reward.float()
        return StepResult(after, reward, terminated, truncated, done, obs, final, final_bar, record)

    def _begin_finished(self, account: Account, step: StepResult) -> StepResult:
        """NEXT_STEP: instead of stepping accounts that finished in the previous step, begin their
        next episode."""
        began = account.finished
        if not may_hold(began):
            return step
        after = select(began, self.begin_next(account), unpack(step.state))
        return step._replace(
            state=after,
            reward=torch.where(began, 0.0, step.reward),
            terminated=step.terminated & ~began,
            truncated=step.truncated & ~began,
            obs=self.observe_accounts(after),
            record=None if step.record is None else step.record.without(began),
        )

    def _hold_finished(self, account: Account, step: StepResult) -> StepResult:
        """DISABLED: leave finished accounts unchanged (on a CPU `step` has refused them before)."""
        if self.device.type == "cpu":
            return step
        over = account.finished
        ruined = account.equity <= self.settings.ruin_fraction * account.first_equity
        after = select(over, account, unpack(step.state))
        return step._replace(
            state=after,
            reward=torch.where(over, 0.0, step.reward),
            terminated=torch.where(over, ruined, step.terminated),
            truncated=torch.where(over, ~ruined, step.truncated),
            obs=self.observe_accounts(after),
        )

    def _pack(self, obs: Tensor, clock: Tensor) -> Any:
        return obs if self.settings.observation == "flat" else {"private": obs, "clock": clock}

    def begin_next(self, account: Account) -> Account:
        """Begin the next episode of every account."""
        return begin(self.view, self._key, account.episode, *self._endowment, self.settings)

    def observe_accounts(self, account: Account) -> Tensor:
        """Observe `[B, D]`, or the private part `[B, A + N]` of a factored observation."""
        look = observe if self.settings.observation == "flat" else observe_private
        return look(self.view, account, self._obs_dtype)

    def _make_keys(self, seed: int | Sequence[int]) -> Tensor:
        """Make the accounts' keys: one for each account of a list, or one for each group."""
        numbers = seed_numbers(seed, self.num_envs)
        groups = self.start_groups
        if not isinstance(numbers, int):
            return account_keys(numbers, self.num_envs, self.device)
        traders = self.num_traders
        game = torch.arange(self.num_envs, device=self.device) // traders
        return account_keys(numbers, groups, self.device)[game * groups * traders // self.num_envs]

    def _endow(self, options: dict[str, Any], mask: Tensor | None = None) -> Endowment:
        shape = (self.num_envs, self.layout.num_assets)
        before = None if mask is None else self._endowment
        shares = initial_shares(self.settings, self.market.symbols).to(self.device)
        return endowment(options, self.settings, shape, shares, mask, before)

    def _check_start(self, account: Account, shares: Tensor | None, chosen: Tensor) -> None:
        """Check that the `chosen` accounts `[B]` start with positive equity and with the `shares`
        `[B, N]` of this reset; those of an earlier reset may have ended."""
        if shares is not None and ((account.shares != shares).any(1) & chosen).any():
            raise EnvError("options['shares'] holds a symbol that is not listed at the start bar")
        if ((account.equity <= 0) & chosen).any():
            raise EnvError(
                "an account must start with positive equity; set options['cash_usd'] or ['shares']"
            )

    def _check_games(self, account: Account, chosen: Tensor) -> None:
        """Check that the traders of each game begin and end at the same bars, and that all of them
        or none are `chosen` `[B]`."""
        clocks = torch.stack((account.bar, account.end_bar, chosen), 1)
        clocks = clocks.view(-1, self.num_traders, 3)
        if (clocks != clocks[:, :1]).any():
            raise EnvError(
                "the traders of a game begin and end together; give each of them the same seed,"
                " start, episode_bars and reset_mask"
            )

    def _check_restarts(self, endow: Endowment) -> None:
        """Check that no later episode can begin with an account that is worth nothing: without
        cash, and before any of its shares is listed."""
        owned = endow.shares[endow.cash == 0]
        if self.autoreset_mode is AutoresetMode.DISABLED or not len(owned):
            return
        starts = self.view.starts
        if self.settings.start == "bar":
            starts = torch.arange(self.market.num_bars - 1, device=self.device)
        there = is_listed(self.view, starts).float()
        if ((owned != 0).float() @ there.T == 0).any():
            raise EnvError(
                "without cash, a later episode may begin where none of options['shares'] is listed;"
                " set options['cash_usd'] above 0"
            )

    def _check_action(self, actions: Any) -> Tensor:
        """Convert actions to `[B, N]` float32; those that require a gradient stay as they are."""
        if isinstance(actions, np.ndarray):
            if actions.dtype.kind != "f":
                raise EnvError(f"actions must be floating point, got {actions.dtype}")
            with np.errstate(over="ignore"):  # numbers too large for float32 are infinite below
                actions = torch.from_numpy(np.ascontiguousarray(actions, dtype=np.float32))
        if not isinstance(actions, Tensor):
            raise EnvError(
                f"actions must be a torch tensor or a numpy array, got {type(actions).__name__}"
            )
        shape = (self.num_envs, self.layout.num_actions)
        if tuple(actions.shape) != shape:
            raise EnvError(f"actions have shape {tuple(actions.shape)}, expected {shape}")
        if not actions.is_floating_point() or actions.layout is not torch.strided:
            kind = actions.dtype if actions.layout is torch.strided else actions.layout
            raise EnvError(f"actions must be dense and floating point, got {kind}")
        if actions.device != self.device:
            raise EnvError(
                f"actions lie on {actions.device}, the environment on {self.device}; move them"
                " there"
            )
        differentiable = actions.requires_grad and torch.is_grad_enabled()
        action: Tensor = actions if differentiable else actions.detach().float()
        if self._fused is not None and not differentiable:
            return action  # kernels check by themselves
        return check_finite(action)


def _device(name: torch.device | str) -> torch.device:
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise EnvError(f"{name!r} is no device: {str(error).splitlines()[0]}") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise EnvError("torch sees no CUDA device here; use device='cpu'")
    return device
