"""Two markets, or two accounts, up to a bar: what differs, where, and by how much."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.lookahead.views import Mode
from fintrader.envs import EnvSettings, ObservationLayout, Policy
from fintrader.envs.benchmark import shows_benchmark
from fintrader.market.tensors import MarketTensors
from fintrader.seeding import create_generator

_SYMBOL_ARRAYS = ("open", "close", "volume", "tradable", "member")
CALENDAR = frozenset({"time_of_day", "time_to_close"})
"""Context that is made of the exchange's calendar alone, which is known in advance."""


@dataclass(frozen=True)
class Leak:
    """One thing that changed with the future."""

    what: str
    """The name: `feature return_5`, `context turbulence`, `close`, `observation`, `fill`, `equity`,
    ..."""
    cut: int
    """From this bar on the future was changed."""
    bar: int
    """The first bar that differs; it lies before `cut`."""
    mode: Mode
    detail: str = ""
    times: int = 1
    """Views in which it was seen."""

    def __str__(self) -> str:
        where = f"bar {self.bar} changes when bars from {self.cut} on are {self.mode}"
        often = f"; seen in {self.times} views" if self.times > 1 else ""
        return f"{self.what}: {where}{f' ({self.detail})' if self.detail else ''}{often}"


def compare_markets(
    market: MarketTensors, changed: MarketTensors, cut: int, mode: Mode
) -> list[Leak]:
    """Every array before `cut`, for the symbols that both have; one leak a column, at its first
    differing bar."""
    common = [name for name in market.symbols if name in changed.symbols]
    ours, theirs = (
        torch.tensor([m.symbols.index(name) for name in common]) for m in (market, changed)
    )
    leaks = []

    def check(what: str, one: Tensor, other: Tensor) -> None:
        same = (
            (one == other) | (one.isnan() & other.isnan())
            if one.is_floating_point()
            else one == other
        )
        rows = same if same.ndim == 1 else same.all(1)
        if bool(rows.all()):
            return
        bar = int((~rows).nonzero()[0])
        at: tuple[int, ...] = (bar,) if same.ndim == 1 else (bar, int((~same[bar]).nonzero()[0]))
        where = "" if same.ndim == 1 else f"{common[at[1]]}, "
        leaks.append(
            Leak(what, cut, bar, mode, where + _apart(one, float(one[at]), float(other[at])))
        )

    for name in _SYMBOL_ARRAYS:
        check(name, getattr(market, name)[:cut, ours], getattr(changed, name)[:cut, theirs])
    for k, name in enumerate(market.feature_names):
        check(f"feature {name}", market.features[:cut, ours, k], changed.features[:cut, theirs, k])
    for k, name in enumerate(market.context_names):
        check(f"context {name}", market.context[:cut, k], changed.context[:cut, k])
    for name in ("benchmark", "session", "minutes"):
        check(name, getattr(market, name)[:cut], getattr(changed, name)[:cut])
    if market.shares_outstanding is not None:
        known = changed.shares_outstanding
        known = torch.full_like(changed.close, torch.nan) if known is None else known
        check("shares_outstanding", market.shares_outstanding[:cut, ours], known[:cut, theirs])
    missing = [name for name in market.symbols if name not in changed.symbols]
    if missing:
        leaks.append(
            Leak(
                "symbols",
                cut,
                0,
                mode,
                f"the future decides that {', '.join(missing)} are in the market",
            )
        )
    return leaks


def _apart(column: Tensor, one: float, other: float) -> str:
    """`0.31 and 0.12, 1.3 deviations apart`."""
    text = f"{one:.6g} and {other:.6g}"
    values = (
        column[column.isfinite()].to(torch.float64) if column.is_floating_point() else column[:0]
    )
    spread = float(values.std()) if len(values) > 1 else 0.0
    return (
        f"{text}, {abs(one - other) / spread:.2g} deviations apart"
        if spread > 0 and one - other
        else text
    )


def unmoved(market: MarketTensors, changed: MarketTensors, cut: int) -> set[str]:
    """Columns that say the same from `cut` on though every bar is another: they are not made of the
    bars.

    Columns that hold one value throughout say nothing, and are left out.
    """
    columns = {
        name: (market.features[..., k], changed.features[..., k])
        for k, name in enumerate(market.feature_names)
    }
    columns |= {
        name: (market.context[:, k], changed.context[:, k])
        for k, name in enumerate(market.context_names)
    }
    if market.symbols != changed.symbols:
        return set()
    return {
        name
        for name, (one, other) in columns.items()
        if name not in CALENDAR
        and torch.equal(one[cut:], other[cut:])
        and bool((one[cut:] != one[cut]).any())
    }


