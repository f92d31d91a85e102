"""Differences between two markets, or two accounts, before a bar."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fintrader.backtesting.account import BacktestAccount
from fintrader.bars.bars import PRICES
from fintrader.envs import EnvSettings, Policy
from fintrader.envs.benchmark import lay_out
from fintrader.market.tensors import MarketTensors
from fintrader.seeding import create_generator

_SYMBOL_ARRAYS = (*PRICES, "volume", "tradable", "member")
_DECISIONS = 300
CALENDAR = frozenset({"time_of_day", "time_to_close"})
"""Context made from the exchange's calendar alone, known in advance."""


@dataclass(frozen=True)
class Leak:
    """A value that changed with the future."""

    name: str
    """`feature return_5`, `context turbulence`, `close`, `observation`, `fill`, `equity`,
    ..."""
    cut: int
    """First bar of the changed future."""
    bar: int
    """First bar that differs; always before `cut`."""
    detail: str = ""
    times: int = 1
    """Number of views in which it was seen."""

    def __str__(self) -> str:
        where = f"bar {self.bar} changes when bars from {self.cut} on do"
        often = f"; seen in {self.times} views" if self.times > 1 else ""
        return f"{self.name}: {where}{f' ({self.detail})' if self.detail else ''}{often}"


def compare_markets(market: MarketTensors, changed: MarketTensors, cut: int) -> list[Leak]:
    """Compare every array before `cut` for the symbols of both markets; one leak per column, at its
    first differing bar."""
    common = [name for name in market.symbols if name in changed.symbols]
    leaks = []
    for name, own, their in _pair_arrays(market.window(0, cut), changed.window(0, cut), common):
        place = _find_difference(own, their)
        if place:
            symbol = "".join(f"{common[k]}, " for k in place[1:])
            gap = _describe_gap(own, float(own[place]), float(their[place]))
            leaks.append(Leak(name, cut, place[0], symbol + gap))
    own_symbols = sorted({*market.symbols} ^ {*changed.symbols})
    if own_symbols:
        detail = f"the future decides whether the market has {', '.join(own_symbols)}"
        leaks.append(Leak("symbols", cut, 0, detail))
    return leaks


