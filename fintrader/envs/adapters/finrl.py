"""FinRL's stock environment on fintrader's accounts: its arguments, state, tables and arrays.

    from fintrader.envs.adapters.finrl import StockTradingEnv      # instead of finrl's
    env = StockTradingEnv(df=train, **env_kwargs)

`to_market` gives the same bars as a market, for thousands of accounts and `fintrader.backtest`.
docs/environment.md lists the differences from finrl 0.3.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from fintrader.config import Settings, validate
from fintrader.envs.adapters.gymnasium import SingleTradingEnv, to_batch
from fintrader.envs.settings import EnvSettings
from fintrader.errors import EnvError
from fintrader.market.tensors import MarketTensors

Array = NDArray[np.float64]
State = NDArray[np.float32]
OPENS_NS = 14 * 3_600_000_000_000 + 30 * 60_000_000_000
"""Nanoseconds from midnight UTC to the start of a daily bar."""


def pivot(df: pd.DataFrame, column: str) -> Array:
    """One column of FinRL's table as `[T, N]`: a row a date, a column a `tic`, both sorted.

    Raises EnvError for a column that is missing or holds no numbers, dates that lack a tic, and
    repeated rows.
    """
    if not isinstance(df, pd.DataFrame) or df.empty:
        kind = "an empty one" if isinstance(df, pd.DataFrame) else type(df).__name__
        raise EnvError(f"df must be a pandas.DataFrame with rows, not {kind}")
    lacking = [name for name in ("date", "tic", column) if name not in df]
    if lacking:
        present = ", ".join(map(str, df.columns))
        raise EnvError(f"the table has no column {', '.join(lacking)}; it has {present}")
    double = df[df.duplicated(["date", "tic"])]
    if len(double):
        date, tic = double[["date", "tic"]].iloc[0]
        raise EnvError(
            f"{tic} has several rows on {date}; keep one: df.drop_duplicates(['date', 'tic'])"
        )
    wide = df.pivot(index="date", columns="tic", values=column).sort_index()
    try:
        values = wide.to_numpy(dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise EnvError(f"{column} must hold numbers: {error}") from None
    if np.isnan(values).any():
        raise EnvError(
            f"{column} is missing on {wide.index[np.isnan(values).any(axis=1)][0]}; every date"
            " needs every tic, as FinRL's preprocessing leaves them"
        )
    return values


def df_to_array(
    df: pd.DataFrame, tech_indicator_list: Sequence[str], if_vix: bool
) -> tuple[Array, Array, Array]:
    """FinRL's arrays: closes `[T, N]`, indicators `[T, N * K]` (those of a tic side by side), and
    `[T]` of `VIXY` or `turbulence`."""
    prices = pivot(df, "close")
    columns = [pivot(df, name) for name in tech_indicator_list]
    indicators = np.stack(columns, axis=2).reshape(len(prices), -1) if columns else prices[:, :0]
    return prices, indicators, pivot(df, "VIXY" if if_vix else "turbulence")[:, 0]


def to_market(
    df: pd.DataFrame, indicators: Sequence[str] = (), risk: Sequence[str] = ()
) -> MarketTensors:
    """Make a market of FinRL's daily table: columns date, tic, open, close, volume, `indicators`
    (features, as they are) and `risk` (context, one value a date)."""
    open_, close, volume = (pivot(df, name) for name in ("open", "close", "volume"))
    dates = pd.to_datetime(pd.Series(sorted(df["date"].unique()))).to_numpy("datetime64[ns]")
    features = [pivot(df, name) for name in indicators]
    context = [pivot(df, name)[:, 0] for name in risk]
    as_tensor = partial(torch.tensor, dtype=torch.float32)
    return MarketTensors(
        open=as_tensor(open_),
        # FinRL's close is adjusted; its high and low are not, and need not enclose it.
        high=as_tensor(np.maximum(open_, close)),
        low=as_tensor(np.minimum(open_, close)),
        close=as_tensor(close),
        volume=as_tensor(volume),
        features=as_tensor(np.stack(features, axis=2) if features else np.zeros((*close.shape, 0))),
        context=as_tensor(np.stack(context, axis=1) if context else close[:, :0]),
        tradable=torch.from_numpy(volume > 0),
        member=torch.ones(close.shape, dtype=torch.bool),
        session=torch.arange(len(close)),
        minutes=torch.from_numpy(dates.astype(np.int64) + OPENS_NS),
        benchmark=torch.from_numpy((close / close[0]).mean(axis=1)),
        benchmark_name="equal weights",
        symbols=tuple(map(str, sorted(df["tic"].unique()))),
        feature_names=tuple(indicators),
        context_names=tuple(risk),
        bar_minutes=390,
    )


class FinRLArguments(Settings):
    """Arguments of FinRL's environment, by its names; those about plots and printing are unused."""

    stock_dim: int
    hmax: int
    initial_amount: float
    num_stock_shares: tuple[float, ...]
    buy_cost_pct: tuple[float, ...]
    sell_cost_pct: tuple[float, ...]
    reward_scaling: float
    state_space: int
    action_space: int
    tech_indicator_list: tuple[str, ...]
    turbulence_threshold: float | None = None
    risk_indicator_col: str = "turbulence"
    initial: bool = True
    previous_state: tuple[float, ...] = ()
    make_plots: Any = None
    print_verbosity: Any = None
    day: Any = None
    model_name: Any = None
    mode: Any = None
    iteration: Any = None


