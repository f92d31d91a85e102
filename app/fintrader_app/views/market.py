"""Market: the market data that a run used, cell by cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from fintrader.metrics import find_session_ends
from fintrader.numerals import count, format_count, percent
from fintrader.results import figures
from fintrader.results.figures.style import escape_label
from fintrader.results.folders import Folder, NotThereError, RunsFolder
from fintrader_app import charts, markets
from fintrader_app.artifacts import select_part
from fintrader_app.markets import Market
from fintrader_app.shell import (
    choose,
    choose_part,
    draw_answer,
    draw_notice,
    guarded,
    heading,
    human,
    line_up,
    list_market_folders,
    page,
    pick_clock,
    pick_run,
    plain,
)
from fintrader_app.tables import numbers, table

WINDOWS = ("train", "validation", "test")
MOST_CELLS = 12_000
MOST_SYMBOLS = 60


def render(runs: RunsFolder, head: DeltaGenerator) -> None:
    run, _ = pick_run(runs, head)
    market = markets.find(run.market, run.data_hash, list_market_folders(runs))
    draw_notice(market.description.provenance.notice)
    draw_answer(describe_market(market))
    parts = {
        "bars": ("Bars", show_bars),
        "features": ("Features", show_features),
        "coverage": ("Coverage", show_coverage),
        "quality": ("Quality", show_quality),
        "ties": ("Correlations", show_correlations),
    }
    view = choose_part({name: title for name, (title, _) in parts.items()}, "view")
    with guarded():
        parts[view][1](market)
    show_size(market)


def describe_market(market: Market) -> str:
    """State the market's size and its span in one line."""
    days = list(market.days().index)
    traded = percent(measure_traded_share(market), 1)
    return (
        f"{format_count(len(market.symbols), 'symbol')}, {format_count(len(days), 'session')} from"
        f" {days[0]} to {days[-1]}; {traded} of the bars have a trade."
    )


def show_size(market: Market) -> None:
    """Show the market's size, its dates and its content hash."""
    known = market.description
    total, assets = market.arrays["close"].shape
    days = market.days()
    cells = {
        "Symbols": count(assets),
        "Bars": count(total),
        "Sessions": count(len(days)),
        "Features": f"{len(known.feature_names)} + {len(known.context_names)}",
        "Traded cells": percent(measure_traded_share(market), 1),
        "Index": plain(known.benchmark_name, 40),
    }
    numbers(cells)
    text = f"Sessions {days.index[0]} to {days.index[-1]}, dates in {market.timezone}"
    if known.windows is not None:
        day_of = market.times.tz_convert(market.timezone)
        text += " · " + ", ".join(
            f"{name} {day_of[start]:%Y-%m-%d} to {day_of[stop - 1]:%Y-%m-%d}"
            for name, (start, stop) in zip(WINDOWS, known.windows, strict=True)
        )
    st.caption(f"{text} · content {plain(market.content_hash[:12])}")


remember = st.cache_data(
    show_spinner=False,
    max_entries=16,
    hash_funcs={Market: lambda market: f"{market.path}{market.content_hash}"},
)


@remember
def measure_traded_share(market: Market) -> float:
    """Measure the share of cells `[T, N]` with a trade."""
    return float(market.arrays["tradable"].mean())


def pick_cell(market: Market) -> tuple[str, str, str, DeltaGenerator]:
    """Pick a symbol, a session and a time zone; return them and the column next to them."""
    first, second, third, last = line_up(2, 2, 2, 2)
    with first:
        symbol = choose("Symbol", market.symbols, "symbol")
    with second:
        day = choose("Session", list(market.days().index), "session")
    with third:
        return symbol, day, pick_clock(market.timezone), last


