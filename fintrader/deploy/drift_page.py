"""The page of a drift report."""

from __future__ import annotations

from functools import partial

import pandas as pd

from fintrader.deploy.drift_report import ALARM, PSI_NOTABLE, DriftReport
from fintrader.deploy.status import format_counts
from fintrader.report.page import Page
from fintrader.results.figures.shortfall import (
    SHORTFALL,
    difference_figure,
    drift_figure,
    shortfall_figure,
)
from fintrader.results.figures.skill import betting_figure
from fintrader.results.sections import Chart, Section
from fintrader.results.sections.section import Tone
from fintrader.results.table import Table, list_facts

_SHOWN = 20


def find_heading(report: DriftReport) -> tuple[str, Tone]:
    """Return the finding in a sentence, and its tone."""
    if report.surprise is not None and report.surprise.is_alarm:
        return (
            "The account's days are worse than its backtest's: stop it and find out why.",
            "doubt",
        )
    if report.halts:
        return f"Halted: {report.halts[-1].text}.", "doubt"
    apart = abs(report.equity.difference_bps)
    if report.equity.largest_difference_usd == 0:
        return "The account equals its twin to the last bit.", "good"
    return (
        f"{apart:,.1f} bps from its twin, and no evidence of days worse than its backtest's.",
        "good",
    )


def render_drift(report: DriftReport) -> str:
    """Render the report as one HTML page that needs nothing else. Equal reports give equal
    bytes."""
    page = Page(f"Drift of {report.deployment}")
    finding, tone = find_heading(report)
    about = (
        f"Bundle {report.bundle} of the run {report.run}; {report.first_day} to {report.last_day}."
    )
    origin = list_facts({"The backtest it comes from": report.verdict or ""})
    tables = (origin,) if origin.rows else ()
    page.add_header(
        "From backtest to paper",
        Section(
            "finding",
            finding,
            report.summarise(),
            tables=tables,
            notes=(about,),
            warning=report.notice,
            tone=tone,
        ),
    )
    for present in (
        present_account,
        _present_alarm,
        present_shortfall,
        _present_features,
        _present_news,
    ):
        page.add(present(report))
    return page.render()


def present_account(report: DriftReport) -> Section:
    daily = report.daily
    band = None if daily.band is None else (daily.band.low_usd, daily.band.high_usd)
    curves = (daily.days, daily.account_usd, daily.twin_usd)
    equity = report.equity
    rows = [
        ("Account", f"{equity.account_usd:,.2f}", f"{equity.account_return:+.2%}"),
        ("Twin", f"{equity.twin_usd:,.2f}", f"{equity.twin_return:+.2%}"),
    ]
    note = (
        "The twin is the same policy under the same limits in the ledger of the backtest, over the"
        " bars that were recorded. Nine in ten accounts that draw their days from the backtest's"
        " are inside the band."
    )
    return Section(
        "account",
        "Account and twin",
        figures=(
            Chart("drift", partial(drift_figure, *curves, band)),
            Chart("difference", partial(difference_figure, *curves)),
        ),
        tables=(Table.of(("", "Equity, USD", "Return"), rows),),
        notes=(note,),
    )


def _present_alarm(report: DriftReport) -> Section:
    surprise = report.surprise
    title = "Are its days surprising?"
    if surprise is None:
        few = "The backtest has too few sessions for a comparison."
        return Section("alarm", title, notes=(few,))
    draw = partial(betting_figure, surprise.path, pd.DatetimeIndex(report.daily.days))
    note = (
        "The wealth, from 1, of a bettor on days that are worse than the backtest's days and the"
        f" account's own before them. At most one in twenty deployments without drift passes"
        f" {ALARM:g}, however long they run, if days do not depend on earlier days. Only the ranks"
        " of days count: the limits have to find a rare large loss."
    )
    return Section("alarm", title, figures=(Chart("surprise", draw),), notes=(note,))


def present_shortfall(report: DriftReport) -> Section:
    shortfall = report.shortfall
    bps = shortfall.bps
    rows = [
        (title, f"{shortfall.usd[key]:+,.2f}", f"{bps[key]:+.2f}")
        for key, title in SHORTFALL.items()
    ]
    note = (
        f"{shortfall.fills:,} of {shortfall.orders:,} orders filled,"
        f" {shortfall.ordered_usd:,.0f} USD in all. Above zero is a cost."
    )
    notes = [note]
    if shortfall.rested:
        notes.append(f"Limit orders that rested: {format_counts(shortfall.rested)}.")
    return Section(
        "shortfall",
        "Cost of the orders",
        figures=(Chart("shortfall", partial(shortfall_figure, bps)),),
        tables=(Table.of(("Against the price at the decision", "USD", "bps"), rows),),
        notes=tuple(notes),
    )


def _present_features(report: DriftReport) -> Section:
    rows = [
        (row.name, f"{row.psi:.3f}", "shifted" if row.psi > PSI_NOTABLE else "")
        for row in report.features[:_SHOWN]
    ]
    note = (
        "The index compares the backtest's rows with those of decisions; a value above"
        f" {PSI_NOTABLE:g} is usually called a shift."
    )
    table = Table.of(("Feature", "Population stability index", ""), rows)
    return Section("features", "Features seen", tables=(table,), notes=(note,))


def _present_news(report: DriftReport) -> Section:
    limits = report.limits
    notes = []
    tables = []
    rows = [
        (name, *(str(cuts.get(name, 0)) for cuts in (limits.account, limits.twin)))
        for name in sorted({*limits.account, *limits.twin})
    ]
    if rows:
        tables.append(Table.of(("Decisions cut by", "Account", "Twin"), rows))
    else:
        notes.append("No limit cut an order.")
    if report.late_bars:
        notes.append(f"{report.late_bars:,} bars came after the decision at their close.")
    alerts = [(alert.time, alert.kind, alert.text) for alert in report.alerts]
    if alerts:
        columns = ("When", "Alert", "Details")
        tables.append(Table.of(columns, alerts[-_SHOWN:], words=columns))
    return Section("news", "Limits and news", tables=tuple(tables), notes=tuple(notes))
