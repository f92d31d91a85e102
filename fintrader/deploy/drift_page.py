"""The page of a drift report (`deploy.drift.measure`)."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from fintrader.deploy.drift import ALARM, PSI_NOTABLE, summarise
from fintrader.files import write_text
from fintrader.report.page import Page, note, number, table
from fintrader.results.figures.shortfall import (
    SHORTFALL,
    difference_figure,
    drift_figure,
    shortfall_figure,
)
from fintrader.results.figures.skill import betting_figure

_SHOWN = 20


def write_drift(path: Path, report: Mapping[str, Any]) -> Path:
    """Write the report as one HTML page that needs nothing else; returns its path."""
    write_text(path, render_drift(report))
    return path


def write_heading(report: Mapping[str, Any]) -> tuple[str, str]:
    """The finding in a sentence, and its tone."""
    if report["surprise"]["alarm"]:
        return "It earns less than its backtest: stop it and find out why.", "doubt"
    if report["halts"]:
        return f"Halted: {report['halts'][-1]['why']}.", "doubt"
    apart = abs(report["equity"]["difference_bps"])
    if report["equity"]["largest_difference_usd"] == 0:
        return "The account is its twin's to the last bit.", "good"
    return (
        f"{apart:,.1f} bps from its twin, and no evidence that it earns less than its backtest.",
        "good",
    )


def render_drift(report: Mapping[str, Any]) -> str:
    """The page. Equal reports give equal bytes."""
    page = Page(f"Drift of {report['deployment']}")
    finding, tone = write_heading(report)
    about = (
        f"Bundle {report['bundle']} of the run {report['run']}; {report['from']} to {report['to']}."
    )
    page.header("From backtest to paper", finding, summarise(report), about, tone=tone)
    if report["verdict"]:
        page.told({"The backtest it comes from": report["verdict"]})
    page.contents()
    daily = report["daily"]
    equity = report["equity"]
    rows = [
        (
            "",
            [
                "Account",
                number(f"{equity['account_usd']:,.2f}"),
                number(f"{equity['return']:+.2%}"),
            ],
        ),
        (
            "",
            ["Twin", number(f"{equity['twin_usd']:,.2f}"), number(f"{equity['twin_return']:+.2%}")],
        ),
    ]
    page.section(
        "Account and twin",
        page.chart("drift", drift_figure(daily)),
        page.chart("difference", difference_figure(daily)),
        table(["", "Equity, USD", "Return"], rows),
        note(
            "The twin is the same policy under the same limits in the ledger of the backtest, over"
            " the bars that were recorded. The band is where nine in ten accounts lie that draw"
            " their days from the backtest's."
        ),
        link="Account",
    )
    _write_surprise(page, report)
    shortfall = report["shortfall"]
    cells = [
        (
            "",
            [
                SHORTFALL[key],
                number(f"{shortfall['usd'][key]:+,.2f}"),
                number(f"{shortfall['bps'][key]:+.2f}"),
            ],
        )
        for key in SHORTFALL
    ]
    page.section(
        "What the orders cost",
        page.chart("shortfall", shortfall_figure(shortfall)),
        table(["Against the price at the decision", "USD", "bps"], cells),
        note(
            f"{shortfall['fills']:,} of {shortfall['orders']:,} orders filled,"
            f" {shortfall['ordered_usd']:,.0f} USD in all. Above zero is a cost."
        ),
        link="Shortfall",
    )
    features = [
        (
            "",
            [
                html.escape(row["name"]),
                number(f"{row['psi']:.3f}"),
                "shifted" if row["psi"] > PSI_NOTABLE else "",
            ],
        )
        for row in report["features"][:_SHOWN]
    ]
    page.section(
        "What it saw",
        table(["Feature", "Population stability index", ""], features),
        note(
            f"Between the backtest's rows and those decided upon; above {PSI_NOTABLE:g} is usually"
            " called a shift."
        ),
        link="Features",
    )
    page.section("Limits and news", _write_limits(report), *_list_news(report), link="News")
    return page.render()


def _write_surprise(page: Page, report: Mapping[str, Any]) -> None:
    surprise = report["surprise"]
    if surprise["value"] is None:
        page.section(
            "Is it surprising?",
            note("The backtest has too few sessions to say what is usual."),
            link="Alarm",
        )
        return
    figure = betting_figure(surprise["path"], pd.DatetimeIndex(report["daily"]["date"]))
    text = (
        "What 1 became for a bettor who holds that the account earns less than its backtest did."
        f" Above {ALARM:g} he has a point: that happens to one in twenty deployments without drift,"
        " however long they run. The first twenty sessions teach him how much days vary."
    )
    page.section("Is it surprising?", page.chart("surprise", figure), note(text), link="Alarm")


def _write_limits(report: Mapping[str, Any]) -> str:
    limits = report["limits"]
    names = sorted({*limits["account"], *limits["twin"]})
    if not names:
        return note("No limit bound any order.")
    rows = [
        (
            "",
            [
                name,
                number(str(limits["account"].get(name, 0))),
                number(str(limits["twin"].get(name, 0))),
            ],
        )
        for name in names
    ]
    return table(["Decisions cut by", "Account", "Twin"], rows)


def _list_news(report: Mapping[str, Any]) -> list[str]:
    said = (
        [note(f"{report['late_bars']:,} bars came late and were not acted on.")]
        if report["late_bars"]
        else []
    )
    if report["alerts"]:
        rows = [
            ("", [one["time"], one["kind"], html.escape(one["text"])])
            for one in report["alerts"][-_SHOWN:]
        ]
        said.append(table(["When", "What", ""], rows))
    return said
