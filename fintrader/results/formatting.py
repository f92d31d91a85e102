"""Names, metrics and sentences as every screen writes them; `numerals` writes plain numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from fintrader import progress
from fintrader.metrics import min_sessions
from fintrader.numerals import (
    DASH,
    count,
    format_count,
    format_interval,
    is_short,
    number,
    percent,
    ratio,
    usd,
)
from fintrader.results.catalogue import BY_KEY
from fintrader.results.context import BacktestContext, LimitedOutcome
from fintrader.results.strategy_metrics import NO_METRICS, StrategyMetrics
from fintrader.verdict.verdict import Verdict

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
"""Metrics relative to the benchmark portfolio, and their titles; the information ratio's interval
follows them."""
INTERVAL = "95 % interval"
BASELINES = (
    "ridge",
    "buy_and_hold",
    "equal_weight",
    "cap_weight",
    "inverse_volatility",
    "minimum_variance",
    "momentum",
    "vol_targeted",
    "benchmark",
    "cash",
)
"""Strategies shown for comparison, which no search chose."""
REFERENCES = ("oracle",)
"""Strategies with knowledge of the future: shown, but neither a result nor a baseline."""
_LIMITS = {
    "weight": "the weight of a symbol",
    "gross": "the sum of all positions",
    "order": "the size of an order",
    "turnover": "a session's turnover",
}
"""What a deployment's limits that cut orders bound, by their names."""
_ORDER = ("ensemble", "best", "ridge", "buy_and_hold", "equal_weight", "benchmark")


def look_words(verdict: Verdict | None) -> str:
    """Write the number of looks at the window up to a verdict, or `not counted`; a dash without a
    verdict."""
    if verdict is None:
        return DASH
    look = verdict.evidence.look
    return "not counted" if look is None else count(look)


def statistic(key: str, value: Any, *, signed: bool = False) -> str:
    """Write a metric's value with its unit in the catalogue, if it has one."""
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


def format_metric(key: str, values: StrategyMetrics) -> str:
    """Write a strategy's metric; a dash where it is not known."""
    return statistic(key, values[key])


def explain_short_window(metrics: Iterable[StrategyMetrics]) -> list[str]:
    """Say why annual figures of these metrics are dashes; no line for windows long enough."""
    limits = [
        min_sessions(values.annual_sessions)
        for values in metrics
        if is_short(values.sessions, values.annual_sessions)
    ]
    return [f"Annualised figures are omitted below {least} sessions." for least in limits[:1]]


def duration(seconds: Any) -> str:
    """Write seconds: 75 as `1 min 15 s`."""
    value = number(seconds)
    return DASH if value is None or value < 0 else progress.format_duration(value)


def moment(value: Any) -> datetime | None:
    """Read a stored time (ISO text, or seconds since 1970), in UTC; None for anything else."""
    try:
        if isinstance(value, str):
            time = datetime.fromisoformat(value)
            return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)
        seconds = number(value)
        return None if seconds is None else datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def when(value: Any) -> str:
    """Write a stored time as `2026-01-02 15:04 UTC`."""
    time = moment(value)
    return DASH if time is None else f"{time:%Y-%m-%d %H:%M} UTC"


def window_words(window: str) -> str:
    """Write `test` as "test window"; the title of a walk-forward stays."""
    return window if window.startswith("walk-forward") else f"{window} window"


def describe_planted(context: BacktestContext) -> str:
    """State the ensemble's share of a planted signal; empty without one."""
    share = context.share_of_oracle.get("ensemble")
    if share is None:
        return ""
    return (
        f"Planted signal: the ensemble made {percent(share, 0)} of the log growth of an oracle,"
        " which knows the signal's states and maximises expected wealth, in the same window at the"
        " same costs."
    )


def describe_limits(outcome: LimitedOutcome | None) -> str:
    """State the result within a deployment's limits; empty where it was not simulated."""
    if outcome is None:
        return ""
    cuts = (
        f"{format_count(times, 'time')} by the limit on {_LIMITS.get(name, name)}"
        for name, times in sorted(outcome.cut.items())
    )
    by = ", ".join(cuts)
    orders = f"Its orders were cut {by}." if by else "None of its orders was cut."
    returned = percent(outcome.cumulative_return, signed=True)
    text = f"Within a deployment's limits the ensemble made {returned}. {orders}"
    if outcome.halted:
        text += f" Then trading halted ({outcome.halted.replace('%', ' %')}): nothing is ordered"
        text += " and the positions stay, until a person resumes it."
    return text


def verdict_words(text: str | None) -> str:
    """Cut a verdict to its first words, such as `Not distinguishable from luck`; a dash if None."""
    return re.split("[:,]", text)[0] if text else DASH


