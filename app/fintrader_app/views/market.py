"""Market: the tensors a run was made from, cell by cell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from fintrader.results import figures
from fintrader.results.figures.style import escape_label
from fintrader.results.folders import Folder, NotThereError, RunsFolder
from fintrader.results.formatting import count, percent
from fintrader_app import charts, markets
from fintrader_app.artifacts import select_part
from fintrader_app.local_time import pick_clock
from fintrader_app.markets import Market
from fintrader_app.shell import (
    choose,
    choose_part,
    guarded,
    human,
    list_market_folders,
    page,
    pick_run,
    plain,
)
from fintrader_app.tables import numbers, table

TABS = {
    "bars": "Bars",
    "features": "Features",
    "coverage": "Coverage",
    "quality": "Quality",
    "ties": "Correlations",
}
WINDOWS = ("train", "validation", "test")
MOST_CELLS = 12_000
MOST_SYMBOLS = 60


def render(runs: RunsFolder) -> None:
    run, _ = pick_run(runs)
    market = markets.find(run.market, run.data_hash, list_market_folders(runs))
    show_head(market)
    draw = {
        "bars": show_bars,
        "features": show_features,
        "coverage": show_coverage,
        "quality": show_quality,
        "ties": show_correlations,
    }
    tab = choose_part(TABS, "view")
    with guarded():
        draw[tab](market)


def show_head(market: Market) -> None:
    """What this market is."""
    total, assets = market.arrays["close"].shape
    days = market.days()
    cells = [
        ("Symbols", count(assets)),
        ("Bars", count(total)),
        ("Sessions", count(len(days))),
        ("Features", f"{len(market.feature_names)} + {len(market.context_names)}"),
        ("Traded cells", percent(measure_traded_share(market), 1)),
        ("Index", plain(market.description.benchmark_name, 40)),
    ]
    numbers(cells)
    windows = market.description.windows
    text = f"Sessions {days.index[0]} to {days.index[-1]}, days of {market.timezone}"
    if windows is not None:
        day_of = market.times.tz_convert(market.timezone)
        text += " · " + ", ".join(
            f"{name} {day_of[start]:%Y-%m-%d} to {day_of[stop - 1]:%Y-%m-%d}"
            for name, (start, stop) in zip(WINDOWS, windows, strict=True)
        )
    st.caption(f"{text} · content {plain(market.content_hash[:12])}")


remember = st.cache_data(
    show_spinner=False,
    max_entries=16,
    hash_funcs={Market: lambda market: f"{market.path}{market.content_hash}"},
)


@remember
def measure_traded_share(market: Market) -> float:
    """Share of all cells with a trade."""
    return float(market.arrays["tradable"].mean())


def pick_cell(market: Market) -> tuple[str, str, str]:
    """A symbol, a session, and the time zone of the clock."""
    left, right = st.columns(2)
    with left:
        symbol = choose("Symbol", market.symbols, "symbol")
    with right:
        days = list(market.days().index)
        day = choose("Session", days, "session")
    return symbol, day, pick_clock(market.timezone)


def show_bars(market: Market) -> None:
    symbol, day, timezone = pick_cell(market)
    rows = market.rows(day)
    column = market.symbols.index(symbol)
    every = st.segmented_control("Bars a candle", [1, 5, 15], default=5, key="market_candle") or 5
    candles = market.candles(symbol, rows, every)
    if candles.empty:
        st.info(f"{plain(symbol)} did not trade on {day}.", icon=":material/event_busy:")
    else:
        figure = figures.candles_figure(candles, None, symbol=symbol, timezone=timezone)
        charts.show(figure, "market_candles")
        traded = int(market.arrays["tradable"][rows, column].sum())
        st.caption(
            f"{count(traded)} of {count(rows.stop - rows.start)} bars with a trade. Candles are"
            " made from the stored opens and closes; bars without a trade are left out, not"
            " filled in."
        )
    st.subheader("All sessions", anchor=False)
    close = market.arrays["close"][:, column].astype(float)
    ends = np.append(np.flatnonzero(np.diff(market.arrays["session"]) > 0), len(close) - 1)
    index = market.arrays["benchmark"][ends]
    stamps = np.asarray(market.days().index)
    values = close[ends]
    known = values[np.isfinite(values)]
    first = known[0] if len(known) else np.nan
    lines = {symbol: (stamps, values / first), "index": (stamps, index / index[0])}
    charts.show(
        charts.plot_lines(lines, y_title="close, multiples of the first", height=260),
        "market_closes",
    )


def show_features(market: Market) -> None:
    symbol, day, timezone = pick_cell(market)
    rows = market.rows(day)
    column = market.symbols.index(symbol)
    names = market.feature_names
    both = [*names, *market.context_names]
    shown = st.multiselect(
        "Columns", both, default=both[:4], max_selections=8, key="market_features"
    )
    stamps = market.times[rows].tz_convert(timezone).strftime("%H:%M")
    lines = {}
    for name in shown:
        if name in names:
            values = market.arrays["features"][rows, column, names.index(name)]
        else:
            values = market.arrays["context"][rows, market.context_names.index(name)]
        lines[name] = (stamps, values.astype(float))
    if lines:
        figure = charts.plot_lines(lines, height=380, x_title=f"{timezone} time")
        figure.update_xaxes(type="category", nticks=10, tickangle=0)
        charts.show(figure, "market_feature_lines")
    st.caption(
        "As the agents see them: standardised with the training window's mean and deviation, then"
        " clipped."
    )
    scales = market.description.normalisation
    if scales is not None:
        known = [
            {"Column": name, "Mean": column.mean, "Deviation": column.std}
            for name, column in {**scales.features, **scales.context}.items()
        ]
        with st.expander("What they were standardised with"):
            config = {
                name: st.column_config.NumberColumn(format="%.6g") for name in ("Mean", "Deviation")
            }
            table(known, "market_statistics", column_config=config)


@remember
def average_by_session(market: Market, array: str) -> np.ndarray[Any, Any]:
    """`[sessions, N]`: share of a session's bars in which a flag is set."""
    session = market.arrays["session"]
    starts = np.flatnonzero(np.append(True, np.diff(session) > 0))
    lengths = np.diff(np.append(starts, len(session)))
    return (
        np.add.reduceat(np.asarray(market.arrays[array], dtype=np.float32), starts, axis=0)
        / lengths[:, None]
    )


