"""`TradingEnv`: thousands of accounts in one market, stepping at once, as a gymnasium `VectorEnv` on torch tensors.

Time, orders, costs and rewards follow one contract: the observation at bar t uses bars <= t; orders fill in bar
t + 1 at its open (by default) and the account is marked at the close of t + 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from fintrader.data.tensors import MarketTensors
from fintrader.envs.core import advance, begin, market_view, mix, observe, select
from fintrader.envs.ledger import Account
from fintrader.envs.observation import ObservationLayout
from fintrader.envs.reward import make_reward
from fintrader.envs.settings import EnvSettings
from fintrader.errors import CheckpointError, EnvError
from fintrader.seeding import derive

__all__ = ["EnvSettings", "Policy", "TradingEnv"]

Policy = Callable[[Tensor], Tensor]
"""Observation `[B, D]` float32 -> action `[B, N]` in [-1, 1], deterministic."""

_GOLDEN = -7046029254386353131
_OPTIONS = ("reset_mask", "start", "cash_usd", "shares", "episode_bars")


class TradingEnv(VectorEnv[Tensor, Any, Tensor]):
    """B accounts in one market.

    Observations `[B, D]` follow `layout`; actions `[B, N]` lie in [-1, 1]; rewards `[B]` are float32. Returned
    tensors are never written to again, except that `info["final_obs"]` may be the observation itself.

    With `record`, info also holds the fields of `core.Record` (decision and fill bar, shares traded, prices, costs,
    equity at each bar of the decision interval), which describe the step that was taken, also where SAME_STEP has
    reset the account since.

    Options of `reset` (all optional): `reset_mask` `[B]` bool (reset these accounts only), `start` (first bar),
    `cash_usd`, `shares` `[B, N]`, `episode_bars`: a number or one per account. `start` holds for this reset, the
    others until the next full reset.
    """

    def __init__(
        self,
        market: MarketTensors,
        settings: EnvSettings | None = None,
        *,
        num_envs: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        autoreset_mode: AutoresetMode = AutoresetMode.SAME_STEP,
        record: bool = False,
    ) -> None:
        """`dtype` is the precision of prices and shares (cash is float64 always); `record` adds the fills to info.

        Raises EnvError for a window of one bar, a bad dtype or an unknown turbulence column.
        """
        if dtype not in (torch.float32, torch.float64):
            raise EnvError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
        settings = settings or EnvSettings()
        count = settings.num_envs if num_envs is None else num_envs
        if count < 1:
            raise EnvError(f"num_envs must be at least 1, got {count}")
        self.settings = settings
        self.num_envs = count
        self.device = torch.device(device) if device is not None else market.device
        self.market = market.to(self.device)
        self.device = self.market.device
        self.dtype = dtype
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {"autoreset_mode": self.autoreset_mode, "render_modes": []}
        self.record = record
        self.layout = ObservationLayout(market.num_assets, market.num_features, market.num_context)
        self._view = market_view(self.market, settings, dtype)
        self._reward = make_reward(settings)
        # Fractions of a share need all the bits there are; whole shares are exact in float32.
        self._share_dtype = torch.float64 if settings.fractional else dtype
        self._obs_dtype = torch.float32

        self.single_action_space = gymnasium.spaces.Box(-1.0, 1.0, (market.num_assets,), np.float32)
        self.single_observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.layout.width,), np.float32)
        self.action_space = batch_space(self.single_action_space, count)
        self.observation_space = batch_space(self.single_observation_space, count)

        self._seed = seed
        self._key = self._make_keys(seed)
        self._endow(None, {})
        self._account: Account | None = None

    @classmethod
    def evaluation(
        cls,
        market: MarketTensors,
        settings: EnvSettings | None = None,
        num_envs: int = 1,
        record: bool = True,
        device: torch.device | str | None = None,
    ) -> TradingEnv:
        """The whole window from its first bar, in float64, once (autoreset is disabled)."""
        settings = (settings or EnvSettings()).model_copy(update={"random_start": False, "episode_bars": None})
        return cls(
            market,
            settings,
            num_envs=num_envs,
            device=device,
            dtype=torch.float64,
            autoreset_mode=AutoresetMode.DISABLED,
            record=record,
        )

    # --- state -----------------------------------------------------------------------------------------

    @property
    def account(self) -> Account:
        """The accounts as they stand. Raises EnvError before the first reset."""
        if self._account is None:
            raise EnvError("call reset() first: there are no accounts yet")
        return self._account

    @property
    def equity(self) -> Tensor:
        """`[B]` float64, USD: cash + shares at the last close."""
        return self.account.equity

    def state_dict(self) -> dict[str, Tensor]:
        """Everything a bit-exact continuation needs (not the market, not the settings)."""
        state = {f"account.{name}": value.clone() for name, value in self.account._asdict().items()}
        state["key"] = self._key.clone()
        state["endowment.cash"] = self._cash.clone()
        state["endowment.shares"] = self._shares.clone()
        state["endowment.episode_bars"] = self._episode_bars.clone()
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from `state_dict`. Raises CheckpointError, changing nothing, when it does not fit."""
        names = [f"account.{name}" for name in Account._fields]
        wanted = {*names, "key", "endowment.cash", "endowment.shares", "endowment.episode_bars"}
        if set(state) != wanted:
            odd = ", ".join(sorted(set(state) ^ wanted))
            raise CheckpointError(f"this is no state of a TradingEnv: {odd} missing or unknown")
        shapes = {"shares": (self.num_envs, self.layout.num_assets), "memory": (self.num_envs, 2)}
        for name, value in state.items():
            shape = shapes.get(name.rpartition(".")[2], (self.num_envs,))
            if tuple(value.shape) != shape:
                raise CheckpointError(f"{name} has shape {tuple(value.shape)}, this environment needs {shape}")
        moved = {name: value.to(self.device, copy=True) for name, value in state.items()}
        self._account = Account(*(moved[name] for name in names))
        self._key = moved["key"]
        self._cash = moved["endowment.cash"]
        self._shares = moved["endowment.shares"].to(self._share_dtype)
        self._episode_bars = moved["endowment.episode_bars"]

    # --- gymnasium -------------------------------------------------------------------------------------

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        """Begin episodes; obs `[B, D]`. A seed starts the accounts' random streams anew (one each, or a list).

        Raises EnvError, changing nothing, for unknown options or ones of the wrong shape or range.
        """
        options = dict(options or {})
        unknown = sorted(set(options) - set(_OPTIONS))
        if unknown:
            raise EnvError(f"unknown reset option {unknown[0]!r}; known: {', '.join(_OPTIONS)}")
        mask = self._reset_mask(options.pop("reset_mask", None))
        start = self._start_option(options.pop("start", None))
        previous = self._account
        if mask is not None and previous is None:
            raise EnvError("options['reset_mask'] needs accounts; call reset() without it first")
        key = self._key if seed is None else self._make_keys(seed)
        restore = (self._cash, self._shares, self._episode_bars)
        try:
            self._endow(mask, options)
            episode = previous.episode if previous is not None and seed is None else torch.zeros_like(key)
            fresh = begin(self._view, key, episode, self._cash, self._shares, self._episode_bars, self.settings, start)
            self._check_start(fresh)
        except EnvError:
            self._cash, self._shares, self._episode_bars = restore
            raise
        if seed is not None:
            self._key = key if mask is None else torch.where(mask, key, self._key)
        self._account = fresh if mask is None or previous is None else select(mask, fresh, previous)
        return self._observe(self._account), {}

    def step(self, actions: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, dict[str, Any]]:
        """One decision for every account: obs `[B, D]`, reward `[B]`, terminated `[B]`, truncated `[B]`, info.

        Raises EnvError, changing nothing, for actions of the wrong shape, dtype or device or with NaN (on CUDA a
        NaN is not looked for, because looking would wait for the device), before the first reset, and for a
        finished account in DISABLED mode.
        """
        account = self.account
        action = self._check_action(actions)
        mode = self.autoreset_mode
        on_host = self.device.type == "cpu"
        if mode is AutoresetMode.DISABLED and on_host and bool(account.finished.any()):
            raise EnvError(
                "an account's episode is over; reset it with options={'reset_mask': ...} before the next step"
            )
        after, reward, terminated, truncated, record = advance(
            self._view, account, action, self.settings, self._reward, record=self.record
        )
        info: dict[str, Any] = {} if record is None else record._asdict()
        if mode is AutoresetMode.NEXT_STEP:
            began = account.finished
            after = select(began, self._begin_next(account), after)
            reward = torch.where(began, torch.zeros_like(reward), reward)
            terminated, truncated = terminated & ~began, truncated & ~began
        obs = self._observe(after)
        if mode is AutoresetMode.SAME_STEP:
            done = after.finished
            info["final_obs"], info["_final_obs"] = obs, done
            if not on_host or bool(done.any()):
                after = select(done, self._begin_next(after), after)
                obs = self._observe(after)
        self._account = after
        return obs, reward.to(torch.float32), terminated, truncated, info

    # --- parts -----------------------------------------------------------------------------------------

    def _begin_next(self, account: Account) -> Account:
        return begin(
            self._view, self._key, account.episode, self._cash, self._shares, self._episode_bars, self.settings
        )

    def _observe(self, account: Account) -> Tensor:
        return observe(self._view, account, self._obs_dtype)

    def _make_keys(self, seed: int | Sequence[int]) -> Tensor:
        """`[B]` int64: account i's key does not depend on how many others there are."""
        if isinstance(seed, int | np.integer):
            first = torch.tensor(derive(int(seed), "env"), device=self.device)
            return mix(first + _GOLDEN * torch.arange(self.num_envs, device=self.device))
        if len(seed) != self.num_envs:
            raise EnvError(f"got {len(seed)} seeds for {self.num_envs} accounts; pass one number or one each")
        return mix(torch.tensor([derive(int(value), "env") for value in seed], device=self.device))

    def _check_action(self, actions: Any) -> Tensor:
        if isinstance(actions, np.ndarray):
            if actions.dtype.kind != "f":
                raise EnvError(f"actions must be floating point, got {actions.dtype}")
            actions = torch.from_numpy(np.ascontiguousarray(actions))
        if not isinstance(actions, Tensor):
            raise EnvError(f"actions must be a torch tensor or a numpy array, got {type(actions).__name__}")
        shape = (self.num_envs, self.layout.num_assets)
        if tuple(actions.shape) != shape:
            raise EnvError(f"actions have shape {tuple(actions.shape)}, expected {shape}")
        if not actions.is_floating_point():
            raise EnvError(f"actions must be floating point, got {actions.dtype}")
        if actions.device != self.device:
            raise EnvError(f"actions lie on {actions.device}, the environment on {self.device}; move them there")
        if self.device.type == "cpu" and not bool(actions.isfinite().all()):
            raise EnvError("actions contain NaN or infinity; check the policy's output")
        return actions

    def _reset_mask(self, value: Any) -> Tensor | None:
        if value is None:
            return None
        mask: Tensor = torch.as_tensor(value, device=self.device)
        if mask.dtype != torch.bool or tuple(mask.shape) != (self.num_envs,):
            raise EnvError(f"options['reset_mask'] must be {self.num_envs} booleans")
        if not bool(mask.any()):
            raise EnvError("options['reset_mask'] selects no account")
        return mask

    def _start_option(self, start: Any) -> Tensor | None:
        if start is None:
            return None
        value = torch.as_tensor(start, device=self.device).to(torch.int64)
        if value.ndim > 1 or (value.ndim == 1 and value.shape[0] != self.num_envs):
            raise EnvError(f"options['start'] must be a bar or {self.num_envs} of them")
        if bool((value < 0).any()) or bool((value > self.market.num_bars - 2).any()):
            raise EnvError(f"options['start'] must lie in [0, {self.market.num_bars - 2}]")
        return value.expand(self.num_envs)

    def _endow(self, mask: Tensor | None, options: dict[str, Any]) -> None:
        """Set start cash, start shares and episode length; a full reset forgets what earlier options said."""
        count, assets = self.num_envs, self.layout.num_assets
        defaults: dict[str, tuple[float, tuple[int, ...], torch.dtype]] = {
            "cash_usd": (self.settings.initial_cash_usd, (count,), torch.float64),
            "shares": (0.0, (count, assets), self._share_dtype),
            "episode_bars": (self.settings.episode_bars or 0, (count,), torch.int64),
        }
        values = []
        for name, (default, shape, dtype) in defaults.items():
            value = torch.as_tensor(options.get(name, default), device=self.device).to(dtype)
            if name == "cash_usd" and name in options and not bool((value.isfinite() & (value >= 0)).all()):
                raise EnvError("options['cash_usd'] must be finite and not negative")
            if name == "episode_bars" and name in options and bool((value < 1).any()):
                raise EnvError("options['episode_bars'] must be at least 1")
            try:
                values.append(value.expand(shape))
            except RuntimeError:
                raise EnvError(f"options[{name!r}] has shape {tuple(value.shape)}, expected {shape}") from None
        if mask is not None:
            before = (self._cash, self._shares, self._episode_bars)
            masks = (mask, mask.unsqueeze(1), mask)
            kept = [new if name in options else old for name, new, old in zip(defaults, values, before, strict=True)]
            values = [torch.where(m, new, old) for m, new, old in zip(masks, kept, before, strict=True)]
        self._cash, self._shares, self._episode_bars = values
        self._check_shares()

    def _check_shares(self) -> None:
        shares = self._shares
        if not bool(shares.isfinite().all()):
            raise EnvError("options['shares'] must be finite")
        if not self.settings.short and bool((shares < 0).any()):
            raise EnvError("options['shares'] must not be negative in a long-only environment")
        if not self.settings.fractional and bool((shares != torch.trunc(shares)).any()):
            raise EnvError("options['shares'] must be whole numbers unless env.fractional is set")

    def _check_start(self, account: Account) -> None:
        held = account.shares != 0
        if bool(held.any()):
            listed = (self._view.mark[account.bar] > 0) & (self._view.last_bar > account.bar.unsqueeze(1))
            if bool((held & ~listed).any()):
                raise EnvError("options['shares'] holds a symbol that is not listed at the start bar")
        if bool((account.equity <= 0).any()):
            raise EnvError("an account must start with positive equity; set options['cash_usd'] or ['shares']")