def _pair_arrays(
    market: MarketTensors, changed: MarketTensors, symbols: Sequence[str]
) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield the name and both sides of each array, `[T]` or `[T, N]` with these symbols only."""
    ours, theirs = ([m.symbols.index(name) for name in symbols] for m in (market, changed))
    for name in _SYMBOL_ARRAYS:
        yield name, getattr(market, name)[:, ours], getattr(changed, name)[:, theirs]
    columns = zip(market.columns(), changed.columns(), strict=True)
    for k, ((name, one), (_, other)) in enumerate(columns):
        if k < market.num_features:
            yield f"feature {name}", one[:, ours], other[:, theirs]
        else:
            yield f"context {name}", one[:, 0], other[:, 0]
    for name in ("benchmark", "session", "minutes"):
        yield name, getattr(market, name), getattr(changed, name)
    shares = market.shares_outstanding
    if shares is not None:
        known = changed.shares_outstanding
        known = torch.full_like(changed.close, torch.nan) if known is None else known
        yield "shares_outstanding", shares[:, ours], known[:, theirs]


def _find_difference(one: Tensor, other: Tensor) -> tuple[int, ...]:
    """Find the first place where two arrays differ, NaN being equal to NaN; empty without one."""
    differ = ((one != other) & ~(one.isnan() & other.isnan())).nonzero()
    return tuple(differ[0].tolist()) if len(differ) else ()


def _describe_gap(column: Tensor, one: float, other: float) -> str:
    """Describe two values, such as `0.31 and 0.12, 1.3 deviations apart`."""
    values = column[column.isfinite()].to(torch.float64)
    varies = column.is_floating_point() and len(values) > 1
    spread = float(values.std()) if varies else 0.0
    gap = abs(one - other)
    size = f", {gap / spread:.2g} deviations apart" if spread > 0 and gap > 0 else ""
    return f"{one:.6g} and {other:.6g}{size}"


def find_unmoved(market: MarketTensors, changed: MarketTensors, cut: int) -> set[str] | None:
    """Find the columns that do not change from `cut` on although every bar does: they are not made
    of the bars. None if the markets' symbols differ.

    Constant columns are left out.
    """
    if market.symbols != changed.symbols:
        return None
    return {
        name
        for (name, one), (_, other) in zip(market.columns(), changed.columns(), strict=True)
        if name not in CALENDAR
        and torch.equal(one[cut:], other[cut:])
        and bool((one[cut:] != one[cut]).any())
    }


def compare(
    market: MarketTensors,
    changed: MarketTensors,
    cut: int,
    env: EnvSettings,
    policy: Policy,
) -> list[Leak]:
    """Compare everything before `cut` with a market whose future was changed: the columns, and one
    policy's observations, fills, equity and orders."""
    differences = compare_markets(market, changed, cut)
    if market.symbols != changed.symbols:
        return differences
    market = market.window(0, changed.num_bars)  # observations show the time left
    (first, seen), (second, theirs) = (_trade(m, env, policy, cut) for m in (market, changed))
    leaks = []
    for (bar, obs), (_, their_obs) in zip(seen, theirs, strict=False):  # one may be ruined
        place = _find_difference(obs[0], their_obs[0])
        if place:
            (column,) = place
            values = f"{float(obs[0, column]):.6g} and {float(their_obs[0, column]):.6g}"
            slices = first.layout.slices.items()
            part = next(name for name, columns in slices if column < columns.stop)
            leaks.append(Leak("observation", cut, bar, f"column {column}, {part}, {values}"))
            break
    log, rival = first.trade_log, second.trade_log
    for name, ours, changes in (
        ("equity", log.equity, rival.equity),
        ("fill", log.shares, rival.shares),
    ):
        place = _find_difference(torch.from_numpy(ours[:cut]), torch.from_numpy(changes[:cut]))
        if place:
            bar, *assets = place
            symbol = "".join(f"{market.symbols[k]}, " for k in assets)
            values = f"{ours[place]:,.10g} and {changes[place]:,.10g}"
            unit = "shares" if assets else "USD"
            leaks.append(Leak(name, cut, bar, f"{symbol}{values} {unit}"))
    # The last order fills at `cut` or before and must not know that bar. Only a split there may
    # change it.
    split = bool((market.events.bar == cut).any() | (changed.events.bar == cut).any())
    asked = np.flatnonzero(first.wanted != second.wanted)
    if asked.size and not split and not leaks:
        asset = int(asked[0])
        held = f"{first.wanted[asset]:,.6g} and {second.wanted[asset]:,.6g} shares"
        leaks.append(Leak("order", cut, seen[-1][0], f"{market.symbols[asset]}, {held} wanted"))
    return differences + leaks


def draw_policy(market: MarketTensors, seed: int, env: EnvSettings) -> Policy:
    """Draw a policy, a fixed random function of every column: any changed input changes its
    trades."""
    layout = lay_out(market, env)
    draw = create_generator(seed, "lookahead-policy")
    weight = torch.randn(layout.width, layout.num_actions, generator=draw) / layout.width**0.5

    def policy(obs: Tensor) -> Tensor:
        return torch.tanh(obs @ weight)

    return policy


def _trade(
    market: MarketTensors, env: EnvSettings, policy: Policy, cut: int
) -> tuple[BacktestAccount, list[tuple[int, Tensor]]]:
    """Trade up to the last bar before `cut`; return the account, and its observations with their
    bars.

    The first decision is delayed so that the last one falls on that bar: its order fills at `cut`
    or before, and must not know it. Only the last decisions are made, because long random trading
    ruins an account.
    """
    account = BacktestAccount(market, env)
    seen: list[tuple[int, Tensor]] = []
    interval = env.decision_interval
    wait = cut - 1 - min(_DECISIONS, (cut - 1) // interval) * interval
    is_over = account.act(None, wait) if wait else False
    with torch.no_grad():
        while not is_over and account.bar < cut:
            obs = account.observe()
            seen.append((account.bar, obs))
            is_over = account.act(policy(obs))
    return account, seen
