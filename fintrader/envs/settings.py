"""`EnvSettings`: every choice the trading contract leaves open, in one frozen model."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from pathlib import PurePath
from typing import Annotated, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    field_validator,
    model_validator,
)

from fintrader.config import (
    BelowOne,
    Count,
    Fraction,
    Own,
    PositiveFraction,
    Settings,
    Ticker,
)
from fintrader.results.context import TradingTerms

HalfSpread = Annotated[float, Field(ge=0.0, lt=5000.0)]
OTHERS = "others"
"""Key in `half_spread_bps` for all symbols that are not named there."""

MOST_CASH_USD = float(1 << 32)
"""Largest cash: more could grow beyond the sums of money that are exact (`envs.money`), where
engines would differ."""

REWARDS = (
    *("profit", "log_return", "mean_variance", "drawdown", "differential_sharpe"),
    *("active_return", "active_mean_variance", "differential_information_ratio"),
)
"""Built-in rewards; the last three are relative to the benchmark."""

MOST_DEVIATION = 0.25
"""Largest standard deviation of the price over an option's life: the table of its values has evenly
spaced prices."""
SHARPE_PRIOR_VOLATILITY = 1e-3
"""Volatility of one step's return that the differential rewards begin with: about a stock's in one
hour."""
SHARPE_DECAY = 0.01
"""eta of the differential rewards, the weight of the newest return in the moving moments: a memory
of about a hundred decisions."""


class RandomiseSettings(Settings):
    """Differences between the markets of accounts while an agent trains (`envs/randomised.py`), so
    that it learns from all of them (https://arxiv.org/abs/1703.06907)."""

    variants: Count = 4
    """V: markets among which the accounts are divided; a divisor of their number."""
    costs: tuple[PositiveFloat, PositiveFloat] = (1.0, 1.0)
    """Smallest and largest factor on a variant's fees, spread and impact, drawn log-uniformly.
    Equal bounds, such as [1.5, 1.5], apply to all accounts: above 1 an agent learns to trade less
    than the true costs demand."""
    delay_bars: NonNegativeInt = 0
    """Largest delay of a variant's observations, in bars; each is drawn from 0 to this. Orders fill
    without delay."""
    block_sessions: Count | None = None
    """Length of the blocks of consecutive sessions that each variant draws with replacement (a
    block bootstrap); none: the window unchanged."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.costs[0] > self.costs[1]:
            raise ValueError(
                "costs: the first, the smallest factor, must not exceed the second, the largest"
            )
        return self

    @property
    def active(self) -> bool:
        """True if a variant may differ from the original market."""
        return self.costs != (1.0, 1.0) or self.delay_bars > 0 or self.block_sessions is not None


class OptionSettings(Settings):
    """An option that accounts have sold when an episode begins; no new one follows its expiry."""

    kind: Literal["call", "put", "straddle"] = "call"
    """A straddle is a call and a put."""
    symbol: Ticker | None = None
    """Underlying symbol; none: the market's first symbol."""
    strike: PositiveFloat = 1.0
    """Strike as a multiple of the price at the start."""
    weight: PositiveFloat = 1.0
    """Value of the underlying shares, as a share of the first equity."""
    bars: Annotated[int, Field(ge=1, le=10_000)]
    """Bars from the start to expiry."""
    volatility_bps: PositiveFloat
    """Volatility by which the option is valued: standard deviation of a bar's log return, basis
    points."""

    @model_validator(mode="after")
    def _can_be_tabled(self) -> Self:
        # Standard deviation of the log return of its whole life.
        deviation_bps = self.volatility_bps * math.sqrt(self.bars)
        if deviation_bps > 1e4 * MOST_DEVIATION:
            raise ValueError(
                f"volatility_bps * sqrt(bars) is {deviation_bps:,.0f} basis points, and may"
                f" be {1e4 * MOST_DEVIATION:,.0f} at most; lower either of them"
            )
        return self


MOST_IMPACT = 0.1
"""Largest move of the price by traders' orders, as a share of the price."""


class TraderSettings(Settings):
    """Traders that share a market while they train, and their rewards."""

    teams: tuple[Count, ...] = Field((1, 1), min_length=1)
    """Traders of each team, K in all. The traders of a team share the mean of their rewards."""
    cooperation: Annotated[float, Field(ge=-1.0, le=1.0)] = 0.0
    """Between teams. 1: each trader gets the mean reward of all; 0: its team's mean; -1: its team's
    mean less the mean of all traders outside it."""
    rivals: Literal["learner", "leaderboard"] = "learner"
    """Players of the teams from the second on. learner: the policy that learns plays all teams;
    leaderboard: frozen policies drawn evenly from the tournament's leaderboard at that time (the
    learner while it is empty)."""
    impact_bps_per_million_usd: NonNegativeFloat = 10.0
    """kappa: basis points that the price moves per million USD of all traders' net orders, at most
    1,000. An account that trades alone pays this for its own fills, but not for fills at its
    limit prices."""


class ExecutionSettings(Settings):
    """Orders of a decision, worked bar by bar in backtests and deployments. In training and
    validation they fill at the next open."""

    policy: str = "twap"
    """twap: equal parts at the opens of the next bars; else the file of an executor from
    `fintrader.execution.train_executor`, which decides their sizes and prices."""
    bars: Count = 60
    """Bars in which an order is worked; the rest is then cancelled."""

    @property
    def file(self) -> str | None:
        """The executor's file; None for equal parts."""
        return None if self.policy == "twap" else self.policy

    def __str__(self) -> str:
        return f"{PurePath(self.policy).name} over {self.bars} bars"


class TradingSettings(Settings):
    """Orders, costs, observations and rewards of accounts."""

    kind: Literal["trading"] = "trading"
    """`trading`; a configuration may have `gymnasium` here instead (see `GymnasiumSettings`)."""
    num_envs: Count = 256
    """B: accounts stepping at once."""
    start_groups: Count | Literal["auto"] = "auto"
    """G: groups of accounts; those of a group begin their episodes on the same bar, so that the
    market's row is read, and embedded, once for all of them. A divisor of the number of accounts;
    auto: 16, or as many as there are accounts if they are fewer. An account that is ruined leaves
    its group."""

    # --- orders -----------------------------------------------------------------------------------
    action: Literal["target", "trade", "limit", "quote"] = "target"
    """target: weights relu(a)/max(1, sum); trade: a * max_shares shares; limit: weights, then the
    price of each asset's order, which rests until it fills, its time ends, or the next decision;
    quote: the prices of a bid and of an ask of `quote_weight` each."""
    fill: Literal["next_open", "next_close", "close"] = "next_open"
    """Price and bar at which orders decided at the close of bar t fill; `close` (of bar t itself)
    is the papers' optimistic choice."""
    fractional: bool = False
    """Trade fractions of a share (the step is then differentiable in the action)."""
    max_shares: PositiveFloat = 100.0
    """`trade` only: shares ordered per symbol by an action of 1."""
    quote_weight: PositiveFloat = 0.05
    """`quote` only: size of each order as a share of equity."""
    limit_offset_bps: Annotated[float, Field(gt=0.0, lt=10_000.0)] = 50.0
    """Distance from the last close, in basis points of it. `limit`: an order's price is this far
    above the close for an action of 1, below it for -1; `quote`: largest distance of bid and
    ask."""
    limit_margin_bps: Annotated[float, Field(ge=0.0, lt=10_000.0)] = 0.0
    """`limit`, `quote`: basis points by which a bar must trade beyond an order's price before the
    order fills."""
    stop_offset_bps: Annotated[float, Field(gt=0.0, lt=10_000.0)] | None = None
    """`limit`, `quote`: basis points between the last close and the farthest stop. A stop closes a
    position at the open after a bar has reached it. Actions have one more number for each asset: no
    stop up to 0; above 0, the larger the nearer. none: no stops."""
    time_in_force: Count | None = None
    """`limit`, `quote`: bars after which an order is cancelled; none: at the next decision."""
    dead_band: BelowOne | None = None
    """Change that is too small to be ordered. `target`, `limit`: a symbol whose weight is this
    close to its target is left alone (exits always trade); `trade`: actions of at most this size
    order nothing. None: 0, and 0.1 for `trade`."""
    trade_rate: PositiveFraction = 1.0
    """`target`, `limit`: part of the distance to the target that a decision trades, at least one
    share: under costs, the best step towards a moving target (Gârleanu and Pedersen, 2013)."""
    decision_interval: Count = 1
    """Bars between decisions; accounts are marked at every bar, the reward spans the interval."""

    execution: ExecutionSettings | None = None
    """`target`, `trade`: how a decision's orders are worked; none: they fill at once."""

    # --- volume -----------------------------------------------------------------------------------
    participation: PositiveFraction | Literal["none"] = 0.1
    """Largest share of a bar's volume that an order takes; the rest of the order is cancelled.
    none: orders of any size fill, as in the papers."""

    # --- costs ------------------------------------------------------------------------------------
    cost_bps: Annotated[float, Field(ge=0.0, le=5000.0)] = 20.0
    """Commission and fees, basis points of the notional (20 is 0.2 %)."""
    half_spread_bps: HalfSpread | Mapping[str, HalfSpread] = 0.0
    """Half the bid-ask spread, basis points of the notional: a number for all symbols, or a mapping
    such as {AAPL: 0.5, others: 2}; without `others`, other symbols have none."""
    impact_bps: NonNegativeFloat = 0.0
    """Temporary impact: basis points of the notional of an order as large as all of its bar's
    volume; falls with the square root of the order's share of the volume."""
    min_commission_usd: NonNegativeFloat = 0.0
    """Minimum commission of one order, USD."""

    # --- account ----------------------------------------------------------------------------------
    initial_cash_usd: Annotated[float, Field(gt=0.0, le=MOST_CASH_USD)] = 1_000_000.0
    """Cash of an account at the start of an episode, USD; at most 4.3 billion, half of the largest
    exact sum."""
    initial_shares: float | Mapping[str, float] = 0.0
    """Shares of every symbol at the start of an episode, or a mapping such as {AAPL: 100}; none of
    a symbol that is not listed then."""
    close_at_end: bool = False
    """Close all positions, whatever their size, at the close of an episode's last bar, with
    costs."""
    option: OptionSettings | None = None
    """An option that accounts have sold when an episode begins, for its value in cash. Equity is
    reduced by its value at each close, and from its expiry on by the payoff."""
    ruin_fraction: BelowOne = 0.1
    """Equity at or below this share of the episode's first equity is ruin: the episode
    terminates."""
    short: bool = False
    """Allow negative positions."""
    max_leverage: Annotated[float, Field(ge=1.0, le=100.0)] = 1.0
    """Largest gross exposure after a fill, in multiples of equity; above 1 only with `short`."""
    borrow_bps_per_year: NonNegativeFloat = 0.0
    """Interest on borrowed stock (short notional) and borrowed cash, basis points a year of 365
    days."""
    maintenance_margin: Fraction = 0.0
    """Margin call: equity below this share of gross exposure closes every position whose symbol
    trades in that bar, at its close."""
    turbulence: Mapping[str, float] = Field(default_factory=dict)
    """Context columns to watch, like {turbulence: 3}: while one is above its threshold (usually in
    standard deviations), positions are sold and nothing is bought."""
    randomise: RandomiseSettings = RandomiseSettings()
    """Differences between accounts while an agent trains; validation and backtest use the original
    market."""
    traders: TraderSettings | None = None
    """Traders that share a market while an agent trains: every K consecutive accounts are a game of
    K traders, whose resting orders match each other first. Validation, backtest and deployment
    trade one account alone."""

    # --- benchmark --------------------------------------------------------------------------------
    benchmark: Literal["auto", "equal_weight", "cap_weight", "buy_and_hold", "cash"] = "auto"
    """The portfolio that active rewards, the `tilt` head and scores refer to. Unless it is cash,
    observations contain membership and its weights. auto: equal_weight on real bars, cash on
    synthetic ones."""

    # --- reward -----------------------------------------------------------------------------------
    reward: Own = Field("log_return", json_schema_extra={"examples": list(REWARDS)})
    """profit, log_return, mean_variance, drawdown, differential_sharpe; against the benchmark
    active_return, active_mean_variance, differential_information_ratio; or a callable from an
    `Outcome` to `[B]`, in YAML `package.module:name`."""
    reward_scale: PositiveFloat = 1.0
    """Factor on every reward."""
    risk_aversion: NonNegativeFloat = 1.0
    """lambda in r - lambda/2 * r^2 (mean_variance, active_mean_variance) and in r - lambda *
    (increase of the drawdown) (drawdown)."""

    # --- episodes ---------------------------------------------------------------------------------
    episode_bars: Count | None = None
    """Bars of an episode; none: to the window's end."""
    start: Literal["bar", "session", "first"] = "bar"
    """First bar of each group's episode. bar: drawn from all; session: drawn from the first bars of
    sessions, and the episode ends with its session; first: the window's first."""

    # --- observation ------------------------------------------------------------------------------
    clock: Literal["episode", "session", "none"] = "episode"
    """Meaning of the account's column `time_left`. episode: the share of the episode still ahead,
    which a deployment does not have; session: the share of the session's bars still ahead; none:
    0."""
    lookback: Count = 1
    """L: bars that an observation shows of the market, the newest and the L - 1 before it (at a
    window's start its first bar is repeated). Memory for stored observations grows with it; see
    `agent.network.encoder`."""

    @field_validator("participation", mode="before")
    @classmethod
    def _no_limit(cls, participation: object) -> object:
        """Read Python's None and YAML's null as none."""
        return "none" if participation is None else participation

    @field_validator("reward")
    @classmethod
    def _known_reward(cls, reward: str) -> str:
        if reward not in REWARDS and not re.fullmatch(
            r"[A-Za-z_][\w.]*:[A-Za-z_<][\w.<>]*", reward
        ):
            raise ValueError(
                f"expected one of {', '.join(REWARDS)}, a callable or 'package.module:name'"
            )
        return reward

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.max_leverage > 1.0 and not self.short:
            raise ValueError("max_leverage above 1 needs short: true")
        if self.orders_rest and self.fill != "next_open":
            raise ValueError(f"action: {self.action} needs fill: next_open")
        if self.has_stops and not self.orders_rest:
            raise ValueError("stop_offset_bps needs action: limit or quote")
        if self.traders is not None:
            self._check_traders()
        if self.execution is not None:
            self._check_execution(self.execution)
        dearest = self.cost_bps + max(self.half_spreads.values())
        if dearest * max(1.0, self.randomise.costs[1]) >= 10_000.0:
            raise ValueError(
                "cost_bps and half_spread_bps together (in training, too) must stay below 10,000"
            )
        return self

    def _check_execution(self, execution: ExecutionSettings) -> None:
        if self.orders_rest or self.fill != "next_open" or self.option is not None:
            raise ValueError(
                "execution works orders of action: target or trade, with fill: next_open and"
                " without an option"
            )
        if execution.bars > self.decision_interval:
            raise ValueError(
                f"execution.bars is {execution.bars}, and the next decision comes after"
                f" {self.decision_interval}; lower it, or raise decision_interval"
            )

    def _check_traders(self) -> None:
        if self.meets_leaderboard and self.traders and len(self.traders.teams) == 1:
            raise ValueError(
                "traders.rivals: leaderboard needs a team to play; add one to traders.teams, or set"
                " rivals to learner"
            )
        if self.option is not None:
            raise ValueError(
                "traders sell no options, whose value the others would move; leave out option or"
                " traders"
            )
        if self.for_training().randomise.active:
            raise ValueError(
                "randomise makes no variants for traders of one market; leave out randomise"
                " (except equal costs) or traders"
            )

    def scale_costs(self, times: float) -> Self:
        """Multiply fees, spread and impact."""
        rates = self.half_spread_bps
        spreads = (
            {name: times * rate for name, rate in rates.items()}
            if isinstance(rates, Mapping)
            else times * rates
        )
        moved = times * self.impact_bps_per_million_usd
        return self.model_copy(
            update={
                "cost_bps": times * self.cost_bps,
                "half_spread_bps": spreads,
                "impact_bps": times * self.impact_bps,
                "traders": self.traders
                and self.traders.model_copy(update={"impact_bps_per_million_usd": moved}),
            }
        )

    def for_training(self) -> Self:
        """Apply `randomise.costs` if its bounds are equal, and so the same for all accounts."""
        low, high = self.randomise.costs
        if low != high or low == 1.0:
            return self
        even = self.randomise.model_copy(update={"costs": (1.0, 1.0)})
        return self.scale_costs(low).model_copy(update={"randomise": even})

    def at_once(self) -> Self:
        """Leave out `execution`."""
        return self.model_copy(update={"execution": None})

    def for_working(self) -> Self:
        """Settings of the account whose orders are worked: limit orders, replaced at every bar.
        Unchanged without `execution`."""
        if self.execution is None:
            return self
        return self.model_copy(
            update={
                "action": "limit",
                "decision_interval": 1,
                "time_in_force": None,
                "turbulence": {},  # already in the policy's decision
                "execution": None,
            }
        )

    @property
    def orders_rest(self) -> bool:
        """True if orders rest at a price."""
        return self.action in ("limit", "quote")

    @property
    def num_sides(self) -> int:
        """Orders that may rest in an asset: one, or a bid and an ask."""
        return 2 if self.action == "quote" else 1

    @property
    def resting_rows(self) -> int:
        """R: numbers that describe an asset's resting orders, its stop included."""
        return self.orders_rest * 3 * self.num_sides + self.has_stops

    @property
    def order_bars(self) -> int:
        """Most bars that an order rests."""
        return self.time_in_force or self.decision_interval

    @property
    def fee_rate(self) -> float:
        """Commission as a share of the notional."""
        return self.cost_bps / 1e4

    def terms(self) -> TradingTerms:
        """Select the settings for carrying out orders."""
        values = {name: getattr(self, name) for name in CONVENTIONS}
        plain = {name: dict(value) for name, value in values.items() if isinstance(value, Mapping)}
        fill = "limit" if self.orders_rest else self.fill
        worked = "" if self.execution is None else str(self.execution)
        shown = {"dead_band": self.band, "fill": fill, "execution": worked}
        return TradingTerms(**values | plain | shown)

    @property
    def half_spreads(self) -> dict[str, float]:
        """Half-spread in basis points of each symbol named in the settings, and of all others."""
        rates = self.half_spread_bps
        return {OTHERS: 0.0, **rates} if isinstance(rates, Mapping) else {OTHERS: rates}

    @property
    def spread_rate(self) -> float:
        """Half-spread, as a share of the notional, of symbols without their own."""
        return self.half_spreads[OTHERS] / 1e4

    @property
    def cost_rate(self) -> float:
        """Commission and half-spread, as a share of the notional, of symbols without their own."""
        return self.fee_rate + self.spread_rate

    @property
    def has_stops(self) -> bool:
        """True if positions may have a stop."""
        return self.stop_offset_bps is not None

    @property
    def band(self) -> float:
        """`dead_band`, resolved."""
        if self.dead_band is not None:
            return self.dead_band
        return 0.1 if self.action == "trade" else 0.0

    @property
    def impact_rate(self) -> float:
        """kappa in the impact cost kappa * notional * sqrt(share of the volume)."""
        return self.impact_bps / 1e4

    @property
    def num_traders(self) -> int:
        """K: accounts of a game; 1: each is alone."""
        return 1 if self.traders is None else sum(self.traders.teams)

    @property
    def meets_leaderboard(self) -> bool:
        """True if policies of the leaderboard play against the one that learns."""
        return self.traders is not None and self.traders.rivals == "leaderboard"

    @property
    def impact_bps_per_million_usd(self) -> float:
        """Basis points of its notional that an order of a million USD costs an account alone."""
        return 0.0 if self.traders is None else self.traders.impact_bps_per_million_usd

    @property
    def impact_per_usd(self) -> float:
        """kappa in the move of the price kappa * notional, and in its cost kappa * notional^2."""
        return self.impact_bps_per_million_usd / 1e10

    @property
    def charges_interest(self) -> bool:
        """True if borrowed stock and cash cost interest."""
        return self.short and self.borrow_bps_per_year > 0.0

    @property
    def costs_are_proportional(self) -> bool:
        """True if the cost of all orders is the cost of their sum."""
        spreads = self.half_spreads
        # Of limit orders only those that fill at a bar's open pay the spread.
        is_even = spreads == {OTHERS: 0.0} if self.orders_rest else len(spreads) == 1
        has_impact = self.impact_rate > 0.0 or self.impact_per_usd > 0.0
        return self.min_commission_usd == 0.0 and not has_impact and is_even


class EnvSettings(TradingSettings):
    """Settings of a trading environment in Python: a run's settings and the form of
    observations."""

    observation: Literal["flat", "factored"] = "flat"
    """flat: one row of width D; factored: the private part and the clock (market rows are
    shared)."""
    observation_dtype: Literal["float32", "bfloat16"] = "float32"
    """Number format of the observation; adapters to numpy, which has no bfloat16, return
    float32."""


CONVENTIONS = tuple(field.name for field in dataclasses.fields(TradingTerms))
"""Settings of `env` for carrying out orders: a trained policy can trade under other values of
these. All other settings belong to the policy: its observations, its outputs, its training."""


class GymnasiumSettings(Settings):
    """A classic environment."""

    kind: Literal["gymnasium"] = "gymnasium"
    """`gymnasium`; `trading` is the default."""
    id: str = "Pendulum-v1"
    """Name of the environment in gymnasium; MuJoCo's (`HalfCheetah-v5`, ...) need the extra
    `classic`. `my_package:MyEnv-v0` imports `my_package` first, which registers it."""
    num_envs: Count = 8
    """Copies stepping at once."""
    workers: Literal["async", "sync"] = "async"
    """`async`: a process each; `sync`: one after the other in this process, faster for cheap
    environments."""
