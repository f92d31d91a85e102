"""How much of a result hangs on one choice: costs, fills, a bar's delay, the first day, a single stock.

Every row is a whole simulation with one thing changed. What a result survives is worth more than its best number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fintrader import metrics as m
from fintrader.backtest.desk import FastDesk, make_desk
from fintrader.backtest.result import BacktestResult
from fintrader.backtest.simulate import simulate
from fintrader.data.tensors import MarketTensors
from fintrader.envs import EnvSettings, Policy, TradingEnv
from fintrader.metrics import performance as p
from fintrader.progress import SILENT, Progress

COSTS_BPS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)
FILLS = ("next_open", "next_close", "close")
START_SHIFTS = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Variation:
    """The outcome of one changed choice."""

    kind: str
    """`cost_bps`, `fill`, `delay_bars`, `start_sessions` or `without`."""
    setting: str
    """The changed value, as text."""
    cumulative_return: float | None
    annual_return: float | None
    sharpe: float | None
    max_drawdown: float | None
    chosen: bool = False
    """Whether this is the choice that the backtest itself made."""


def sensitivity(
    policy: Policy,
    market: MarketTensors,
    settings: EnvSettings,
    *,
    costs_bps: Sequence[float] = COSTS_BPS,
    fills: Sequence[str] = FILLS,
    start_shifts: Sequence[int] = START_SHIFTS,
    stocks: bool = True,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """All variations as plain JSON rows. Raises BacktestError where a simulation does."""
    rows: list[Variation] = []
    costs = sorted({*costs_bps, settings.cost_bps})
    starts = _session_starts(market)
    shifts = [shift for shift in start_shifts if shift < len(starts) and market.num_bars - starts[shift] >= 2]
    total = len(costs) + len(fills) + len(shifts) + 1 + stocks
    with (progress or SILENT).task("sensitivity", total=total, unit="runs") as task:
        for cost in costs:
            changed = settings.model_copy(update={"cost_bps": cost})
            result = simulate(policy, market, changed, name=f"cost {cost}")
            rows.append(_row("cost_bps", f"{cost:g}", result, cost == settings.cost_bps))
            task.advance(note=f"{cost:g} bps")
        for fill in fills:
            result = simulate(policy, market, settings.model_copy(update={"fill": fill}), name=fill)
            rows.append(_row("fill", fill, result, fill == settings.fill))
            task.advance(note=fill)
        rows.append(_row("delay_bars", "0", simulate(policy, market, settings, name="no delay"), True))
        late = delayed(policy, market, settings)
        if late is not None:
            rows.append(_row("delay_bars", "1", late))
        task.advance(note="delay")
        for shift in shifts:
            window = market.window(int(starts[shift]), market.num_bars)
            result = simulate(policy, window, settings, name=f"start {shift}")
            rows.append(_row("start_sessions", str(shift), result))
            task.advance(note=f"start {shift} sessions later")
        if stocks:
            rows += without_each(policy, market, settings)
            task.advance(note="each stock removed")
    return [asdict(row) for row in rows]


def delayed(policy: Policy, market: MarketTensors, settings: EnvSettings) -> BacktestResult | None:
    """Every decision carried out one bar late: seen at t, ordered at t + 1. None where only `TradingEnv` can trade."""
    desk = make_desk(market, settings)
    if not isinstance(desk, FastDesk):
        return None
    over, interval = False, settings.decision_interval
    with torch.no_grad():
        action = policy(desk.observe())
        over = desk.act(None, 1)
        while not over:
            # With an interval of one bar the next decision is seen where this one is carried out.
            coming = policy(desk.observe()) if interval == 1 else None
            over = desk.act(action, 1 if interval == 1 else interval - 1)
            if not over and interval > 1:
                coming = policy(desk.observe())
                over = desk.act(None, 1)
            action = action if coming is None else coming
    return desk.book.result("delayed", "one bar late")


def without_each(policy: Policy, market: MarketTensors, settings: EnvSettings) -> list[Variation]:
    """One account for each symbol, which never buys that symbol: all of them at once in one environment."""
    count = market.num_assets
    settings = settings.model_copy(update={"random_start": False, "episode_bars": None})
    env = TradingEnv.evaluation(market, settings, num_envs=count, record=True)
    equity = np.full((market.num_bars, count), float(settings.initial_cash_usd))
    keep = 1 - torch.eye(count, device=env.device)
    alive = np.ones(count, dtype=bool)
    with torch.no_grad():
        obs, _ = env.reset()
        over = False
        while not over:
            obs, _, terminated, truncated, info = env.step(_clean(policy(obs), keep))
            bars = info["bars"][0].cpu().numpy()
            values = info["bar_equity"].cpu().numpy()
            equity[bars[:, None], np.flatnonzero(alive)] = values.T[:, alive]
            # A ruined account stays at what it had; the others go on (its episode is begun anew and ignored).
            gone = terminated.cpu().numpy() & alive
            equity[bars[-1] :, gone] = values[gone, -1]
            alive &= ~gone
            over = bool(truncated[torch.from_numpy(alive)].any()) or not alive.any()
            if not over and bool(terminated.any()):
                obs = _restart(env, terminated, int(bars[-1]))
    session = market.session.cpu().numpy()
    rows = []
    for column, symbol in enumerate(market.symbols):
        rows.append(_numbers("without", symbol, m.daily_returns(equity[:, column], session)))
    return rows


def _clean(action: Tensor, keep: Tensor) -> Tensor:
    return action.detach() * keep


def _restart(env: TradingEnv, which: Tensor, bar: int) -> Tensor:
    """Reset finished accounts at the bar where the others stand."""
    obs: Tensor = env.reset(options={"reset_mask": which, "start": bar})[0]
    return obs


def _session_starts(market: MarketTensors) -> np.ndarray[Any, np.dtype[np.int64]]:
    ends = m.session_ends(market.session.cpu().numpy())
    return np.concatenate([[0], ends[:-1] + 1])


def _row(kind: str, setting: str, result: BacktestResult, chosen: bool = False) -> Variation:
    return _numbers(kind, setting, result.daily_returns, chosen)


def _numbers(kind: str, setting: str, daily: Any, chosen: bool = False) -> Variation:
    return Variation(
        kind,
        setting,
        p.cumulative_return(daily),
        p.annual_return(daily),
        p.sharpe(daily),
        p.max_drawdown(daily),
        chosen,
    )


def by_kind(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Rows grouped, in order."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(str(row["kind"]), []).append(row)
    return groups
