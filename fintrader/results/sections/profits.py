"""Origins of the profit: by symbol and month, by decision, by round trip, by factor."""

from __future__ import annotations

from dataclasses import astuple
from functools import partial

import pandas as pd

from fintrader.numerals import count, percent, ratio, usd
from fintrader.results import figures
from fintrader.results.allocation import OTHER, pnl_by_month, pnl_table, summarise_trips, symbol_pnl
from fintrader.results.analysis import FactorFit
from fintrader.results.formatting import duration, format_title
from fintrader.results.sections.positions import NO_MARKET
from fintrader.results.sections.section import BacktestView, Chart, Section
from fintrader.results.table import Row, Table

MOST_SYMBOLS = 12
"""Rows of a table by symbol where space is short; one row sums up the other symbols."""


def present_profit(view: BacktestView, most: int | None = MOST_SYMBOLS) -> Section | None:
    """Present the profit by symbol and by month; None for a strategy that never traded."""
    stored = view.stored
    trades = stored.select_trades(view.main)
    if trades.empty:
        return None
    profit = symbol_pnl(stored, view.main)
    note = (
        "Profit of a symbol: the change of its position's value between session closes, less the"
        " amount paid for it and its trades' costs. The rows sum to the change of the equity."
    )
    return Section(
        key="profit",
        title="Profit by symbol and month",
        figures=[Chart("pnl", partial(figures.pnl_figure, profit))],
        tables=[
            _symbols_table(profit, pnl_table(profit, trades), most),
            _months_table(profit, stored.timezone),
        ],
        notes=[note],
    )


def _symbols_table(profit: pd.DataFrame, by_symbol: pd.DataFrame, most: int | None) -> Table:
    half = len(by_symbol) if most is None or len(by_symbol) <= most else most // 2
    middle = by_symbol.iloc[half : max(half, len(by_symbol) - half)]
    rows = [_format_profit(*line) for line in by_symbol.itertuples()]
    if len(middle):
        others = _format_profit(f"{len(middle)} other symbols", *middle.sum())
        rows = [*rows[:half], others, *rows[-half:]]
    rows.append(_format_profit(OTHER.capitalize(), profit[OTHER].sum()))
    total = format_usd(profit.to_numpy().sum())
    costs = usd(by_symbol["cost_usd"].sum())
    rows.append(Row(("All", total, costs, count(by_symbol["fills"].sum())), is_main=True))
    return Table(("Symbol", "Profit, net", "of which costs", "Fills"), rows, is_half=True)


def _format_profit(name: str, gain: float, cost: float = 0.0, fills: float = 0.0) -> Row:
    return Row((name, format_usd(gain), usd(cost), count(fills)))


def _months_table(profit: pd.DataFrame, timezone: str) -> Table:
    rows = [
        Row((month, format_usd(total), f"{best} {format_usd(gain)}", f"{worst} {format_usd(loss)}"))
        for month, total, best, gain, worst, loss in pnl_by_month(profit, timezone).itertuples()
    ]
    rows.append(Row(("All", format_usd(profit.to_numpy().sum()), "", ""), is_main=True))
    return Table(("Month", "Profit, net", "Best symbol", "Worst symbol"), rows, is_half=True)