def show_coverage(market: Market) -> None:
    st.subheader("Share of each session's bars with a trade", anchor=False)
    traded = average_by_session(market, "tradable")
    days = list(market.days().index)
    charts.show(plot_shares(traded, days, market.symbols), "market_coverage")
    member = average_by_session(market, "member")
    st.subheader("Membership of the universe", anchor=False)
    if bool((member == 1).all()):
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
    """Sessions across, symbols down. Many sessions are put together, the lowest share of each
    stretch shown."""
    sessions, assets = shares.shape
    stretch = max(1, -(-sessions * assets // MOST_CELLS))
    starts = np.arange(0, sessions, stretch)
    shown = np.minimum.reduceat(shares, starts, axis=0).T
    colours = (
        [[0, "#b42318"], [0.8, "#e6bd52"], [1, "#2a9d8f"]]
        if not binary
        else [[0, "#a0a8b0"], [1, "#2a9d8f"]]
    )
    height = min(900, 120 + 14 * max(8, assets))
    across = [days[k] for k in starts]
    names = [escape_label(symbol) for symbol in symbols]
    return plot_heatmap(
        shown.astype(float), across, names, ".1%", height, 10, "of bars", zmin=0, colorscale=colours
    )


def plot_heatmap(
    cells: np.ndarray[Any, Any],
    x: list[str],
    y: list[str],
    form: str,
    height: int,
    ticks: int,
    unit: str,
    **look: Any,
) -> go.Figure:
    """Cells up to 1, the first row on top; `form` is how hovering writes one, `unit` what the
    colours are."""
    bar = {"thickness": 10, "outlinewidth": 0, "title": {"text": unit}}
    bar |= {"tickformat": ".0%"} if "%" in form else {}
    hover = "%{y}, %{x}: %{z:" + form + "}<extra></extra>"
    figure = go.Figure(
        go.Heatmap(
            z=np.round(cells, 3), x=x, y=y, zmax=1, colorbar=bar, hovertemplate=hover, **look
        )
    )
    charts.framed(figure, hover="closest", height=height)
    figure.update_yaxes(
        autorange="reversed", type="category", tickformat=None, showgrid=False, nticks=40
    )
    figure.update_xaxes(type="category", nticks=ticks)
    return figure


def show_quality(market: Market) -> None:
    """What was repaired, left out and ended, as the market file says, and the quality report beside
    it."""
    provenance = market.description.provenance
    repairs = provenance.repairs
    st.subheader("Repairs", anchor=False)
    if not repairs:
        st.info("The market file names no repairs.", icon=":material/info:")
    elif not any(repairs.values()):
        st.success(
            f"Nothing had to be repaired ({', '.join(human(n).lower() for n in repairs)}: 0)."
        )
    else:
        rows = [{"Repair": human(name), "Rows": value} for name, value in repairs.items()]
        table(rows, "market_repairs")
    left, right = st.columns(2)
    with left:
        st.subheader("Left out", anchor=False)
        if provenance.left_out:
            rows = [{"Symbol": name, "Why": why} for name, why in provenance.left_out.items()]
            table(rows, "market_left_out")
        else:
            st.caption("No symbol was left out.")
    with right:
        st.subheader("Ended before the data does", anchor=False)
        st.caption(", ".join(plain(name) for name in provenance.ended) or "None.")
        source = provenance.source
        st.subheader("Source", anchor=False)
        rows = [{"What": "Kind", "Value": "unknown" if source is None else source.kind}]
        for file in () if source is None else source.files:
            rows.append({"What": file.name, "Value": f"sha256 {file.sha256}"})
        table(rows, "market_source")
    with guarded():
        show_findings(market)


def show_findings(market: Market) -> None:
    """`quality.json` beside the market file, where there is one."""
    try:
        report = Folder(market.path.parent).json("quality.json")
    except NotThereError:
        return
    kinds = {
        str(name): value
        for name, value in select_part(report, "kinds").items()
        if isinstance(value, int)
    }
    st.subheader("Findings", anchor=False)
    if not kinds:
        st.success("No fault was found in the bars.")
        return
    figure = go.Figure(
        go.Bar(x=list(kinds.values()), y=[escape_label(human(n)) for n in kinds], orientation="h")
    )
    charts.framed(figure, x_title="faults", hover="closest", height=90 + 26 * len(kinds))
    charts.show(figure, "market_kinds")
    faults = [fault for fault in report.get("faults") or [] if isinstance(fault, dict)][:2000]
    table(pd.DataFrame(faults).astype(str), "market_faults", height=320)


@remember
def measure_correlations(market: Market, most: int) -> Any:
    """`[N, N]`: of the daily returns of the first `most` symbols, NaN below five sessions in
    common."""
    session = market.arrays["session"]
    ends = np.append(np.flatnonzero(np.diff(session) > 0), len(session) - 1)
    daily = np.log(np.asarray(market.arrays["close"][ends, :most], dtype=float))
    return pd.DataFrame(np.diff(daily, axis=0)).corr(min_periods=5).to_numpy()


def show_correlations(market: Market) -> None:
    symbols = market.symbols[:MOST_SYMBOLS]
    matrix = measure_correlations(market, MOST_SYMBOLS)
    st.subheader("Correlation of daily returns", anchor=False)
    off = matrix[~np.eye(len(symbols), dtype=bool)] if len(symbols) > 1 else np.array([])
    if not np.isfinite(off).any():
        st.info("Too few sessions or symbols for correlations.", icon=":material/hourglass_empty:")
        return
    names = [escape_label(symbol) for symbol in symbols]
    height = min(860, 160 + 14 * max(14, len(symbols)))
    charts.show(
        plot_heatmap(
            matrix,
            names,
            names,
            ".2f",
            height,
            40,
            "correlation",
            zmin=-1,
            colorscale=figures.SCALE,
        ),
        "market_ties",
    )
    total = len(market.symbols)
    left_out = f" The first {MOST_SYMBOLS} of {total} symbols." if total > MOST_SYMBOLS else ""
    st.caption(
        f"Close to close over all sessions; mean off the diagonal {np.nanmean(off):.2f}.{left_out}"
    )


page("Market", render)
