"""How results are written, the same in report, app, notebook and terminal: numbers, tables,
strategies in order.

A missing number is a dash, never a zero.
"""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from numbers import Real
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from fintrader import progress
from fintrader.metrics import TRADING_DAYS, min_sessions
from fintrader.results.catalogue import BY_KEY, of_a_year
from fintrader.results.context import BacktestContext, LimitedOutcome
from fintrader.results.strategy_metrics import NO_METRICS, StrategyMetrics
from fintrader.verdict.verdict import Verdict

DASH = "–"
PAPER_COLUMNS: tuple[tuple[str, str], ...] = (
    ("cumulative_return", "Cumulative return"),
    ("annual_return", "Annual return"),
    ("annual_volatility", "Annual volatility"),
    ("max_drawdown", "Max drawdown"),
    ("sharpe", "Sharpe"),
    ("calmar", "Calmar"),
)
"""Key and heading of the columns of the paper's Table 2, in its order."""
ACTIVE_COLUMNS: tuple[tuple[str, str], ...] = (
    ("invested_share", "Invested"),
    ("active_return", "Active return"),
    ("tracking_error", "Tracking error"),
    ("information_ratio", "Information ratio"),
)
"""The same of the columns that stand beside them: what was done otherwise than the benchmark
portfolio does. After them comes the information ratio's interval."""
INTERVAL = "95 % interval"
BASELINES = (
    *(
        "ridge",
        "buy_and_hold",
        "equal_weight",
        "cap_weight",
        "inverse_volatility",
        "minimum_variance",
        "momentum",
    ),
    *("vol_targeted", "benchmark", "cash"),
)
"""Strategies that stand for comparison and were not searched for."""
REFERENCES = ("oracle",)
"""Strategies that know more than anybody could: shown, never a result and never a rival."""
_ORDER = ("ensemble", "best", "ridge", "buy_and_hold", "equal_weight", "benchmark")


def number(value: Any) -> float | None:
    """`value` as a finite float, None for anything else (booleans and text included)."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def percent(value: Any, digits: int = 2, *, signed: bool = False) -> str:
    """0.1234 as `12.34 %`; from 100 upwards (10,000 %) without decimals."""
    found = number(value)
    if found is None:
        return DASH
    digits = 0 if abs(found) >= 100 else digits
    return f"{100 * found:{'+' if signed else ''},.{digits}f} %"


def ratio(value: Any, digits: int = 2, *, signed: bool = False) -> str:
    """1.2345 as `1.23`."""
    found = number(value)
    return DASH if found is None else f"{found:{'+' if signed else ''},.{digits}f}"


def score(value: Any) -> str:
    """A pod's validation score: 1.23456 as `1.235`."""
    return ratio(value, 3)


def probability(value: Any) -> str:
    """A probability that is no p-value: 0.9512 as `0.95`."""
    return ratio(value)


def chance(value: Any) -> str:
    """A p-value: 0.0123 as `0.012`, smaller ones as `< 0.001`."""
    found = number(value)
    return "< 0.001" if found is not None and 0 <= found < 0.0005 else ratio(value, 3)


