"""Holdings, trades and their execution."""

from __future__ import annotations

from functools import partial

import pandas as pd

from fintrader.numerals import DASH, count, percent, ratio, usd
from fintrader.results import figures
from fintrader.results.allocation import active_shares, at_other_capital
from fintrader.results.formatting import format_metric, format_title
from fintrader.results.sections.choices import variation_cells
from fintrader.results.sections.section import BacktestView, Chart, Section
from fintrader.results.table import Row, Table

NO_MARKET = (
    "Not known: this backtest was written without its market; `fintrader backtest RUN_DIR` adds it."
)
_TRADING_COLUMNS = {
    "minute_max_drawdown": "Max drawdown, every bar",
    "turnover": "Turnover a year",
    "cost_usd": "Costs",
    "trades": "Trades",
}


def present_positions(view: BacktestView, apart: int = figures.APART) -> Section:
    """Present weights, exposure, turnover and costs; `apart` symbols are drawn one by one."""
    stored = view.stored
    weights = stored.weights(view.main)
    rows = [
        Row(
            (
                format_title(name),
                *(format_metric(key, stored.find_metrics(name)) for key in _TRADING_COLUMNS),
            ),
            is_main=name == view.main,
        )
        for name in view.names
    ]
    table = Table(("Trading", *_TRADING_COLUMNS.values()), rows)
    if not weights.shape[1]:
        never = f"{view.title} never held a position at a session's close."
        return Section("trading", "Positions", tables=[table], notes=[never])
    names = [name for name in view.key_names if name != "benchmark"]

    return Section(
        key="trading",
        title="Positions",
        figures=[
            Chart("weights", partial(figures.weights_figure, weights, top=apart)),
            Chart("exposure", lambda: figures.exposure_figure(stored.curve("exposure")[names])),
            Chart(
                "turnover",
                lambda: figures.turnover_figure(
                    stored.curve("turnover_usd")[view.main],
                    stored.curve()[view.main],
                    stored.session,
                    name=view.main,
                ),
                is_half=True,
            ),
            Chart(
                "paid",
                lambda: figures.paid_figure(stored.curve("cost_usd")[[view.main]], stored.session),
                is_half=True,
            ),
        ],
        tables=[table, _exposure_table(view)],
    )


def _exposure_table(view: BacktestView) -> Table:
    portfolio = view.stored.portfolio
    held = active_shares(view.stored, view.main, portfolio)
    against = "cash" if portfolio is None else portfolio.replace("_", " ")
    titles = {
        "invested": "Invested",
        "names": "Names held",
        "effective": "Effective names, 1/Σ(w/Σ|w|)²",
        "active_share": f"Active share against {against}",
    }
    if portfolio == "benchmark":  # an index, whose positions are not known
        titles.pop("active_share")
    table = held.agg(["mean", "min", "max"])
    rows = [
        (
            title,
            *(
                (ratio(value, 1) if key in ("names", "effective") else percent(value))
                for value in table[key]
            ),
        )
        for key, title in titles.items()
    ]
    note = (
        "At session closes. Active share: ½ Σ|w − b|, cash included; 0 is the portfolio itself, 100"
        " % has nothing in common with it."
    )
    return Table.of(("Exposure and active share", "Mean", "Least", "Most"), rows, notes=[note])


def present_fills(view: BacktestView, symbols: int = 2) -> Section | None:
    """Present the fills in the most traded symbols on their closes; None where nothing traded."""
    stored = view.stored
    trades = stored.select_trades(view.main)
    traded = trades.groupby("symbol", observed=True)["notional_usd"].sum()
    charts = []
    for place, symbol in enumerate(traded.nlargest(symbols).index):
        rows = stored.prices[stored.prices["symbol"] == symbol]
        if len(rows):
            closes = pd.Series(rows["close_usd"].to_numpy(), index=pd.DatetimeIndex(rows["minute"]))
            draw = partial(figures.trades_figure, closes, trades, symbol=str(symbol))
            charts.append(Chart(f"trades-{place}", draw))
    return Section("fills", "Trades", figures=charts) if charts else None


def present_execution(view: BacktestView) -> Section:
    """Present participation, slippage and costs of the fills."""
    analysis = view.stored.analysis
    title = "Participation and slippage"
    if analysis is None:
        return Section("execution", title, notes=[NO_MARKET])
    execution = analysis.execution
    if execution is None:
        return Section("execution", title, notes=["No order filled."])
    rows = [
        Row(
            (
                group.participation.capitalize(),
                count(group.fills),
                usd(group.notional_usd),
                percent(group.mean_participation),
                percent(group.most_participation),
                _format_bps(group.slippage_bps),
                _format_bps(group.cost_bps),
            ),
            is_main=group is execution.total,
        )
        for group in (*execution.groups, execution.total)
    ]
    columns = (
        "Share of the bar's volume",
        "Fills",
        "Notional",
        "Mean share",
        "Largest share",
        "Slippage",
        "Costs",
    )
    note = (
        "Slippage: the fill's price against the close at the decision, a loss > 0, weighted"
        f" by notional. Costs come on top. In all {usd(execution.slippage_usd)} of slippage,"
        f" {usd(execution.cost_usd)} costs."
    )
    return Section("execution", title, tables=[Table(columns, rows, notes=[note])])


def present_capacity(view: BacktestView) -> Section:
    """Present the result with more capital."""
    variations = at_other_capital(view.stored.sensitivity)
    if not variations:
        note = "Not simulated; with `--backtest.sensitivity True` a run also trades more capital."
        return Section("capacity", "Capacity", notes=[note])
    rows = [
        Row((usd(variation.number), *variation_cells(variation)), is_main=variation.is_chosen)
        for variation in variations
    ]
    trading = view.stored.context.trading
    if trading is None:
        limit = "its share of the volume"
    elif trading.participation == "none":
        limit = "any volume"
    else:
        limit = f"{trading.participation:.0%} of a bar's volume"
    note = (
        "Each row is a whole simulation at that capital; an order takes at most"
        f" {limit}. Prices do not move with the orders beyond the impact that is charged."
    )
    columns = ("Starting capital", "Cumulative return", "Sharpe", "Max drawdown")
    return Section(
        key="capacity",
        title="Capacity",
        figures=[Chart("capital", partial(figures.capital_figure, variations))],
        tables=[Table(columns, rows, notes=[note])],
    )


def _format_bps(value: float | None) -> str:
    return DASH if value is None else f"{ratio(value)} bps"
