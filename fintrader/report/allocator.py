"""The sections of a report that an allocator turns to: where the profit came from, when, and what
it would carry."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from fintrader.metrics import min_sessions
from fintrader.report.page import Page, note, number, side_by_side, table
from fintrader.results import figures, periods
from fintrader.results.allocation import (
    OTHER,
    active_shares,
    at_other_capital,
    pnl_by_month,
    pnl_table,
    symbol_pnl,
    trips,
)
from fintrader.results.analysis import Variation
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.formatting import DASH, count, percent, ratio, span, usd

MOST_SYMBOLS = 12
"""Rows of a table by symbol; of more, the others stand together in one."""
_NO_MARKET = (
    "Not known: this backtest was written without its market; `fintrader backtest RUN_DIR`"
    " writes it."
)


def allocator_sections(page: Page, stored: StoredBacktest, main: str) -> None:
    """Everything below, for the main strategy; nothing for one that never traded."""
    _periods(page, stored, main)
    if stored.trades[stored.trades["strategy"] == main].empty:
        return
    _profit(page, stored, main)
    _attribution(page, stored, main)
    _trips(page, stored, main)
    _holdings(page, stored, main)
    _execution(page, stored)
    _factors(page, stored, main)


def _profit(page: Page, stored: StoredBacktest, main: str) -> None:
    profit = symbol_pnl(stored, main)
    trades = stored.trades[stored.trades["strategy"] == main]
    by_symbol = pnl_table(profit, trades)
    ranked = by_symbol.index[: MOST_SYMBOLS // 2].append(by_symbol.index[-MOST_SYMBOLS // 2 :])
    shown = by_symbol if len(by_symbol) <= MOST_SYMBOLS else by_symbol.loc[ranked]
    rest = by_symbol.drop(index=shown.index).sum()
    rows = [
        (str(name), *row)
        for name, row in zip(shown.index, shown.itertuples(index=False), strict=True)
    ]
    if len(by_symbol) > len(shown):
        rows.insert(MOST_SYMBOLS // 2, (f"{len(by_symbol) - len(shown)} others, in between", *rest))
    rows.append((OTHER.capitalize(), profit[OTHER].sum(), 0.0, 0))
    total = float(profit.to_numpy().sum())
    cells = [
        ("", [html.escape(name), _usd(gain), usd(cost), count(fills)])
        for name, gain, cost, fills in rows
    ]
    sums = [_usd(total), usd(by_symbol["cost_usd"].sum()), count(by_symbol["fills"].sum())]
    cells.append(("main", ["All", *sums]))
    lines = []
    for month, row in pnl_by_month(profit, stored.timezone).to_dict("index").items():
        named = [
            f"{html.escape(str(row[end]))} {_usd(row[f'{end}_usd'])}" for end in ("best", "worst")
        ]
        lines.append(("", [str(month), _usd(row["profit_usd"]), *named]))
    lines.append(("main", ["All", _usd(total), "", ""]))
    text = (
        "Profit of a symbol: what its position gained between session closes, less what was paid"
        " for it and the costs of its trades. The rows sum to the change of the equity."
    )
    page.section(
        "Where the profit came from",
        table(["Symbol", "Profit, net", "of which costs", "Fills"], cells, css="dense"),
        page.chart("pnl", figures.pnl_figure(profit)),
        table(["Month", "Profit, net", "Best symbol", "Worst symbol"], lines, css="dense"),
        note(text),
        link="Profit",
    )


def _attribution(page: Page, stored: StoredBacktest, main: str) -> None:
    title = "Selection or timing?"
    if stored.analysis is None:
        page.section(title, note(_NO_MARKET), link="Attribution")
        return
    found = stored.analysis.attribution
    rival = figures.title_of(found.portfolio).lower()
    start = float(stored.curve()[main].iloc[0])
    active = "Active profit"
    parts = [
        (f"Profit of {figures.title_of(main).lower()}", found.pnl_usd, "as in the table above"),
        (
            f"Less: {rival} on the same capital",
            found.portfolio_pnl_usd,
            "its return of each bar on our equity before it",
        ),
        (active, found.active_usd, "the difference, which the rows below sum to"),
        (
            "Selection",
            found.selection_usd,
            "holding the mean weights throughout, less the portfolio's",
        ),
        ("Timing", found.timing_usd, "having other weights than the mean ones when prices moved"),
        (
            "Fill prices",
            found.fills_usd,
            "what trades made between the price they filled at and their bar's close",
        ),
        ("Costs", found.costs_usd, "fees, spread, impact and interest, less the portfolio's"),
    ]
    rows = [
        (
            "main" if name == active else "",
            [html.escape(name), _usd(amount), _share(amount, start), meaning],
        )
        for name, amount, meaning in parts
    ]
    symbols = found.symbols[:MOST_SYMBOLS]
    others = found.symbols[MOST_SYMBOLS:]
    lines = [
        (
            "",
            [
                html.escape(row.symbol),
                percent(row.mean_weight),
                percent(row.portfolio_weight),
                _usd(row.selection_usd),
                _usd(row.timing_usd),
            ],
        )
        for row in symbols
    ]
    if others:
        sums = [
            percent(sum(row.mean_weight for row in others)),
            percent(sum(row.portfolio_weight for row in others)),
            _usd(sum(row.selection_usd for row in others)),
            _usd(sum(row.timing_usd for row in others)),
        ]
        lines.append(("", [f"{len(others)} others", *sums]))
    head = ["Symbol", "Mean weight", f"In {rival}", "Selection", "Timing"]
    page.section(
        title,
        table(["Part", "USD", "of the capital", "Meaning"], rows, css="dense words"),
        table(head, lines, css="dense"),
        note(
            "Weights at every bar, not only at session closes. The symbols that matter most come"
            " first."
        ),
        link="Attribution",
    )


def _trips(page: Page, stored: StoredBacktest, main: str) -> None:
    rows = trips(stored.trades[stored.trades["strategy"] == main])
    if not rows:
        page.section("Round trips", note("No position was ever closed."), link="Round trips")
        return
    cells = []
    for row in rows:
        money = [
            _usd(row[key])
            for key in ("profit_usd", "mean_usd", "median_usd", "best_usd", "worst_usd")
        ]
        days = (row["mean_minutes"] or 0.0) / 1440
        held = (
            DASH
            if row["mean_minutes"] is None
            else f"{ratio(days, 1)} days"
            if days >= 1
            else _minutes(row)
        )
        cells.append(
            (
                "main" if row["which"] == "All" else "",
                [row["which"], count(row["lots"]), *money, held],
            )
        )
    head = ["Lots", "Number", "Profit", "Mean", "Median", "Best", "Worst", "Mean holding"]
    text = "First in, first out; net of both trades' costs; nights and weekends count as time."
    page.section("Round trips", table(head, cells, css="dense"), note(text), link="Round trips")


def _minutes(row: Mapping[str, Any]) -> str:
    return f"{count(row['mean_minutes'])} minutes"


def _periods(page: Page, stored: StoredBacktest, main: str) -> None:
    """Years, months, the worst drawdowns, regimes and the worst days of the index."""
    daily = stored.daily_returns()
    zone = stored.timezone
    beside = [
        name
        for name in dict.fromkeys((main, stored.portfolio or main, "benchmark"))
        if name in daily.columns
    ]
    names = [figures.title_of(name) for name in beside]
    daily = daily[beside]
    years = periods.yearly(daily, zone)
    months = periods.monthly(daily, zone)
    parts = [
        side_by_side(
            f"<div><h3>Years</h3>{_returns_table('Year', years, names)}</div>",
            f"<div><h3>Months</h3>{_returns_table('Month', months, names)}</div>",
        )
    ]
    depths = figures.deepest_drawdowns(stored.daily_with_start()[main])
    rows = [
        (
            "",
            [
                f"{row['Peak']:%d %b %Y}",
                f"{row['Trough']:%d %b %Y}",
                DASH if pd.isna(row["Recovered"]) else f"{row['Recovered']:%d %b %Y}",
                number(percent(row["Depth"])),
                count(row["Sessions"]),
            ],
        )
        for row in depths.to_dict("records")
    ]
    head = ["Peak", "Trough", "Recovered", "Depth", "Sessions"]
    drawn = (
        table(head, rows, css="dense") if rows else note("No session closed below an earlier one.")
    )
    parts.append(f"<h3>Worst drawdowns, from session closes</h3>{drawn}")
    page.section("Years, months and drawdowns", *parts, link="Periods")
    index = "benchmark" if "benchmark" in beside and main != "benchmark" else None
    if index is not None:
        page.section(
            "In which markets",
            *_markets(daily, index, main, names, stored.sessions_a_year),
            link="Regimes",
        )


def _markets(
    daily: pd.DataFrame, index: str, main: str, names: Sequence[str], year: int
) -> list[str]:
    states = periods.regime_table(daily, index, main, year)
    least = max(periods.FEWEST_SESSIONS, min_sessions(year))
    if states.empty or len(daily) < least:
        parts = [note(f"Regimes need {least} sessions; this window has {len(daily)}.")]
    else:
        rows = []
        for name, row in states.to_dict("index").items():
            returned = [number(percent(row[key])) for key in ("strategy", "index")]
            cells = [
                str(name).capitalize(),
                count(row["sessions"]),
                *returned,
                _ratio(row["sharpe"]),
                _ratio(row["beta"]),
            ]
            rows.append(("", cells))
        head = ["The index", "Sessions", "Return a year", "Index a year", "Sharpe", "Beta"]
        text = (
            f"By the {periods.LOOKBACK} sessions before each one; thirds of this window. Returns"
            f" are means times {year}."
        )
        parts = [table(head, rows, css="dense"), note(text)]
    worst = periods.stress_days(daily, index)
    if not worst.empty:
        rows = [
            ("", [f"{time:%d %b %Y}", *(number(percent(value)) for value in row)])
            for time, row in zip(pd.DatetimeIndex(worst.index), worst.to_numpy(), strict=True)
        ]
        rows.append(("main", ["Mean", *(number(percent(value)) for value in worst.mean())]))
        parts.append(
            f"<h3>The index's {len(worst)} worst"
            f" days</h3>{table(['Day', *names], rows, css='dense')}"
        )
    return parts


def _holdings(page: Page, stored: StoredBacktest, main: str) -> None:
    rival = stored.portfolio
    found = active_shares(stored, main, rival)
    rows = []
    for key, title, write in (
        ("invested", "Invested", percent),
        ("names", "Names held", _one_digit),
        ("effective", "Effective names, 1/Σ(w/Σ|w|)²", _one_digit),
        ("active_share", f"Active share against {_words(rival)}", percent),
    ):
        values = found[key]
        rows.append(("", [title, write(values.mean()), write(values.min()), write(values.max())]))
    shown = [
        name
        for name in dict.fromkeys((main, rival))
        if name in stored.strategies and name != "cash"
    ]
    text = (
        "At session closes. Active share: ½ Σ|w − b|, cash included; 0 is the portfolio itself, 100"
        " % shares nothing."
    )
    page.section(
        "Exposure and active share",
        table(["Positions", "Mean", "Least", "Most"], rows, css="dense"),
        page.chart("exposure", figures.exposure_figure(stored.curve("exposure")[shown])),
        note(text),
        link="Exposure",
    )


def _execution(page: Page, stored: StoredBacktest) -> None:
    found = None if stored.analysis is None else stored.analysis.execution
    parts = []
    if found is not None:
        rows = []
        for row in (*found.groups, found.total):
            cells = [
                row.participation.capitalize(),
                count(row.fills),
                usd(row.notional_usd),
                percent(row.mean_participation),
                percent(row.most_participation),
                *(
                    DASH if bps is None else f"{ratio(bps)} bps"
                    for bps in (row.slippage_bps, row.cost_bps)
                ),
            ]
            rows.append(("main" if row is found.total else "", cells))
        head = [
            "Share of the bar's volume",
            "Fills",
            "Notional",
            "Mean share",
            "Largest share",
            "Slippage",
            "Costs",
        ]
        text = (
            "Slippage: the fill's price beyond the close at which it was decided, a loss > 0,"
            f" weighted by notional. Costs come on top. All in all {usd(found.slippage_usd)} of"
            f" slippage, {usd(found.cost_usd)} costs."
        )
        parts += [table(head, rows, css="dense"), note(text)]
    elif stored.analysis is None:
        parts.append(note(_NO_MARKET))
    page.section(
        "Participation, slippage and capacity", *parts, *_capacity(page, stored), link="Execution"
    )


def _capacity(page: Page, stored: StoredBacktest) -> list[str]:
    rows = at_other_capital(stored.sensitivity)
    if not rows:
        return [
            note(
                "Capacity: not simulated; with `--backtest.sensitivity True` a run also trades with"
                " more capital."
            )
        ]
    cells = [
        ("main" if row.is_chosen else "", [usd(row.number), *variation_cells(row)]) for row in rows
    ]
    head = ["Starting capital", "Cumulative return", "Sharpe", "Max drawdown"]
    trading = stored.context.trading
    if trading is None:
        limit = "its share of the volume"
    elif trading.participation == "none":
        limit = "any volume"
    else:
        limit = f"{trading.participation:.0%} of a bar's volume"
    text = (
        "Capacity: each row is a whole simulation at that capital, an order taking at most"
        f" {limit}. Prices do not move with the orders beyond the impact that is charged."
    )
    drawn = page.chart("capital", figures.capital_figure(rows))
    return [f"<h3>Capacity</h3>{table(head, cells, css='dense')}{drawn}{note(text)}"]


def _factors(page: Page, stored: StoredBacktest, main: str) -> None:
    if stored.analysis is None:
        return
    found = stored.analysis.factors
    if main not in found:
        page.section(
            "Factor betas",
            note("Not known: too few sessions, or symbols, for a regression."),
            link="Factors",
        )
        return
    parts = []
    for name in dict.fromkeys(one for one in (main, stored.portfolio or main) if one in found):
        fit = found[name]
        rows = [
            ("", [row.factor.capitalize(), _ratio(row.beta), _ratio(row.t), row.about])
            for row in fit.betas
        ]
        scale, over = span(fit.sessions, stored.sessions_a_year)
        alpha = number(percent(scale * fit.alpha, signed=True))
        rows.append(
            ("main", [f"Alpha {over}", alpha, _ratio(fit.alpha_t), "what the factors leave"])
        )
        about = f"{figures.title_of(name)}: {fit.sessions} sessions, R² {ratio(fit.r_squared)}"
        parts.append(f"<h3>{html.escape(about)}</h3>")
        parts.append(
            table(["Factor", "Beta", "t", "Built of this universe alone"], rows, css="dense words")
        )
    text = (
        "Daily returns, least squares, Newey-West errors. The factors are long the first third of"
        " the universe and short the last, ranked at the close before, without costs; they are not"
        " those of Fama and French."
    )
    page.section("Factor betas", *parts, note(text), link="Factors")


def variation_cells(row: Variation) -> list[str]:
    """Cells of a simulation with one choice changed: return, Sharpe ratio, drawdown."""
    return [
        number(percent(row.cumulative_return)),
        number(ratio(row.sharpe)),
        number(percent(row.max_drawdown)),
    ]


def _returns_table(what: str, frame: pd.DataFrame, names: Sequence[str]) -> str:
    rows = [
        ("", [str(label), *(number(percent(value)) for value in row[:-1]), count(row[-1])])
        for label, row in zip(frame.index, frame.to_numpy(), strict=True)
    ]
    return table([what, *names, "Sessions"], rows, css="dense")


def _usd(value: float | None) -> str:
    return number(usd(None if value is None else round(value, 2) + 0.0))  # no cent is no loss


def _ratio(value: float | None) -> str:
    return number(ratio(None if value is None or value != value else round(value, 2) + 0.0))


def _one_digit(value: Any) -> str:
    return ratio(value, 1)


def _share(value: float, capital: float) -> str:
    return number(percent(value / capital))


def _words(portfolio: str | None) -> str:
    return "cash" if portfolio is None else portfolio.replace("_", " ")