def p_equals(value: Any) -> str:
    """A p-value where it is named: `p = 0.012`, `p < 0.001`."""
    text = chance(value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def interval(low: Any, high: Any) -> str:
    """Two ratios as `-0.12 to 1.34`; a dash where either is missing."""
    return DASH if number(low) is None or number(high) is None else f"{ratio(low)} to {ratio(high)}"


def usd(value: Any, *, signed: bool = False) -> str:
    """1234567.8 as `$1,234,568`; below a hundred dollars with cents."""
    found = number(value)
    if found is None:
        return DASH
    text = f"{abs(found):,.2f}" if abs(found) < 100 else f"{abs(found):,.0f}"
    return f"{'-' if found < 0 else '+' if signed else ''}${text}"


def count(value: Any) -> str:
    """1234567 as `1,234,567`."""
    found = number(value)
    return DASH if found is None else f"{found:,.0f}"


def look_words(verdict: Verdict | None) -> str:
    """Name the look at its window that a verdict is of; a dash without a verdict."""
    if verdict is None:
        return DASH
    look = verdict.evidence.look
    return "not counted" if look is None else count(look)


def short_count(value: Any) -> str:
    """1234567 as `1.23 M`."""
    found = number(value)
    if found is None:
        return DASH
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(found) >= size:
            return f"{found / size:.3g}{unit}"
    return f"{found:.3g}"


def statistic(key: str, value: Any, *, signed: bool = False) -> str:
    """A number of the catalogue in its own unit, which stands beside it unless it has none."""
    known = BY_KEY.get(key)
    unit = known.unit if known else ""
    if number(value) is None:
        return DASH
    if unit.startswith("share"):
        return percent(value, signed=signed)
    if unit == "USD":
        return usd(value, signed=signed)
    if unit in {"sessions", "minutes"}:
        return f"{count(value)} {unit}"
    if unit == "bps":
        return f"{ratio(value, signed=signed)} bps"
    if unit == "count":
        return count(value)
    return ratio(value, signed=signed)


def missing(key: str, values: StrategyMetrics) -> str:
    """Why a strategy has a dash for this metric although it can be computed; empty where it has
    none."""
    short = of_a_year(key) and is_short(values.sessions, values.annual_sessions)
    return f"under {min_sessions(values.annual_sessions)} sessions" if short else ""


def is_short(sessions: Any, sessions_a_year: int = TRADING_DAYS) -> bool:
    """Whether so many sessions are less than a quarter of a year: nothing of a year is said of
    them."""
    found = number(sessions)
    return found is not None and found < min_sessions(sessions_a_year)


def span(sessions: Any, sessions_a_year: int = TRADING_DAYS) -> tuple[float, str]:
    """What a yearly rate over so many sessions is multiplied by before it is shown, and the words
    that follow it.

    `(1, "a year")`, and below a quarter of one `(sessions / sessions_a_year, "in the window")`.
    """
    found = number(sessions)
    short = found is not None and is_short(found, sessions_a_year)
    return (
        (found / sessions_a_year, "in the window")
        if found is not None and short
        else (1.0, "a year")
    )


def shown(key: str, values: StrategyMetrics, *, signed: bool = False) -> str:
    """A strategy's metric as text; a dash where it is not known, or is one of a year and the window
    is `missing` it."""
    return DASH if missing(key, values) else statistic(key, values[key], signed=signed)


def short_window(metrics: Iterable[StrategyMetrics]) -> str:
    """A line below a table of such metrics: why yearly figures are dashes. Empty for windows long
    enough."""
    why = next((why for values in metrics if (why := missing("annual_return", values))), "")
    return f"Figures of a year: {DASH} {why}; so few say nothing of a year." if why else ""


def duration(seconds: Any) -> str:
    """75 as `1 min 15 s`."""
    found = number(seconds)
    return DASH if found is None or found < 0 else progress.format_duration(found)


def moment(value: Any) -> datetime | None:
    """A stored time (ISO text, or seconds since 1970) in UTC; None for anything else."""
    try:
        if isinstance(value, str):
            found = datetime.fromisoformat(value)
            return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
        seconds = number(value)
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def when(value: Any) -> str:
    """A stored time as `2026-01-02 15:04 UTC`."""
    found = moment(value)
    return DASH if found is None else f"{found:%Y-%m-%d %H:%M} UTC"


def window_words(window: str) -> str:
    """`test` as "test window"; a walk-forward already says what it is."""
    return window if window.startswith("walk-forward") else f"{window} window"


def planted_words(context: BacktestContext) -> str:
    """Describe the ensemble's use of a planted signal; empty without one."""
    share = context.share_of_oracle.get("ensemble")
    if share is None:
        return ""
    told = (
        "of the log growth of an oracle, which knows the signal's states and maximises expected"
        " wealth"
    )
    return (
        f"Planted signal: the ensemble made {percent(share, 0)} {told}, in the same window at the"
        " same costs."
    )


def limits_words(found: LimitedOutcome | None) -> str:
    """Describe the result within a deployment's limits; empty where it was not simulated."""
    if found is None:
        return ""
    by = ", ".join(f"{name} {count(times)} times" for name, times in sorted(found.cut.items()))
    text = (
        "within a deployment's limits the ensemble made"
        f" {percent(found.cumulative_return, signed=True)}"
    )
    text += f" (orders cut by {by})" if by else " (none of them bound)"
    return text + (f", halted: {found.halted}" if found.halted else "")


def verdict_words(text: str | None) -> str:
    """What a verdict comes to, as `Not distinguishable from luck`; a dash where there is none."""
    return re.split("[:,]", text)[0] if text else DASH


class Opening(NamedTuple):
    """The words that every page about a backtest opens with, in the order of a reader's
    questions."""

    headline: str
    """As `Not distinguishable from luck`."""
    why: str
    """What was found, with its test; empty where there was nothing to test."""
    sees: str
    """What a window of this length can show at all."""
    change: str
    """What would change the verdict."""
    is_skill: bool
    """True where it is likely skill, and the files are as they were written."""

    @property
    def sentences(self) -> dict[str, str]:
        """What each sentence answers, and the sentence; without those that were not said."""
        found = {
            "Why": self.why,
            "What this window can see": self.sees,
            "What would change it": self.change,
        }
        return {question: said for question, said in found.items() if said}


def opening_of(verdict: Verdict | None, changed: str = "") -> Opening:
    """The words that a page opens with; `changed`: that the files are others now."""
    if changed:
        return Opening("No verdict", changed, "", "", False)
    if verdict is None:
        again = "`fintrader backtest` on the run writes what can be said of luck."
        why = "This backtest was written without an assessment."
        return Opening("Not assessed", why, "", again, False)
    return Opening(
        verdict.headline, verdict.reason, verdict.power, verdict.change, verdict.is_likely_skill
    )


# --- strategies -----------------------------------------------------------------------------------


def is_baseline(name: str) -> bool:
    """Whether a strategy stands beside the results for comparison."""
    return name in BASELINES


def is_result(name: str) -> bool:
    """Whether a strategy is what somebody searched for."""
    return name not in BASELINES and name not in REFERENCES


def main_strategy(names: Sequence[str]) -> str:
    """The strategy a report is about: the first result, else the first of all."""
    return next((name for name in names if is_result(name)), names[0])


def in_order(names: Iterable[str]) -> list[str]:
    """The order of tables: what was searched for, then what anybody could have had, then the rest
    as given."""
    rank = {name: place for place, name in enumerate(_ORDER)}
    return sorted(names, key=lambda name: (not is_result(name), rank.get(name, len(rank))))


# --- tables ---------------------------------------------------------------------------------------


def paper_cells(values: StrategyMetrics) -> list[str]:
    """A strategy's PAPER_COLUMNS as text."""
    return [shown(key, values) for key, _ in PAPER_COLUMNS]


def active_cells(values: StrategyMetrics) -> list[str]:
    """A strategy's ACTIVE_COLUMNS and the interval, as text."""
    band = interval(values.information_ratio_low, values.information_ratio_high)
    return [*(shown(key, values) for key, _ in ACTIVE_COLUMNS), band]


def active_headings(portfolio: Any) -> list[str]:
    """Headings of the strategies' names and of those cells; `portfolio`: what `env.benchmark`
    names."""
    against = portfolio.replace("_", " ") if isinstance(portfolio, str) else "the portfolio"
    return [f"Against {against}", *(heading for _, heading in ACTIVE_COLUMNS), INTERVAL]


def metrics_table(metrics: Mapping[str, StrategyMetrics], *, title: str | None = None) -> Table:
    """One row a strategy, with the paper's columns."""
    table = _table(
        _PAPER_HEADINGS, {name: paper_cells(values) for name, values in metrics.items()}, title
    )
    table.caption = short_window(metrics.values()) or None
    table.caption_justify = "left"
    return table


def active_table(metrics: Mapping[str, StrategyMetrics], portfolio: Any = None) -> Table:
    """One row a strategy, with what it did otherwise than `portfolio`."""
    return _table(
        active_headings(portfolio), {name: active_cells(values) for name, values in metrics.items()}
    )


_PAPER_HEADINGS = ["Strategy", *(heading for _, heading in PAPER_COLUMNS)]


def _table(
    headings: Sequence[str], rows: Mapping[str, Sequence[str]], title: str | None = None
) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", pad_edge=False)
    table.add_column(headings[0], no_wrap=True)
    for heading in headings[1:]:
        table.add_column(heading, justify="right")
    for name, cells in rows.items():
        table.add_row(name.replace("_", " "), *cells)
    return table


def plain_text(table: Table) -> str:
    """A table without a frame, equal wherever it is printed."""
    table.box = None
    table.pad_edge = False
    table.padding = (0, 2, 0, 0)
    console = Console(width=100, color_system=None, force_terminal=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def table_text(metrics: Mapping[str, StrategyMetrics], portfolio: Any = None) -> str:
    """`metrics_table` and `active_table` as plain text, ours before the baselines."""
    rows = {name: metrics[name] for name in in_order(metrics)}
    return f"{plain_text(metrics_table(rows))}\n{plain_text(active_table(rows, portfolio))}"


def table_html(metrics: Mapping[str, StrategyMetrics], portfolio: Any = None) -> str:
    """The same tables for a notebook."""
    names = in_order(metrics)
    paper = _html_table(_PAPER_HEADINGS, {name: paper_cells(metrics[name]) for name in names})
    paper += f"<p>{why}</p>" if (why := short_window(metrics.values())) else ""
    return paper + _html_table(
        active_headings(portfolio), {name: active_cells(metrics[name]) for name in names}
    )


def _html_table(headings: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    head = "".join(f"<th>{html.escape(heading)}</th>" for heading in headings)
    body = ""
    for name, cells in rows.items():
        values = "".join(f"<td>{cell}</td>" for cell in cells)
        body += f"<tr><th>{html.escape(name.replace('_', ' '))}</th>{values}</tr>"
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


# --- where a result stands ------------------------------------------------------------------------


def standing(metrics: Mapping[str, StrategyMetrics], context: BacktestContext) -> str:
    """Compare the main strategy with ridge and with its benchmark portfolio, and say whether the
    difference could be chance.

    Empty where nothing of this is known, and for a baseline.
    """
    name = main_strategy(in_order(metrics))
    portfolio = context.portfolio
    own = metrics[name]
    returned = number(own.cumulative_return)
    if not is_result(name) or returned is None or portfolio is None:
        return ""
    rivals = {f"its benchmark portfolio, {portfolio.replace('_', ' ')}": metrics.get(portfolio)}
    if portfolio == "cash":  # which has no row of its own everywhere
        rivals = {"its benchmark portfolio, cash": StrategyMetrics(cumulative_return=0.0)}
    said = []
    for rival, values in {"ridge": metrics.get("ridge"), **rivals}.items():
        theirs = number((values or NO_METRICS).cumulative_return)
        if theirs is not None:
            side = "below" if returned < theirs else "above" if returned > theirs else "level with"
            said.append(f"{side} {rival} ({percent(theirs, signed=True)})")
    title = name.replace("_", " ").capitalize()
    text = (
        f"Net of costs, {title} ({percent(returned, signed=True)}) is {' and '.join(said)}."
        if said
        else ""
    )
    low = number(own.information_ratio_low)
    high = number(own.information_ratio_high)
    if low is not None and high is not None:
        worth = (
            "more than the portfolio"
            if low > 0
            else "less than the portfolio"
            if high < 0
            else "within chance"
        )
        active = number(own.active_return)
        scale, over = span(own.sessions, own.annual_sessions)
        active = None if active is None else active * scale
        text += f" Active return {percent(active, signed=True)} {over}, "
        text += f"information ratio {ratio(own.information_ratio)}"
        text += f" ({INTERVAL} {interval(low, high)}): {worth}."
    if "ridge" not in metrics and "ridge" in context.left_out:
        text += f" Without ridge: {context.left_out['ridge']}."
    return text.strip()
