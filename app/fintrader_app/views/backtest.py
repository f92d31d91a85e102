"""Backtest: the sections of the report, interactive."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st
from streamlit.column_config import DatetimeColumn, NumberColumn, TextColumn
from streamlit.delta_generator import DeltaGenerator

from fintrader.numerals import count, format_count, percent, usd
from fintrader.report.tearsheet import FORMATS, explain_absence
from fintrader.results import figures
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.folders import Folder, NotThereError, RunsFolder
from fintrader.results.formatting import duration, format_title
from fintrader.results.history import round_trips
from fintrader.results.run import Summary
from fintrader.results.sections import (
    BacktestView,
    present_attribution,
    present_baselines,
    present_capacity,
    present_curves,
    present_decisions,
    present_drawdowns,
    present_execution,
    present_factors,
    present_folds,
    present_metrics,
    present_periods,
    present_positions,
    present_profit,
    present_regimes,
    present_returns,
    present_rolling,
    present_trips,
    present_verdict,
)
from fintrader_app import artifacts, charts, markets, tables
from fintrader_app.sections import show
from fintrader_app.shell import (
    UTC,
    choose,
    choose_part,
    find_runs_folder,
    go,
    guarded,
    heading,
    human,
    line_up,
    link_choices,
    list_market_folders,
    page,
    pick_clock,
    pick_run,
    plain,
    remember,
)
from fintrader_app.tables import table

TABS = {
    "curves": "Curves",
    "risk": "Rolling",
    "calendar": "Calendar",
    "weights": "Weights",
    "profit": "Profit",
    "trades": "Trades",
    "decisions": "Decisions",
    "metrics": "All metrics",
}
REPORT_LIMIT = 16 << 20
DEFAULT_RIVALS = ("ensemble", "buy_and_hold", "equal_weight", "benchmark")
WHOLE = "whole window"
MOMENT = "YYYY-MM-DD HH:mm"
STAMP = "%Y-%m-%d %H:%M"
MOST_ROWS = 2000
MOST_CANDLES = 900
SLIDER = 260  # pixels


def render(runs: RunsFolder, head: DeltaGenerator) -> None:
    run, folder = pick_run(runs, head)
    stored = artifacts.backtest(folder)
    left, middle, right = st.columns([4, 10, 5], vertical_alignment="center")
    main, others = pick_strategies(stored, left, middle)
    with right, st.container(horizontal=True, vertical_alignment="center"):
        clock = pick_clock(stored.market_timezone)
        offer_report(folder, stored)
    stored = stored.on_clock(clock)
    view = BacktestView(stored, main, tuple(others))
    version = artifacts.backtest_version(folder)
    show(present_verdict, view, version)
    tables.show_cards(stored, main)
    bar = st.container(horizontal=True, vertical_alignment="center")
    with bar:
        tab = choose_part(TABS, "part")
    with guarded():
        draw_part(tab, view, version, run, bar)


def draw_part(
    tab: str, view: BacktestView, version: Hashable, run: Summary, bar: DeltaGenerator
) -> None:
    """Draw the sections of one part of the page, and its controls into the `bar` above them."""
    draw = partial(show, view=view, version=version)
    match tab:
        case "curves":
            scale = bar.segmented_control(
                "Scale",
                ["USD", "Relative", "Log"],
                default="USD",
                key="curves_scale",
                label_visibility="collapsed",
            )
            draw(present_curves, scale=scale or "USD")
            draw(present_drawdowns)
        case "risk":
            draw(present_rolling, window=pick_window(view, bar))
        case "calendar":
            slot = bar.segmented_control(
                "Minutes of a slot",
                [15, 30, 60],
                default=30,
                format_func=lambda minutes: f"{minutes} min",
                key="slots",
                label_visibility="collapsed",
            )
            draw(present_returns, slot_minutes=slot or 30)
            draw(present_periods)
            draw(present_regimes)
        case "weights":
            apart = bar.slider(
                "Symbols with their own colour",
                3,
                12,
                figures.APART,
                key="weights_top",
                width=SLIDER,
            )
            draw(present_positions, apart=apart)
            draw(present_execution)
            draw(present_capacity)
        case "profit":
            draw(present_profit, most=None)
            draw(present_attribution)
            draw(present_trips)
            list_lots(view, version)
            draw(present_factors)
        case "trades":
            show_trades(view.stored, run, view.main)
        case "decisions":
            draw(present_decisions)
            explore_decision(view.stored)
        case "metrics":
            draw(present_baselines)
            draw(present_folds)
            draw(present_metrics)


def pick_window(view: BacktestView, bar: DeltaGenerator) -> int | None:
    """Pick the number of sessions that rolling figures look back over; None if there are too
    few."""
    sessions = len(view.stored.ends)
    usual = figures.rolling_sessions(sessions)
    if usual is None:
        return None
    key = f"rolling_{sessions}"
    return bar.slider("Window, sessions", 5, sessions // 2, usual, key=key, width=SLIDER)


def pick_strategies(
    stored: StoredBacktest, left: DeltaGenerator, right: DeltaGenerator
) -> tuple[str, list[str]]:
    """Pick the strategy that the page shows, and those to compare with it."""
    with left:
        main = choose(
            "Strategy",
            stored.strategies,
            "strategy",
            format_func=human,
            label_visibility="collapsed",
        )
    rest = [name for name in stored.strategies if name != main]
    with right:
        chosen = st.pills(
            "Compare with",
            rest,
            selection_mode="multi",
            format_func=format_title,
            key=link_choices(
                "compared",
                rest,
                [name for name in rest if name in DEFAULT_RIVALS] or rest[:3],
                len(rest),
            ),
            label_visibility="collapsed",
        )
    others = [name for name in rest if name in (chosen or [])]
    remember("compared", ",".join(others))
    return main, others


def offer_report(folder: Folder, stored: StoredBacktest) -> None:
    """Offer the report and the tear sheet as downloads."""
    sheets = [f"tear_sheet{ending}" for ending in FORMATS]
    names = [name for name in ("report.html", *sheets) if folder.exists("backtest", name)]
    if not names:
        return
    with st.popover("Report", icon=":material/description:"), guarded():
        st.caption("The report is one HTML file with all of this.")
        for name in names:
            st.download_button(
                f"Download {name}",
                partial(folder.read, "backtest", name, limit=REPORT_LIMIT),
                file_name=name,
                icon=":material/download:",
                on_click="ignore",
            )
        if not set(sheets).intersection(names):
            st.info(explain_absence(stored), icon=":material/hourglass_empty:")


@st.cache_data(max_entries=8, show_spinner=False)
def find_lots(version: Hashable, main: str, _stored: StoredBacktest) -> pd.DataFrame:
    """Find the closed lots of a strategy, the newest first."""
    return round_trips(_stored.select_trades(main)).iloc[::-1]


def list_lots(view: BacktestView, version: Hashable) -> None:
    """List the closed lots in a table that can be sorted and searched."""
    state = (version, view.stored.timezone)
    lots = find_lots(state, view.main, view.stored)
    if lots.empty:
        return
    frame = lots.assign(
        profit_usd=lots["profit_usd"].round(2) + 0.0,  # makes -0.0 a 0.0
        held=(60 * lots["minutes"]).map(duration),
    )
    config = {
        "symbol": TextColumn("Symbol", pinned=True),
        "opened": DatetimeColumn("Opened", format=MOMENT),
        "closed": DatetimeColumn("Closed", format=MOMENT),
        "shares": "Shares",
        "profit_usd": NumberColumn("Profit, net", format="dollar"),
        "held": "Held",
    }
    list_rows(frame, "profit_lots", config, height=458)


def list_rows(rows: pd.DataFrame, key: str, config: Any, **options: Any) -> Any:
    """List the first rows in a table of the columns in `config`; return what `table` does."""
    frame = rows[list(config)].head(MOST_ROWS).astype({"symbol": str})
    for name, times in frame.select_dtypes("datetimetz").items():
        frame[name] = times.dt.tz_localize(None)
    event = table(frame, key, column_config=config, **options)
    if len(rows) > MOST_ROWS:
        st.caption(f"The first {count(MOST_ROWS)} of {count(len(rows))} rows.")
    return event


def show_trades(stored: StoredBacktest, run: Summary, main: str) -> None:
    mine = stored.select_fills(main)
    if mine.empty:
        raise NotThereError(f"{human(main)} made no trade")
    counts = mine["symbol"].astype(str).value_counts()
    left, middle, right = line_up(1, 1, 1)
    with left:
        symbol = choose(
            "Symbol, most traded first",
            list(counts.index),
            "symbol",
            format_func=lambda name: f"{name} · {format_count(counts[name], 'fill')}",
        )
    shown = mine[mine["symbol"] == symbol]
    days = name_sessions(stored, shown)
    with middle:
        day = choose("Session", [WHOLE, *sorted(days.unique())], "day")
    if day != WHOLE:
        shown = shown[days == day]
    every = right.segmented_control(
        "Candle",
        [1, 5, 15, 60],
        default=5,
        format_func=lambda bars: format_count(bars, "bar"),
        key="candle",
    )
    with guarded():
        draw_prices(stored, run, symbol, day, every or 5, shown)
    st.caption(
        f"{format_count(len(shown), 'fill')} of {plain(symbol)}:"
        f" {usd(shown['notional_usd'].sum())} traded, {usd(shown['cost_usd'].sum())} costs"
    )

    def follow(place: int) -> None:
        decided = stored.minutes[shown["decision_bar"].iloc[place]].tz_convert(UTC)
        go("backtest.py", part="decisions", decision=decided.strftime(STAMP))

    found = stored.explanation
    is_explained = found is not None and main == found.strategy
    list_fills(shown, stored.timezone, "trades_table", follow if is_explained else None)


def name_sessions(stored: StoredBacktest, fills: pd.DataFrame) -> pd.Index[str]:
    """Name the session of each fill by its day."""
    names = markets.name_days(stored.minutes, stored.session, stored.market_timezone)
    return names[np.searchsorted(stored.ends, fills["fill_bar"])]


def explore_decision(stored: StoredBacktest) -> None:
    """Draw one decision, picked by its time, and list its fills. A link may ask for a decision that
    was not examined."""
    found = stored.explanation
    if found is None:
        return
    zone = stored.timezone
    linked = pd.to_datetime(
        [st.query_params.get("decision", "")], utc=True, errors="coerce", format=STAMP
    )
    near = linked[(linked >= stored.minutes[0]) & (linked <= stored.minutes[-1])]
    times = found.times.union(stored.minutes.intersection(near))
    names = list(times.strftime(STAMP))  # UTC, so that a link means the same on both clocks
    when = dict(zip(names, times.tz_convert(zone).strftime(STAMP), strict=True))
    heading("One decision")
    left, right = line_up(1, 2)
    with left:
        title = f"Decided at the close of this bar ({zone})"
        chosen = choose(title, names, "decision", format_func=when.__getitem__)
    time = times[names.index(chosen)]
    words = f"Not among the {count(len(found.times))} decisions whose inputs were examined."
    for k in map(int, np.flatnonzero(found.times == time)):
        most = found.moved[k].argmax()
        words = (
            f"Moved most by {plain(human(found.inputs[most]))}: without it"
            f" {percent(found.moved[k, most])} of the account would have been held elsewhere. The"
            " target weight is in brackets; inputs in blue raised it, in red lowered it."
        )
        charts.show(figures.decision_figure(found, k), "decisions_one")
    right.caption(words)
    fills = stored.select_fills(found.strategy)
    fills = fills[(stored.minutes[fills["decision_bar"]] == time) & (fills["kind"] == "order")]
    st.caption(f"Fills of this decision: {len(fills)}")
    if fills.empty:
        return

    def follow(place: int) -> None:
        symbol = fills["symbol"].iloc[place]
        day = name_sessions(stored, fills)[place]
        go("backtest.py", part="trades", strategy=found.strategy, symbol=symbol, day=day)

    list_fills(fills, zone, "decision_fills", follow)


def draw_prices(
    stored: StoredBacktest,
    run: Summary,
    symbol: str,
    day: str,
    every: int,
    fills: pd.DataFrame,
) -> None:
    """Draw candles of the market file, with the fills on them."""
    market = markets.find(run.market, run.data_hash, list_market_folders(find_runs_folder()))
    if symbol not in market.symbols:
        raise NotThereError("the market file does not hold this symbol")
    times = market.times
    if day == WHOLE:
        begin, end = times.searchsorted(stored.minutes[[0, -1]])
        rows = slice(int(begin), int(end) + 1)
    else:
        rows = market.rows(day)
    about = f"Candles of {format_count(every, 'traded bar')}."
    most = every * MOST_CANDLES
    cut = ""
    if rows.stop - rows.start > most:
        # Candles keep the chosen length; of a long window only the end is drawn.
        rows = slice(rows.stop - most, rows.stop)
        fills = fills[fills["fill_time"] >= times[rows.start]]
        cut = (
            f" The last {count(most)} bars of the window; choose a session or longer candles for"
            " the rest."
        )
    bars = market.candles(symbol, rows, every)
    if bars.empty:
        raise NotThereError("the market file holds no bar here")
    placed = fills.assign(bar_start=stored.minutes[fills["fill_bar"]])
    charts.show(
        figures.candles_figure(bars, placed, symbol=symbol, timezone=stored.timezone),
        "trades_candles",
        height=380,
    )
    if len(fills) > figures.MOST_MARKS:
        about += f" The {figures.MOST_MARKS} largest of {count(len(fills))} fills are marked."
    st.caption(about + cut)


def list_fills(
    rows: pd.DataFrame, timezone: str, key: str, follow: Callable[[int], None] | None
) -> None:
    """List fills. `follow(place)` opens the other page of a chosen order."""
    config = {
        "decision_time": DatetimeColumn(f"Decided ({timezone})", format=MOMENT),
        "fill_time": DatetimeColumn(f"Filled ({timezone})", format=MOMENT),
        "symbol": "Symbol",
        "shares": NumberColumn("Shares", format="%.4g"),
        "price_usd": NumberColumn("Price", format="dollar"),
        "notional_usd": NumberColumn("Notional", format="dollar"),
        "cost_usd": NumberColumn("Cost", format="dollar"),
        "kind": "Kind",
    }
    if follow is not None:
        st.caption("Choose a fill to go from its trades to its decision, or back.")
    on_select = "ignore" if follow is None else "rerun"
    # A choice is a row number: other fills need another key.
    key = f"{key}_{hash(tuple(rows.index))}"
    event = list_rows(
        rows, key, config, height=320, on_select=on_select, selection_mode="single-row"
    )
    if follow is None or not event.selection.rows:
        return
    (place,) = event.selection.rows
    if rows["kind"].iloc[place] == "order":
        follow(place)
    st.caption("This fill was forced: it follows from no decision.")


page("Backtest", render)
