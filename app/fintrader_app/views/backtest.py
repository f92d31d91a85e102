"""Backtest: the report's content, to play with."""

from __future__ import annotations

from collections.abc import Hashable

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from fintrader.results import figures, periods
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.explanation import METHOD
from fintrader.results.folders import Folder, NotThereError, RunsFolder
from fintrader.results.formatting import count, number, percent, planted_words, usd, window_words
from fintrader.results.run import Summary
from fintrader.results.strategy_metrics import NO_METRICS
from fintrader_app import artifacts, charts, markets, tables
from fintrader_app.local_time import pick_clock
from fintrader_app.profit import show_profit
from fintrader_app.shell import (
    choose,
    choose_part,
    find_runs_folder,
    guarded,
    human,
    label,
    link_choices,
    list_market_folders,
    page,
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
FIRST = ("ensemble", "buy_and_hold", "equal_weight", "benchmark")
WHOLE = "whole window"
MOST_ROWS = 2000
MOST_CANDLES = 900
MOST_PERIODS = 12  # rows of years or months above which their table is scrolled


def render(runs: RunsFolder) -> None:
    run, folder = pick_run(runs)
    stored = artifacts.backtest(folder)
    tables.show_verdict(stored)
    main, others = pick_strategies(stored)
    stored = context_line(stored, folder)
    tables.show_cards(stored, main)
    tab = choose_part(TABS, "part")
    with guarded():
        shown = [main, *others]
        match tab:
            case "curves":
                curves(stored, shown, (artifacts.backtest_version(folder), stored.timezone, *shown))
            case "risk":
                rolling(stored, shown)
            case "calendar":
                calendar(stored, shown)
            case "weights":
                weights(stored, main)
            case "profit":
                show_profit(stored, artifacts.backtest_version(folder), main)
            case "trades":
                trades(stored, run, main)
            case "decisions":
                decisions(stored)
            case "metrics":
                metrics = {name: stored.metrics.get(name, NO_METRICS) for name in shown}
                tables.show_full_table(metrics, "backtest_metrics")


def pick_strategies(stored: StoredBacktest) -> tuple[str, list[str]]:
    """The strategy the page is about, and those beside it."""
    left, right = st.columns([1, 2], vertical_alignment="bottom")
    with left:
        main = choose("Strategy", stored.strategies, "strategy", format_func=human)
    rest = [name for name in stored.strategies if name != main]
    with right:
        key = link_choices(
            "beside", rest, [name for name in rest if name in FIRST] or rest[:3], len(rest)
        )
        chosen = st.pills("Beside it", rest, selection_mode="multi", format_func=human, key=key)
    others = [name for name in rest if name in (chosen or [])]
    remember("beside", ",".join(others))
    return main, others


def context_line(stored: StoredBacktest, folder: Folder) -> StoredBacktest:
    """What window this is, what it was chosen from, the report to take away, and the clock: the
    backtest upon it."""
    context = stored.context
    own = figures.known_timezone(context.timezone)
    times = stored.on_clock(own).minutes  # days are the market's, whatever the clock
    facts = [
        plain(window_words(context.window)) if context.window else None,
        f"{times[0]:%Y-%m-%d} to {times[-1]:%Y-%m-%d}",
        f"{count(len(times))} bars in {count(len(stored.ends))} sessions",
        f"chosen from {count(context.trials)} trials" if context.trials is not None else None,
        (
            f"net of {context.costs}, returns daily-resampled"
            f" ({stored.sessions_a_year} days, risk-free rate 0)"
        ),
        looked_at(context.look),
    ]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        st.caption(" · ".join(part for part in facts if part), width="stretch")
        if folder.exists("backtest", "report.html"):
            with st.popover("Report", icon=":material/description:"), guarded():
                st.caption("One self-contained HTML file with all of this.")
                st.download_button(
                    "Download report.html",
                    lambda: folder.read("backtest", "report.html", limit=REPORT_LIMIT),
                    file_name="report.html",
                    mime="text/html",
                    icon=":material/download:",
                    on_click="ignore",
                )
    if planted := planted_words(context):
        st.caption(planted)
    return stored.on_clock(pick_clock(own))


def looked_at(looks: object) -> str | None:
    """Which result on these bars this is, of all runs: after the first they are less of a test each
    time."""
    times = number(looks)
    if times is None:
        return None
    return "first look at this window" if times <= 1 else f"look {count(times)} at this window"


def curves(stored: StoredBacktest, shown: list[str], version: Hashable) -> None:
    left, middle, _ = st.columns([2, 2, 3])
    with left:
        scale = st.segmented_control(
            "Scale", ["USD", "Relative", "Log"], default="USD", key="curves_scale"
        )
    with middle:
        grain = st.segmented_control(
            "Drawdown from",
            ["session closes", "every bar"],
            default="session closes",
            key="curves_grain",
        )
    by_bar = grain == "every bar"

    def equity() -> pd.DataFrame:
        return stored.curve()[shown].rename(columns=label)

    def wealth() -> go.Figure:
        figure = figures.equity_figure(equity(), relative=scale == "Relative")
        if scale == "Log":
            figure.update_yaxes(type="log", tickformat="~s")
        return figure

    def drawdown() -> go.Figure:
        return figures.drawdown_figure(equity(), session=None if by_bar else stored.session)

    st.subheader("Equity", anchor=False)
    charts.show(wealth, "backtest_equity", height=420, version=(version, scale))
    st.subheader("Drawdown", anchor=False)
    charts.show(drawdown, "backtest_drawdown", height=300, version=(version, by_bar))
    key = "minute_max_drawdown" if by_bar else "max_drawdown"
    deepest = ", ".join(
        f"{human(name)} {percent(stored.metrics.get(name, NO_METRICS)[key])}" for name in shown
    )
    st.caption(
        f"Deepest: {deepest}. As stored in metrics.json"
        f" ({'every bar' if by_bar else 'session closes'})."
    )
    st.subheader(f"Deepest drawdowns: {human(shown[0])}", anchor=False)
    rows = figures.deepest_drawdowns(stored.daily_with_start()[shown[0]])
    if rows.empty:
        st.info("No session closed below an earlier one.", icon=":material/check_circle:")
        return
    for column in ("Peak", "Trough", "Recovered"):
        rows[column] = [
            ("not yet" if pd.isna(time) else f"{time:%Y-%m-%d}") for time in rows[column]
        ]
    rows["Depth"] = [percent(depth) for depth in rows["Depth"]]
    table(rows, "backtest_depths", right=["Depth"])


def rolling(stored: StoredBacktest, shown: list[str]) -> None:
    returns = stored.daily_returns()
    sessions = len(returns)
    usual = figures.rolling_sessions(sessions)
    if usual is None:
        st.info(
            f"{sessions} sessions are too few for rolling figures.",
            icon=":material/hourglass_empty:",
        )
        return
    window = st.slider("Window, sessions", 5, sessions // 2, usual, key=f"rolling_{sessions}")
    for kind in ("sharpe", "volatility"):
        drawn = returns[shown].rename(columns=label)
        year = stored.sessions_a_year
        figure = figures.rolling_figure(
            drawn, kind, main=shown[0], window=window, sessions_a_year=year
        )
        title = str(figure.layout.yaxis.title.text)
        st.subheader(title[:1].upper() + title[1:], anchor=False)
        charts.show(figure, f"rolling_{kind}", height=270)
    if "benchmark" in returns and shown != ["benchmark"]:
        st.subheader("Beta to the index", anchor=False)
        columns = returns[list(dict.fromkeys([*shown, "benchmark"]))].rename(columns=label)
        charts.show(
            figures.rolling_figure(columns, "beta", main=shown[0], window=window),
            "rolling_beta",
            height=270,
        )
    st.caption(
        f"Each point looks back over {window} sessions; there is none before the first full window."
    )


def calendar(stored: StoredBacktest, shown: list[str]) -> None:
    returns = stored.daily_returns()
    timezone = stored.timezone
    main = shown[0]
    st.subheader("Return of each month", anchor=False)
    charts.show(figures.monthly_figure(returns[main], timezone), "calendar_months")
    st.caption(f"By calendar month ({timezone}); the first and the last may be partial.")
    left, right = st.columns(2)
    with left:
        st.subheader("Years", anchor=False)
        returns_table("Year", periods.yearly(returns[shown], timezone))
    with right:
        st.subheader("Months", anchor=False)
        returns_table("Month", periods.monthly(returns[shown], timezone))
    st.subheader("Mean return by weekday and time of day, basis points", anchor=False)
    slot = st.segmented_control(
        "Slots of", [15, 30, 60], default=30, format_func=lambda m: f"{m} min", key="slots"
    )
    charts.show(
        figures.intraday_figure(stored.curve()[main], stored.session, timezone, slot or 30),
        "calendar_slots",
    )
    st.caption(
        f"Simple returns; times are of {timezone}. From one session's close to the close of the"
        " next one's first bar stands apart as “overnight”."
    )
    st.subheader("Distribution of daily returns", anchor=False)
    both = returns.rename(columns=label)
    charts.show(figures.distribution_figure(both, main=label(main)), "calendar_distribution")


def returns_table(what: str, found: pd.DataFrame) -> None:
    """The compound returns of `periods`, a row a year or month, the first column a name."""
    rows = pd.DataFrame({what: [str(name) for name in found.index]})
    names = [str(name) for name in found.columns if name != "sessions"]
    for name in names:
        rows[human(name)] = [percent(value) for value in found[name]]
    rows["Sessions"] = found["sessions"].to_numpy()
    height = "content" if len(rows) <= MOST_PERIODS else 38 + 35 * MOST_PERIODS
    table(rows, f"returns_{what}", right=map(human, names), pinned=what, height=height)


def weights(stored: StoredBacktest, main: str) -> None:
    wide = stored.weights(main)
    if not len(wide.columns):
        st.info(f"{human(main)} held nothing at any session's close.", icon=":material/inbox:")
    else:
        st.subheader("Weights at each session's close", anchor=False)
        usual = figures.APART
        top = (
            st.slider("Symbols shown apart", 3, 12, usual, key="weights_top")
            if len(wide.columns) > 3
            else usual
        )
        charts.show(
            figures.weights_figure(wide.rename(columns=label), top=top), "weights", height=400
        )
    bars = {
        name: stored.curve(name)[[main]].rename(columns=label) for name in ("exposure", "cost_usd")
    }
    st.subheader("Exposure", anchor=False)
    charts.show(figures.exposure_figure(bars["exposure"]), "exposure", height=240)
    left, right = st.columns(2)
    with left:
        st.subheader("Turnover of each session", anchor=False)
        turnover, equity = (stored.curve(name)[main] for name in ("turnover_usd", "equity_usd"))
        charts.show(
            figures.turnover_figure(turnover, equity, stored.session, name=label(main)),
            "turnover",
            height=240,
        )
    with right:
        st.subheader("Costs so far", anchor=False)
        charts.show(figures.paid_figure(bars["cost_usd"], stored.session), "costs", height=240)


def trades(stored: StoredBacktest, run: Summary, main: str) -> None:
    mine = stored.trades[stored.trades["strategy"] == main]
    if mine.empty:
        st.info(f"{human(main)} made no trade.", icon=":material/inbox:")
        return
    counts = mine["symbol"].value_counts()
    symbols = [str(symbol) for symbol in counts.index if counts[symbol] > 0]
    local = mine["fill_time"].dt.tz_convert(figures.known_timezone(stored.context.timezone))
    left, middle, right = st.columns([2, 2, 2], vertical_alignment="bottom")
    with left:
        symbol = choose(
            "Symbol, most traded first",
            symbols,
            "symbol",
            format_func=lambda s: f"{s} · {counts[s]} fills",
        )
    of_symbol = mine[mine["symbol"] == symbol]
    days = sorted(local[of_symbol.index].dt.strftime("%Y-%m-%d").unique())
    with middle:
        day = choose("Session", [WHOLE, *days], "day")
    with right:
        every = st.segmented_control(
            "Candle", [1, 5, 15, 60], default=5, format_func=lambda m: f"{m} bars", key="candle"
        )
    with guarded():
        price_chart(stored, run, symbol, day, every or 5, of_symbol, local)
    shown = (
        of_symbol
        if day == WHOLE
        else of_symbol[local[of_symbol.index].dt.strftime("%Y-%m-%d") == day]
    )
    st.caption(
        f"{count(len(shown))} fills of {plain(symbol)}: {usd(shown['notional_usd'].sum())} traded, "
        f"{usd(shown['cost_usd'].sum())} costs"
    )
    trade_table(shown, stored.timezone)


def decisions(stored: StoredBacktest) -> None:
    found = stored.explanation
    if found is None:
        st.info(
            "Nobody looked at what moves this policy's decisions: an earlier version wrote this"
            " backtest, or it sees observations in parts. `fintrader backtest` on the run writes it"
            " again.",
            icon=":material/psychology:",
        )
        return
    st.subheader(f"What moved the decisions: {human(found.strategy)}", anchor=False)
    st.caption(plain(found.sentence(), 400))
    charts.show(figures.importance_figure(found), "decisions_importance")
    zone = stored.timezone
    names = [
        f"{time:%Y-%m-%d %H:%M}" for time in found.times
    ]  # UTC: the same in the address on either clock
    when = dict(zip(names, found.times.tz_convert(zone).strftime("%Y-%m-%d %H:%M"), strict=True))
    st.subheader("One decision", anchor=False)
    left, right = st.columns([1, 2], vertical_alignment="bottom")
    with left:
        title = f"Decided at the close of the bar of ({zone})"
        chosen = choose(title, names, "decision", format_func=when.__getitem__)
    k = names.index(chosen)
    most = found.moved[k].argmax()
    with right:
        st.caption(
            f"Moved most by {plain(human(found.inputs[most]))}: without it"
            f" {percent(found.moved[k, most])} of the account would have stood elsewhere. In"
            " brackets the weight aimed at; blue raised it, red lowered it."
        )
    charts.show(figures.decision_figure(found, k), "decisions_one")
    st.caption(METHOD)


def price_chart(
    stored: StoredBacktest,
    run: Summary,
    symbol: str,
    day: str,
    every: int,
    fills: pd.DataFrame,
    local: pd.Series,
) -> None:
    """Candles of the market file with the fills on them."""
    try:
        market = markets.find(run.market, run.data_hash, list_market_folders(find_runs_folder()))
    except NotThereError as error:
        st.info(f"No price chart: {plain(error)}", icon=":material/candlestick_chart:")
        return
    if symbol not in market.symbols:
        st.info("The market file does not hold this symbol.", icon=":material/candlestick_chart:")
        return
    times = market.times
    if day == WHOLE:
        begin, end = times.searchsorted(stored.minutes[[0, -1]])
        rows = slice(int(begin), int(end) + 1)
        fills_shown = fills
    else:
        rows = market.rows(day)
        fills_shown = fills[local[fills.index].dt.strftime("%Y-%m-%d") == day]
    most = every * MOST_CANDLES
    cut = rows.stop - rows.start > most
    if cut:  # a candle is as many bars as was asked for; of a long window the end is drawn
        rows = slice(rows.stop - most, rows.stop)
        fills_shown = fills_shown[fills_shown["fill_time"] >= times[rows.start]]
    bars = market.candles(symbol, rows, every)
    if bars.empty:
        st.info("The market file holds no bar here.", icon=":material/candlestick_chart:")
        return
    charts.show(
        figures.candles_figure(bars, fills_shown, symbol=symbol, timezone=stored.timezone),
        "trades_candles",
    )
    drawn = min(len(fills_shown), figures.MOST_MARKS)
    left_out = f" The {drawn} largest of {count(len(fills_shown))} fills are marked."
    st.caption(
        f"Candles of {every} traded bar(s), made from opens and closes of the market file."
        + (left_out if drawn < len(fills_shown) else "")
        + (
            f" The last {count(most)} bars of the window; choose a session or longer candles for"
            " the rest." * cut
        )
    )


def trade_table(rows: pd.DataFrame, timezone: str) -> None:
    frame = rows[
        ["fill_time", "symbol", "shares", "price_usd", "notional_usd", "cost_usd", "kind"]
    ].head(MOST_ROWS)
    config = {
        "fill_time": st.column_config.DatetimeColumn(
            f"Filled ({timezone})", format="YYYY-MM-DD HH:mm"
        ),
        "symbol": "Symbol",
        "shares": st.column_config.NumberColumn("Shares", format="%.4g"),
        "price_usd": st.column_config.NumberColumn("Price", format="dollar"),
        "notional_usd": st.column_config.NumberColumn("Notional", format="dollar"),
        "cost_usd": st.column_config.NumberColumn("Cost", format="dollar"),
        "kind": "Kind",
    }
    frame = frame.assign(
        symbol=frame["symbol"].astype(str), fill_time=frame["fill_time"].dt.tz_localize(None)
    )
    table(frame, "trades_table", height=320, column_config=config)
    if len(rows) > MOST_ROWS:
        st.caption(f"The first {count(MOST_ROWS)} rows; the rest is in backtest/trades.parquet.")


page("Backtest", render)