class StockTradingEnv(gymnasium.Env[Any, Any]):
    """FinRL's `StockTradingEnv` for one account: state `[1 + 2N + KN]` of cash, closes, shares and
    indicators, action `[N]` in [-1, 1], reward in USD times `reward_scaling`.

    `fill`: `close`, as FinRL trades, or `next_open`, at prices that are not known when it decides.
    """

    metadata = SingleTradingEnv.metadata

    def __init__(self, df: pd.DataFrame, *, fill: str = "close", **arguments: Any) -> None:
        """`arguments`: FinRL's.

        Raises ConfigError for an argument that is missing or unknown, EnvError for sizes that are
        not those of the table, and for costs that differ by symbol or side.
        """
        known = validate(FinRLArguments, arguments, "StockTradingEnv")
        costs = {*known.buy_cost_pct, *known.sell_cost_pct}
        if len(costs) != 1:
            raise EnvError(
                "buy_cost_pct and sell_cost_pct must be one rate for all symbols and both sides;"
                " EnvSettings.half_spread_bps takes costs by symbol"
            )
        risk = () if known.turbulence_threshold is None else (known.risk_indicator_col,)
        self.df = df
        self.market = to_market(df, known.tech_indicator_list, risk)
        self.dates = sorted(df["date"].unique())
        count = self.market.num_assets
        width = 1 + (2 + self.market.num_features) * count
        sizes = (known.stock_dim, known.state_space, known.action_space)
        if sizes != (count, width, count):
            raise EnvError(
                f"the table has {count} tics: stock_dim and action_space must be {count} and"
                f" state_space {width}, not {sizes}"
            )
        settings = {
            "action": "trade",
            "max_shares": known.hmax,
            "dead_band": 0.0,
            "fill": fill,
            "participation": "none",
            "start": "first",
            "episode_bars": None,
            "cost_bps": 1e4 * costs.pop(),
            "initial_cash_usd": known.initial_amount,
            "turbulence": dict.fromkeys(risk, known.turbulence_threshold),
        }
        self.env = SingleTradingEnv(self.market, validate(EnvSettings, settings, "StockTradingEnv"))
        self.reward_scaling = known.reward_scaling
        state = (known.initial_amount, *[0.0] * count, *known.num_stock_shares)
        if not known.initial:
            state = known.previous_state
        if len(state) < 1 + 2 * count or len(known.num_stock_shares) != count:
            raise EnvError(f"num_stock_shares and previous_state must hold shares of {count} tics")
        self.start = {
            "cash_usd": torch.tensor(state[:1], dtype=torch.float64),
            "shares": torch.tensor([state[1 + count : 1 + 2 * count]], dtype=torch.float32),
        }
        self.action_space = gymnasium.spaces.Box(-1, 1, (count,))
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (width,))
        self.reset()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[State, Any]:
        """Begin on the first date with the starting cash and shares."""
        super().reset(seed=seed)
        self.env.reset(seed=seed, options=self.start)
        self.asset_memory = [self._measure_equity()]
        self.actions_memory: list[NDArray[np.int64]] = []
        return self.state, {}

    def step(self, actions: State) -> tuple[State, float, bool, bool, Any]:
        """Trade one day. The step after the last date only ends the episode, as in FinRL, whose
        loops read `save_asset_memory` before it; its reward is 0."""
        if len(self.asset_memory) == len(self.dates):
            return self.state, 0.0, False, True, {}
        held = self._shares()
        batch = to_batch(actions, self.env.vector_env.device)
        terminated = self.env.step(batch.numpy())[2]
        self.asset_memory.append(self._measure_equity())
        self.actions_memory.append((self._shares() - held).astype(np.int64))
        reward = (self.asset_memory[-1] - self.asset_memory[-2]) * self.reward_scaling
        return self.state, reward, terminated, False, {}

    @property
    def state(self) -> State:
        """Cash, closes, shares and the indicators, one after another."""
        day = len(self.asset_memory) - 1
        account = self.env.vector_env.account
        indicators = self.market.features[day].T.flatten()
        parts = (account.cash, self.market.close[day], account.shares[0], indicators)
        return np.asarray(torch.cat(parts), dtype=np.float32)

    def save_asset_memory(self) -> pd.DataFrame:
        """Table of `date` and `account_value`, USD."""
        dates = self.dates[: len(self.asset_memory)]
        return pd.DataFrame({"date": dates, "account_value": self.asset_memory})

    def save_action_memory(self) -> pd.DataFrame:
        """Table of traded shares, a row a date and a column a tic."""
        index = pd.Index(self.dates[: len(self.actions_memory)], name="date")
        return pd.DataFrame(self.actions_memory, index=index, columns=list(self.market.symbols))

    def get_sb_env(self) -> tuple[Any, Any]:
        """This environment in Stable-Baselines3's DummyVecEnv, and its first observation."""
        from stable_baselines3.common.vec_env import DummyVecEnv

        env = DummyVecEnv([lambda: self])
        return env, env.reset()

    def _shares(self) -> NDArray[np.float64]:
        return self.env.vector_env.account.shares[0].numpy().astype(float)

    def _measure_equity(self) -> float:
        return float(self.env.vector_env.equity[0])