def show_bars(market: Market) -> None:
    symbol, day, timezone, place = pick_cell(market)
    rows = market.rows(day)
    column = market.symbols.index(symbol)
    every = 1
    if rows.stop - rows.start > 15:
        usual = 5 if market.description.bar_minutes == 1 else 1
        label = "Bars per candle"
        chosen = place.segmented_control(label, [1, 5, 15], default=usual, key="market_candle")
        every = chosen or usual
    candles = market.candles(symbol, rows, every)
    if candles.empty:
        st.info(f"{plain(symbol)} did not trade on {day}.", icon=":material/event_busy:")
    else:
        figure = figures.candles_figure(candles, None, symbol=symbol, timezone=timezone)
        charts.show(figure, "market_candles")
        traded = market.arrays["tradable"][rows, column]
        st.caption(
            f"{count(int(traded.sum()))} of {count(len(traded))} bars with a trade; bars without"
            " one are left out, not filled in."
        )
    heading("All sessions")
    index = market.arrays["benchmark"][find_session_ends(market.arrays["session"])]
    stamps = np.asarray(market.days().index)
    values = market.daily_closes()[:, column]
    known = values[np.isfinite(values)]
    first = known[0] if len(known) else np.nan
    lines = {symbol: (stamps, values / first), "index": (stamps, index / index[0])}
    charts.show(
        charts.plot_lines(lines, y_title="adjusted close, multiples of the first", height=260),
        "market_closes",
    )


def show_features(market: Market) -> None:
    symbol, day, timezone, place = pick_cell(market)
    rows = market.rows(day)
    features = market.arrays["features"][rows, market.symbols.index(symbol)]
    values = np.concatenate([features, market.arrays["context"][rows]], axis=1, dtype=float)
    names = [*market.description.feature_names, *market.description.context_names]
    shown = place.multiselect(
        "Columns", names, default=names[:4], max_selections=8, key="market_features"
    )
    stamps = market.times[rows].tz_convert(timezone).strftime("%H:%M")
    lines = {name: (stamps, values[:, names.index(name)]) for name in shown}
    if lines:
        figure = charts.plot_lines(lines, height=380, x_title=f"{timezone} time")
        figure.update_xaxes(type="category", nticks=10, tickangle=0)
        charts.show(figure, "market_feature_lines")
    st.caption("As the agents see them.")
    scales = market.description.normalisation
    if scales is not None:
        known = [
            {"Column": name, "Mean": column.mean, "Deviation": column.std}
            for name, column in {**scales.features, **scales.context}.items()
        ]
        with st.expander("Means and deviations that scale them"):
            six_digits = st.column_config.NumberColumn(format="%.6g")
            look = {"Mean": six_digits, "Deviation": six_digits}
            table(known, "market_statistics", column_config=look)


@remember
def average_by_session(market: Market, array: str) -> np.ndarray[Any, Any]:
    """Average a flag over the bars of each session: `[sessions, N]`."""
    starts = market.days().to_numpy()
    flags = np.asarray(market.arrays[array], dtype=np.float32)
    return np.add.reduceat(flags, starts, axis=0) / np.diff(starts, append=len(flags))[:, None]


def show_coverage(market: Market) -> None:
    heading("Share of each session's bars with a trade")
    traded = average_by_session(market, "tradable")
    days = list(market.days().index)
    charts.show(plot_shares(traded, days, market.symbols), "market_coverage")
    member = average_by_session(market, "member")
    heading("Membership of the universe")
    if (member == 1).all():
        st.info("Every symbol is a member in every session.", icon=":material/check_circle:")
    else:
        charts.show(plot_shares(member, days, market.symbols, binary=True), "market_members")
    stamps = np.asarray(days)
    lines = {
        "members": (stamps, member.sum(axis=1)),
        "traded at all": (stamps, (traded > 0).sum(axis=1)),
    }
    charts.show(charts.plot_lines(lines, y_title="symbols", height=220), "market_counts")


