"""One account, one symbol at a time, in plain Python floats: slow, obvious, and written from the
trading contract.

It shares no code with the environment. Prices are the market's numbers as Python floats.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.oracles.benchmark_oracle import levels

PRIOR_VOLATILITY = 1e-3
SHARPE_DECAY = 0.01

YEAR_NS = 365 * 24 * 3600 * 10**9


@dataclass
class OracleStep:
    """What one decision did."""

    reward: float
    terminated: bool
    truncated: bool
    pnl: float
    cost: float
    turnover: float
    bar_equity: list[float] = field(default_factory=list)
    traded: list[float] = field(default_factory=list)
    income: float = 0.0


def option_value(option: Any, left: int, price: float) -> float:
    """Black and Scholes without interest, in units of the strike."""
    payoff = max(price - 1.0, 0.0)
    if left > 0 and price > 0.0:
        deviation = 1e-4 * option.volatility_bps * math.sqrt(left)
        d = math.log(price) / deviation
        up, down = (0.5 * math.erfc(-(d + k * deviation) / math.sqrt(2.0)) for k in (0.5, -0.5))
        payoff = price * up - down
    put = payoff - price + 1.0
    return {"call": payoff, "put": put, "straddle": payoff + put}[option.kind]


class LedgerOracle:
    """An account that starts at bar `start` of a `MarketTensors` with cash and (optionally)
    shares."""

    def __init__(
        self,
        market: Any,
        settings: Any,
        *,
        start: int = 0,
        end: int | None = None,
        cash: float | None = None,
        shares: list[float] | None = None,
    ) -> None:
        self.s = settings
        self.T, self.N = market.close.shape
        self.open = market.open.tolist()
        self.close = market.close.tolist()
        self.volume = market.volume.tolist()
        self.symbols = market.symbols
        happened = zip(*(values.tolist() for values in market.events), strict=True)
        self.events = {(t, n): (split, dividend) for t, n, split, dividend in happened}
        self.tradable = market.tradable.tolist()
        self.member = market.member.tolist()
        self.minutes = market.minutes.tolist()
        self.context = market.context.tolist()
        self.watched = [
            (market.context_names.index(name), most) for name, most in settings.turbulence.items()
        ]
        self.last = [
            max([t for t in range(self.T) if not math.isnan(self.close[t][n])], default=-1)
            for n in range(self.N)
        ]
        self.t = start
        self.end = self.T - 1 if end is None else end
        self.cash = settings.initial_cash_usd if cash is None else cash
        self.shares = [0.0] * self.N if shares is None else list(shares)
        self.start = start
        self.first = self.peak = self.equity(owed=0.0)
        self.cash += self.owed(start)
        known = settings.benchmark in ("equal_weight", "buy_and_hold")
        self.benchmark = levels(market, settings.benchmark) if known else [1.0] * self.T
        self.moment_1 = 0.0
        self.moment_2 = PRIOR_VOLATILITY**2

    # --- prices -----------------------------------------------------------------------------------

    def ended_at(self, n: int, t: int) -> bool:
        """Does symbol n's last bar lie at t, before the data's end?"""
        return self.last[n] == t and t < self.T - 1

    def mark(self, n: int, t: int) -> float:
        """The last close at or before t; 0 when there is none."""
        while t >= 0:
            if not math.isnan(self.close[t][n]):
                return self.close[t][n]
            t -= 1
        return 0.0

    def prices(self, f: int) -> list[float]:
        """What orders of bar f are filled at."""
        return (self.open if self.s.fill == "next_open" else self.close)[f]

    def ratios(self, t: int) -> list[float]:
        """New shares for one of each symbol, at bar t."""
        return [self.events.get((t, n), (1.0, 0.0))[0] for n in range(self.N)]

    def equity(self, owed: float | None = None) -> float:
        held = sum(self.shares[n] * self.mark(n, self.t) for n in range(self.N))
        return self.cash + held - (self.owed(self.t) if owed is None else owed)

    def owed(self, t: int) -> float:
        """What the option sold at the start is worth, or its payoff, at the close of bar t."""
        option = self.s.option
        if option is None:
            return 0.0
        n = 0 if option.symbol is None else self.symbols.index(option.symbol)
        left = max(0, self.start + option.bars - t)
        price = self.mark(n, min(t, self.start + option.bars))
        for bar in range(self.start + 1, min(t, self.start + option.bars) + 1):
            price *= self.ratios(bar)[n]  # of the shares that one has become
        strike = option.strike * self.mark(n, self.start)
        # A straight line between points 1/128 of a standard deviation apart.
        point = 1e-4 * option.volatility_bps * math.sqrt(max(left, 1)) / 128.0
        below = min(max(math.floor((price / strike - 1.0) / point), -768), 1790)
        low, high = (option_value(option, left, 1.0 + k * point) for k in (below, below + 1))
        value = low + ((price / strike - 1.0) / point - below) * (high - low)
        return round(self.first * option.weight * option.strike * value * 2**20) / 2**20

    # --- costs ------------------------------------------------------------------------------------

    def cost(
        self,
        n: int,
        t: int,
        shares: float,
        notional: float,
        least: bool = True,
        waited: bool = False,
    ) -> float:
        """An order that `waited` at its own price pays the commission alone."""
        fee = self.s.cost_bps / 1e4 * notional
        spread = (
            self.s.half_spreads.get(self.symbols[n], self.s.half_spreads["others"]) / 1e4 * notional
        )
        taken = min(1.0, abs(shares) / self.volume[t][n]) if self.volume[t][n] else 1.0
        impact = self.s.impact_bps / 1e4 * notional * math.sqrt(taken)
        # Traders: a million USD moves the price by so many basis points, at most a tenth.
        moved = self.s.traders.impact_bps_per_million_usd if self.s.traders else 0.0
        impact += notional * min(moved / 1e4 * notional / 1e6, 0.1)
        short_of = max(0.0, self.s.min_commission_usd - fee) if least and notional > 0.01 else 0.0
        capped = notional if self.s.impact_bps or moved else math.inf
        return short_of + (fee if waited else min(fee + spread + impact, capped))

    # --- what happens to shares -------------------------------------------------------------------

    def split(self, shares: float, ratio: float) -> float:
        if ratio == 1.0 or self.s.fractional:
            return shares * ratio
        near = round(shares * ratio)
        return float(near if abs(near - shares * ratio) < 1e-6 else math.trunc(shares * ratio))

    def apply_events(self, t: int) -> float:
        """Splits and dividends of bar t, before it trades; returns the cash they bring."""
        income = 0.0
        for n in range(self.N):
            ratio, dividend = self.events.get((t, n), (1.0, 0.0))
            after = self.split(self.shares[n], ratio)
            income += self.shares[n] * dividend
            income += (self.shares[n] * ratio - after) * self.mark(n, t - 1) / ratio
            self.shares[n] = after
        self.cash += income
        return income

    # --- orders -----------------------------------------------------------------------------------

    def whole(self, x: float) -> float:
        return x if self.s.fractional else float(math.trunc(x))

    def wanted(self, action: list[float]) -> list[float]:
        s = self.s
        V = self.equity()
        action = [min(1.0, max(-1.0, a)) for a in action]
        if any(self.context[self.t][column] > most for column, most in self.watched):
            return [0.0] * self.N
        want = []
        if s.action != "trade":
            raw = [round(a * 2**24) / 2**24 for a in action]
            raw = raw if s.short else [max(0.0, a) for a in raw]
            gross = sum(abs(a) for a in raw)
            limit = s.max_leverage if s.short else 1.0
            weights = [a * min(1.0, limit / gross) if gross > 0 else 0.0 for a in raw]
            for n, w in enumerate(weights):
                p = self.mark(n, self.t)
                target = w * max(0.0, V) / p if p > 0 else 0.0
                gap = target - self.shares[n]
                near = abs(gap) * p <= max(s.band, 2.0**-22) * max(0.0, V)
                step = self.whole(s.trade_rate * gap)
                if not s.fractional and step == 0 and abs(gap) >= 1:
                    step = math.copysign(1.0, gap)
                want.append(self.shares[n] if near and target != 0 else self.shares[n] + step)
        else:
            for n, a in enumerate(action):
                order = (
                    float(np.float32(a) * np.float32(s.max_shares))
                    if abs(a) > np.float32(s.band)
                    else 0.0
                )
                want.append(self.shares[n] + self.whole(order))
        if not s.short:
            want = [max(0.0, w) for w in want]
        return want

    def fill(self, want: list[float], f: int) -> tuple[float, float, float]:
        """Returns price P&L to the close of f (0 if filled there), cost and turnover."""
        s = self.s
        price = self.prices(f)
        cost = turnover = 0.0
        additions = [0.0] * self.N
        for n in range(self.N):  # what brings a position nearer to zero, first
            if not self.tradable[f][n]:
                continue
            held = self.shares[n]
            goal = want[n]
            if s.participation != "none":
                most = self.whole(self.volume[f][n] * s.participation)
                goal = min(max(goal, held - most), held + most)
            if held > 0:
                kept = min(held, max(0.0, goal))
            elif held < 0:
                kept = max(held, min(0.0, goal))
            else:
                kept = 0.0
            sold = held - kept
            x = abs(sold) * price[n]
            c = min(self.cost(n, f, sold, x), x)
            self.cash += sold * price[n] - c
            cost += c
            turnover += x
            self.shares[n] = kept
            may_grow = self.member[f][n] and not (self.last[n] < self.T - 1 and f >= self.last[n])
            if may_grow:
                additions[n] = goal - kept
        scale = self.scale(additions, price, f)
        for n in range(self.N):
            q = additions[n] if scale == 1.0 else self.whole(scale * additions[n])
            if q == 0:
                continue
            x = abs(q) * price[n]
            c = self.cost(n, f, q, x)
            self.cash -= q * price[n] + c
            cost += c
            turnover += x
            self.shares[n] += q
        return cost, turnover

    def scale(self, additions: list[float], price: list[float], f: int) -> float:
        s = self.s
        x = [abs(q) * price[n] if q else 0.0 for n, q in enumerate(additions)]
        if s.short:
            V = self.cash + sum(h * price[n] for n, h in enumerate(self.shares) if h)
            V -= self.owed(self.t)
            G = sum(abs(h) * price[n] for n, h in enumerate(self.shares) if h)
            room = s.max_leverage * V - G
            L = s.max_leverage
        else:
            room = self.cash
            L = 1.0
        least = s.min_commission_usd * sum(v > 0.01 for v in x)
        full = sum(x) + L * sum(
            self.cost(n, f, additions[n], v, least=False) for n, v in enumerate(x)
        )
        if full + L * least <= room:
            return 1.0
        # Kept back: a least commission for each order, and two units of money for the rounding of
        # each amount.
        room = max(0.0, room - L * (least + 2 * self.N / 2**20))
        return min(1.0, room / full) if full > 0 else 1.0

    # --- one decision -----------------------------------------------------------------------------

    def close_out(self, which: list[int]) -> tuple[float, float]:
        cost = turnover = 0.0
        for n in which:
            x = abs(self.shares[n]) * self.mark(n, self.t)
            c = min(self.cost(n, self.t, self.shares[n], x), x)
            self.cash += self.shares[n] * self.mark(n, self.t) - c
            self.shares[n] = 0.0
            cost += c
            turnover += x
        return cost, turnover

    def turn(self, t: int, reference: list[float]) -> tuple[float, float]:
        """Events of bar t: what they bring, and the change of the holdings' value at the reference
        prices."""
        before = sum(h * reference[n] for n, h in enumerate(self.shares))
        income = self.apply_events(t)
        for n, ratio in enumerate(self.ratios(t)):
            reference[n] /= ratio
        return income, sum(h * reference[n] for n, h in enumerate(self.shares)) - before

    def step(self, action: list[float]) -> OracleStep:
        s = self.s
        before = self.equity()
        peak_before = self.peak
        began = self.t
        want = self.wanted(action)
        f = self.t if s.fill == "close" else self.t + 1
        # Price P&L, added up symbol by symbol: old holdings to the fill price, new holdings from
        # there.
        reference = [self.mark(n, self.t) for n in range(self.N)]
        income = pnl = 0.0
        if f > self.t:
            orders = [want[n] - self.shares[n] for n in range(self.N)]
            income, gained = self.turn(f, reference)
            pnl += gained
            ratios = self.ratios(f)
            want = [self.shares[n] + self.split(orders[n], ratios[n]) for n in range(self.N)]
        held = list(self.shares)
        cost, turnover = self.fill(want, f)
        traded = [self.shares[n] - held[n] for n in range(self.N)]
        price = self.prices(f)
        for n in range(self.N):
            if traded[n]:
                pnl += held[n] * (price[n] - reference[n])
                reference[n] = price[n]
        result = OracleStep(0.0, False, False, 0.0, 0.0, 0.0, traded=traded)
        for number in range(s.decision_interval):
            if self.t == self.end:
                result.bar_equity.append(self.equity())
                continue
            self.t += 1
            if number > 0 or f < self.t:
                more, gained = self.turn(self.t, reference)
                income = income + more
                pnl = pnl + gained
            gained, c, x = self.close_bar(reference)
            pnl = pnl + gained
            cost = cost + c
            turnover = turnover + x
            result.bar_equity.append(self.equity())
        result.pnl = pnl
        result.cost = cost
        result.turnover = turnover
        result.income = income
        self.conclude(result, before, peak_before, began)
        return result

    def close_bar(self, reference: list[float]) -> tuple[float, float, float]:
        """The end of a bar: interest, marks, ends of symbols, margin call. Returns price P&L since
        the reference prices, costs and turnover."""
        s = self.s
        pnl = cost = turnover = 0.0
        if s.short and s.borrow_bps_per_year > 0:
            ratios = self.ratios(self.t)
            borrowed = sum(
                -h * self.mark(n, self.t - 1) / ratios[n]
                for n, h in enumerate(self.shares)
                if h < 0
            )
            borrowed += max(0.0, -self.cash)
            years = (self.minutes[self.t] - self.minutes[self.t - 1]) / YEAR_NS
            interest = borrowed * s.borrow_bps_per_year / 1e4 * years
            self.cash -= interest
            cost += interest
        for n in range(self.N):
            mark = self.mark(n, self.t)
            pnl += self.shares[n] * (mark - reference[n])
            reference[n] = mark
        is_over = s.close_at_end and self.t == self.end
        c, x = self.close_out([n for n in range(self.N) if is_over or self.ended_at(n, self.t)])
        cost = cost + c
        turnover = turnover + x
        gross = sum(abs(h) * self.mark(n, self.t) for n, h in enumerate(self.shares))
        if s.maintenance_margin > 0 and self.equity() < s.maintenance_margin * gross:
            c, x = self.call_margin()
            cost = cost + c
            turnover = turnover + x
        self.peak = max(self.peak, self.equity())
        return pnl, cost, turnover

    def call_margin(self) -> tuple[float, float]:
        """Sells what can be sold; returns costs and turnover."""
        return self.close_out([n for n in range(self.N) if self.tradable[self.t][n]])

    def conclude(self, result: OracleStep, before: float, peak_before: float, began: int) -> None:
        """Flags and reward of a decision taken at bar `began`."""
        s = self.s
        after = self.equity()
        result.pnl += self.owed(began) - self.owed(self.t)
        result.terminated = after <= s.ruin_fraction * self.first
        result.truncated = self.t >= self.end and not result.terminated
        result.reward = s.reward_scale * self.reward(
            before, after, peak_before, self.benchmark[self.t] / self.benchmark[began]
        )

    def reward(self, before: float, after: float, peak_before: float, benchmark: float) -> float:
        s = self.s
        floor = 1e-6 * self.first
        r = math.log(max(after, floor) / max(before, floor))
        if s.reward == "profit":
            return (after - before) / self.first
        if s.reward == "log_return":
            return r
        if s.reward == "mean_variance":
            return r - s.risk_aversion / 2 * r**2
        if s.reward == "drawdown":
            return r - s.risk_aversion * max(0.0, before / peak_before - after / self.peak)
        if s.reward in ("active_return", "active_mean_variance", "differential_information_ratio"):
            r -= math.log(benchmark)
        if s.reward == "active_return":
            return r
        if s.reward == "active_mean_variance":
            return r - s.risk_aversion / 2 * r**2
        a = self.moment_1
        b = self.moment_2
        variance = max(b - a**2, (0.1 * PRIOR_VOLATILITY) ** 2)
        value = (b * (r - a) - a * (r**2 - b) / 2) / variance**1.5
        self.moment_1 += SHARPE_DECAY * (r - a)
        self.moment_2 += SHARPE_DECAY * (r**2 - b)
        return value