class Opening(NamedTuple):
    """The words that every page about a backtest opens with, in the order of a reader's
    questions."""

    headline: str
    """Such as `Not distinguishable from luck`."""
    why: str
    """Finding and its test; empty where there was nothing to test."""
    sees: str = ""
    """Smallest effect that a window of this length can show."""
    change: str = ""
    """Evidence that would change the verdict."""
    is_skill: bool = False
    """True for likely skill in files that were not changed."""

    @property
    def sentences(self) -> dict[str, str]:
        """Sentences by their headings; some may be empty."""
        return {"Finding": self.why, "Power": self.sees, "Evidence needed": self.change}


def choose_opening(verdict: Verdict | None, changed: str = "") -> Opening:
    """Return the words that open a page. `changed`: warning that the files were changed since."""
    if changed:
        return Opening("No verdict", changed)
    if verdict is None:
        again = "`fintrader backtest` on the run writes an assessment."
        return Opening(
            "Not assessed", "This backtest was written without an assessment.", "", again
        )
    finding, sees, *others = *verdict.sentences, ""
    headline, _, why = finding.partition(": ")
    why = why[:1].upper() + why[1:]
    change = " ".join(others).strip()
    return Opening(headline.rstrip("."), why, sees, change, verdict.is_likely_skill)


def describe_score(metric: object) -> str:
    """State the metric by which a run scores its pods; empty without one."""
    return "" if metric is None else f"Score: {name_score(metric)}, in validation."


def name_score(metric: object) -> str:
    """Name a metric of pods as in a sentence, with its period and the benchmark of a relative
    one."""
    words = str(metric).replace("_", " ").replace("sharpe", "Sharpe ratio")
    if metric in ("sharpe", "information_ratio"):
        words = f"annualised {words}"
    if metric in ("information_ratio", "active_utility"):
        words += " against the benchmark portfolio"
    return words


# --- strategies -----------------------------------------------------------------------------------


def format_title(strategy: str) -> str:
    """Write `equal_weight` as `Equal weight`. `benchmark` is the index; the benchmark portfolio is
    another strategy. Capitals of a name stay."""
    words = strategy.replace("_", " ")
    return "Index" if strategy == "benchmark" else words[:1].upper() + words[1:]


def rival_name(portfolio: str) -> str:
    """Name a benchmark portfolio inside a sentence: `equal weight`, `index`; other names stay."""
    return format_title(portfolio).lower() if portfolio in BASELINES else portfolio


def find_timezone(name: str) -> str:
    """Return a stored time zone (an IANA name); UTC where it is none."""
    try:
        return ZoneInfo(name).key
    except (KeyError, ValueError, OSError):  # unknown, no plain name, a folder of zones
        return "UTC"


def is_result(name: str) -> bool:
    """Check that a strategy is a result of the search."""
    return name not in BASELINES and name not in REFERENCES


def main_strategy(names: Sequence[str]) -> str:
    """Choose the strategy that a report is about: the first result, else the first of all."""
    return next((name for name in names if is_result(name)), names[0])


def in_order(names: Iterable[str]) -> list[str]:
    """Sort strategies for tables: results first, each group by `_ORDER`, then as given."""
    rank = {name: place for place, name in enumerate(_ORDER)}
    return sorted(names, key=lambda name: (not is_result(name), rank.get(name, len(rank))))


# --- comparison of a result -----------------------------------------------------------------------


def describe_standing(metrics: Mapping[str, StrategyMetrics], context: BacktestContext) -> str:
    """Compare the main strategy with ridge, its benchmark portfolio, the baselines ahead of it, and
    chance.

    Empty if none of these is known, and for a baseline.
    """
    name = main_strategy(in_order(metrics))
    portfolio = context.portfolio
    own = metrics[name]
    returned = own.cumulative_return
    if not is_result(name) or returned is None or portfolio is None:
        return ""
    sides = []
    for rival in dict.fromkeys(("ridge", portfolio, *BASELINES)):
        theirs = metrics.get(rival, NO_METRICS).cumulative_return
        if rival == portfolio == "cash":  # some backtests have no row for it
            theirs = 0.0
        if theirs is not None and (theirs > returned or rival in ("ridge", portfolio)):
            side = "below" if returned < theirs else "above" if returned > theirs else "level with"
            place = "its benchmark portfolio, " if rival == portfolio else ""
            sides.append(f"{side} {place}{rival_name(rival)} ({percent(theirs, signed=True)})")
    text = (
        f"Net of costs, {format_title(name)} ({percent(returned, signed=True)}) is"
        f" {' and '.join(sides)}."
        if sides
        else ""
    )
    low = own.information_ratio_low
    high = own.information_ratio_high
    if low is not None and high is not None:
        worth = (
            "more than the portfolio"
            if low > 0
            else "less than the portfolio"
            if high < 0
            else "within chance"
        )
        if own.active_return is not None:
            text += f" Active return {percent(own.active_return, signed=True)} a year (the mean"
            text += f" daily difference from {rival_name(portfolio)}, not compounded)."
        text += f" Information ratio {ratio(own.information_ratio)}"
        text += f" ({INTERVAL} {format_interval(low, high)}): {worth}."
    if "ridge" not in metrics and "ridge" in context.left_out:
        text += f" Without ridge: {context.left_out['ridge']}."
    return text.strip()