def present_attribution(view: BacktestView) -> Section:
    """Split the profit over the benchmark portfolio into selection, timing, fills and costs."""
    stored = view.stored
    title = "Profit attribution"
    if stored.analysis is None:
        return Section("attribution", title, notes=[NO_MARKET])
    attribution = stored.analysis.attribution
    rival = format_title(attribution.portfolio).lower()
    start = float(stored.curve()[view.main].iloc[0])
    active = "Active profit"
    parts = (
        (f"Profit of {view.title.lower()}", attribution.pnl_usd, "in all"),
        (
            f"Less: {rival} on the same capital",
            attribution.portfolio_pnl_usd,
            "its return over each bar, on our equity before that bar",
        ),
        (active, attribution.active_usd, "the difference, which the rows below sum to"),
        (
            "Selection",
            attribution.selection_usd,
            "holding the mean weights throughout, less the portfolio's",
        ),
        ("Timing", attribution.timing_usd, "deviating from the mean weights when prices moved"),
        (
            "Fill prices",
            attribution.fills_usd,
            "profit of trades between their fill price and their bar's close",
        ),
        ("Costs", attribution.costs_usd, "the portfolio's costs and interest, less the strategy's"),
    )
    rows = [
        Row((name, format_usd(amount), percent(amount / start), meaning), is_main=name == active)
        for name, amount, meaning in parts
    ]
    columns = ("Part", "USD", "of the capital", "Meaning")
    lines = [astuple(row) for row in attribution.symbols]
    symbols = [_format_attribution(*line) for line in lines[:MOST_SYMBOLS]]
    others = [numbers for _, *numbers in lines[MOST_SYMBOLS:]]
    if others:
        sums = map(sum, zip(*others, strict=True))
        symbols.append(_format_attribution(f"{len(others)} others", *sums))
    note = "Weights at every bar, not only at session closes. The largest parts come first."
    heads = ("Symbol", "Mean weight", f"In {rival}", "Selection", "Timing")
    tables = [Table(columns, rows, words=["Meaning"]), Table.of(heads, symbols, notes=[note])]
    return Section("attribution", title, tables=tables)


def _format_attribution(
    name: str, weight: float, rival_weight: float, selection: float, timing: float
) -> tuple[str, ...]:
    weights = map(percent, (weight, rival_weight))
    return name, *weights, format_usd(selection), format_usd(timing)


def present_trips(view: BacktestView) -> Section | None:
    """Present the closed lots; None for a strategy that never traded."""
    trades = view.stored.select_trades(view.main)
    if trades.empty:
        return None
    key = "round-trips"
    groups = summarise_trips(trades)
    if groups.empty:
        return Section(key, "Round trips", notes=["No position was ever closed."])
    rows = [
        Row(
            (str(name), count(lots), *map(format_usd, profits), duration(60 * minutes)),
            name == "All",
        )
        for name, lots, *profits, minutes in groups.itertuples()
    ]
    columns = ("Lots", "Number", "Profit", "Mean", "Median", "Best", "Worst", "Mean holding")
    note = (
        "First in, first out; net of both trades' costs; holding times include nights and weekends."
    )
    return Section(key, "Round trips", tables=[Table(columns, rows, notes=[note])])


def present_factors(view: BacktestView) -> Section | None:
    """Present the factor betas; None for a backtest written without its market."""
    stored = view.stored
    if stored.analysis is None:
        return None
    fits = stored.analysis.factors
    title = "Factor betas"
    if view.main not in fits:
        note = "Not known: too few sessions, or symbols, for a regression."
        return Section("factors", title, notes=[note])
    names = dict.fromkeys((view.main, stored.portfolio or view.main))
    tables = [_factors_table(name, fits[name]) for name in names if name in fits]
    note = (
        "Daily returns, least squares, Newey-West errors. The factors are long the first third of"
        " the universe and short the last, ranked at the previous close, without costs; they are"
        " not those of Fama and French."
    )
    return Section("factors", title, tables=tables, notes=[note])


def _factors_table(name: str, fit: FactorFit) -> Table:
    rows = [
        Row((row.factor.capitalize(), _format_ratio(row.beta), _format_ratio(row.t), row.about))
        for row in fit.betas
    ]
    alpha = percent(fit.alpha, signed=True)
    rest = ("Alpha a year", alpha, _format_ratio(fit.alpha_t), "not explained by the factors")
    built = "Definition, within this universe"
    title = f"{format_title(name)}: {fit.sessions} sessions, R² {ratio(fit.r_squared)}"
    rows.append(Row(rest, is_main=True))
    return Table(("Factor", "Beta", "t", built), rows, title, words=[built])


def format_usd(value: float | None) -> str:
    """Format a profit in dollars; less than a cent is neither gain nor loss."""
    return usd(None if value is None else round(value, 2) + 0.0)


def _format_ratio(value: float | None) -> str:
    return ratio(None if value is None or value != value else round(value, 2) + 0.0)