def compare_trading(
    market: MarketTensors,
    changed: MarketTensors,
    cut: int,
    mode: Mode,
    env: EnvSettings,
    policy: Policy,
) -> list[Leak]:
    """Observations, fills, equity and orders before `cut`, traded by the same policy in both
    markets."""
    if market.symbols != changed.symbols:
        return []
    (one, seen), (other, theirs) = (_trade(m, env, policy, cut) for m in (market, changed))
    leaks = []
    for (bar, obs), (_, their_obs) in zip(seen, theirs, strict=True):
        if not torch.equal(obs, their_obs):
            column = int((obs != their_obs).flatten().nonzero()[0])
            values = f"{float(obs[0, column]):.6g} and {float(their_obs[0, column]):.6g}"
            what = column_name(one.layout, market, column)
            leaks.append(Leak("observation", cut, bar, mode, f"{what}, {values}"))
            break
    ours_usd = one.trade_log.equity[:cut]
    theirs_usd = other.trade_log.equity[:cut]
    apart = np.flatnonzero(ours_usd != theirs_usd)
    if apart.size:
        bar = int(apart[0])
        leaks.append(
            Leak("equity", cut, bar, mode, f"{ours_usd[bar]:,.2f} and {theirs_usd[bar]:,.2f} USD")
        )
    ours_held = one.trade_log.shares[:cut]
    theirs_held = other.trade_log.shares[:cut]
    moved = np.argwhere(ours_held != theirs_held)
    if len(moved):
        bar, asset = moved[0].tolist()
        held = f"{ours_held[bar, asset]:,.6g} and {theirs_held[bar, asset]:,.6g} shares"
        leaks.append(Leak("fill", cut, bar, mode, f"{market.symbols[asset]}, {held}"))
    # What was asked for fills at `cut`: it may not know that bar. A split there changes it, as it
    # should.
    split = bool((market.events.bar == cut).any() | (changed.events.bar == cut).any())
    asked = np.flatnonzero(one.wanted != other.wanted)
    if asked.size and not split and not leaks:
        asset = int(asked[0])
        held = f"{one.wanted[asset]:,.6g} and {other.wanted[asset]:,.6g} shares"
        leaks.append(
            Leak("order", cut, seen[-1][0], mode, f"{market.symbols[asset]}, {held} wanted")
        )
    return leaks


def column_name(layout: ObservationLayout, market: MarketTensors, column: int) -> str:
    """What stands in a column of the flat observation."""
    for part, columns in layout.slices.items():
        if columns.start <= column < columns.stop:
            at = column - columns.start
            if part == "features":
                asset, feature = divmod(at, layout.num_features)
                return f"feature {market.feature_names[feature]} of {market.symbols[asset]}"
            if part == "history":
                back, below = divmod(at, layout.row_width)
                bare = replace(layout, lookback=1)
                name = column_name(bare, market, below + bare.private_width)
                return f"{name}, {layout.lookback - 1 - back} bars before"
            if part in ("holdings", "tradable", "member", "benchmark"):
                return f"{part} of {market.symbols[at]}"
            return f"{part} {market.context_names[at]}" if part == "context" else f"{part} {at}"
    raise IndexError(column)


def reacting_policy(market: MarketTensors, seed: int, env: EnvSettings) -> Policy:
    """A fixed random function of every column: if anything it sees changes, so do its trades."""
    layout = ObservationLayout.of(market, env.lookback, benchmark=shows_benchmark(market, env))
    draw = create_generator(seed, "lookahead-policy")
    weight = torch.randn(layout.width, layout.num_assets, generator=draw) / layout.width**0.5

    def policy(obs: Tensor) -> Tensor:
        return torch.tanh(obs @ weight)

    return policy


def _trade(
    market: MarketTensors, env: EnvSettings, policy: Policy, cut: int
) -> tuple[BacktestAccount, list[tuple[int, Tensor]]]:
    """Decide up to the last bar before `cut`, whose order fills later: the account, and what it saw
    when.

    The first decision is put off so that the last one falls on that bar: an order may not know the
    bar it fills in.
    """
    account = BacktestAccount(market, env)
    seen: list[tuple[int, Tensor]] = []
    wait = (cut - 1) % env.decision_interval
    over = account.act(None, wait) if wait else False
    with torch.no_grad():
        while not over and account.bar < cut:
            obs = account.observe()
            seen.append((account.bar, obs))
            over = account.act(policy(obs))
    return account, seen