def plot_shares(
    shares: np.ndarray[Any, Any], days: list[str], symbols: list[str], *, binary: bool = False
) -> go.Figure:
    """Plot shares, sessions across and symbols down. Many sessions are grouped; a group shows its
    lowest share."""
    sessions, assets = shares.shape
    stretch = max(1, -(-sessions * assets // MOST_CELLS))
    starts = np.arange(0, sessions, stretch)
    shown = np.minimum.reduceat(shares, starts, axis=0).T
    few, many = ("#a0a8b0", "#2a9d8f") if binary else ("#b42318", "#2a9d8f")
    figure = plot_heatmap(
        shown.astype(float),
        [days[k] for k in starts],
        symbols,
        ".1%",
        "of bars",
        zmin=0,
        colorscale=[[0, few], *([] if binary else [[0.8, "#e6bd52"]]), [1, many]],
    )
    figure.update_traces(colorbar_tickformat=".0%").update_xaxes(nticks=10)
    return figure.update_layout(height=min(900, 120 + 14 * max(8, assets)))


def plot_heatmap(
    cells: np.ndarray[Any, Any], x: list[str], y: list[str], form: str, unit: str, **look: Any
) -> go.Figure:
    """Plot a heat map of values up to 1, the first row on top; `form` formats a cell in its hover
    text, and `unit` is the title of the colour bar."""
    figure = go.Figure().add_heatmap(
        z=np.round(cells, 3),
        x=list(map(escape_label, x)),
        y=list(map(escape_label, y)),
        zmax=1,
        colorbar={"thickness": 10, "outlinewidth": 0, "title": {"text": unit}},
        hovertemplate="%{y}, %{x}: %{z:" + form + "}<extra></extra>",
        **look,
    )
    charts.frame_figure(figure)
    figure.update_yaxes(autorange="reversed", type="category", showgrid=False, nticks=40)
    return figure.update_xaxes(type="category", nticks=40)


def show_quality(market: Market) -> None:
    """Show the repairs, the symbols left out and those that ended early, the source, and the
    quality report."""
    provenance = market.description.provenance
    repairs = {human(name): number for name, number in provenance.repairs.items()}
    heading("Repairs")
    if not repairs:
        st.info("The market file names no repairs.", icon=":material/info:")
    elif not any(repairs.values()):
        st.success(f"Nothing had to be repaired ({', '.join(repairs).lower()}: 0).")
    else:
        table(repairs.items(), "market_repairs", columns=["Repair", "Rows"])
    left, right = st.columns(2)
    with left:
        heading("Left out")
        if provenance.left_out:
            table(provenance.left_out.items(), "market_left_out", columns=["Symbol", "Why"])
        else:
            st.caption("No symbol was left out.")
    with right:
        heading("Ended early")
        st.caption(", ".join(map(plain, provenance.ended)) or "None.")
        heading("Source")
        rows = {"Kind": "unknown"}
        if provenance.source is not None:
            rows["Kind"] = provenance.source.kind
            rows |= {file.name: f"sha256 {file.sha256}" for file in provenance.source.files}
        table(rows.items(), "market_source", columns=["What", "Value"])
    with guarded():
        show_findings(market)


def show_findings(market: Market) -> None:
    """Show the market's `quality.json`, if there is one."""
    try:
        report = Folder(market.path.parent).json("quality.json")
    except NotThereError:
        return
    kinds = {
        escape_label(human(name)): value
        for name, value in select_part(report, "kinds").items()
        if isinstance(value, int)
    }
    heading("Findings")
    if not kinds:
        st.success("No fault was found in the bars.")
        return
    figure = go.Figure().add_bar(x=list(kinds.values()), y=list(kinds), orientation="h")
    charts.frame_figure(figure, x_title="faults", height=90 + 26 * len(kinds))
    charts.show(figure, "market_kinds")
    faults = [fault for fault in report.get("faults") or [] if isinstance(fault, dict)][:2000]
    table(pd.DataFrame(faults).astype(str), "market_faults", height=320)


@remember
def measure_correlations(market: Market, most: int) -> Any:
    """Measure the correlations `[N, N]` of daily returns of the first `most` symbols; NaN for pairs
    with fewer than five common returns."""
    daily = np.log(market.daily_closes()[:, :most])
    return pd.DataFrame(np.diff(daily, axis=0)).corr(min_periods=5).to_numpy()


def show_correlations(market: Market) -> None:
    symbols = market.symbols[:MOST_SYMBOLS]
    matrix = measure_correlations(market, MOST_SYMBOLS)
    heading("Correlation of daily returns")
    off = matrix[~np.eye(len(symbols), dtype=bool)]
    if not np.isfinite(off).any():
        raise NotThereError("too few sessions or symbols for correlations")
    figure = plot_heatmap(
        matrix, symbols, symbols, ".2f", "correlation", zmin=-1, colorscale=figures.SCALE
    )
    figure.update_layout(height=min(860, 160 + 14 * max(14, len(symbols))))
    charts.show(figure, "market_ties")
    total = len(market.symbols)
    left_out = f" The first {MOST_SYMBOLS} of {total} symbols." if total > MOST_SYMBOLS else ""
    st.caption(
        f"Close to close over all sessions; mean off the diagonal {np.nanmean(off):.2f}.{left_out}"
    )


page("Market", render)
