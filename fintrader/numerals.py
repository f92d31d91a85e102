"""Numbers as every screen writes them. A missing number is a dash, never a zero."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

from fintrader.metrics import TRADING_DAYS, min_sessions

DASH = "–"


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
    finite = number(value)
    if finite is None:
        return DASH
    digits = 0 if abs(finite) >= 100 else digits
    return f"{100 * finite:{'+' if signed else ''},.{digits}f} %"


def ratio(value: Any, digits: int = 2, *, signed: bool = False) -> str:
    """1.2345 as `1.23`."""
    finite = number(value)
    return DASH if finite is None else f"{finite:{'+' if signed else ''},.{digits}f}"


def score(value: Any) -> str:
    """A pod's validation score: 1.23456 as `1.235`."""
    return ratio(value, 3)


def probability(value: Any) -> str:
    """A probability that is no p-value: 0.9512 as `0.95`; none is rounded to certainty."""
    finite = number(value)
    if finite is None or 0.005 <= finite < 0.995:
        return ratio(value)
    return "< 0.01" if finite < 0.5 else "> 0.99"


def chance(value: Any) -> str:
    """A p-value: 0.0123 as `0.012`, smaller ones as `< 0.001`."""
    finite = number(value)
    return "< 0.001" if finite is not None and 0 <= finite < 0.0005 else ratio(value, 3)


def p_equals(value: Any) -> str:
    """A p-value where it is named: `p = 0.012`, `p < 0.001`."""
    text = chance(value)
    return f"p {text}" if text.startswith("<") else f"p = {text}"


def significance(value: float) -> str:
    """A level of significance: 0.0304 as `3.04 %`, smaller ones with three digits too."""
    return f"{100 * value:.3g} %" if value >= 1e-6 else "below 0.0001 %"


def format_interval(low: Any, high: Any) -> str:
    """Two ratios as `-0.12 to 1.34`; a dash where either is missing."""
    return DASH if number(low) is None or number(high) is None else f"{ratio(low)} to {ratio(high)}"


def usd(value: Any, *, signed: bool = False) -> str:
    """1234567.8 as `$1,234,568`; below a hundred dollars with cents."""
    finite = number(value)
    if finite is None:
        return DASH
    text = f"{abs(finite):,.2f}" if abs(finite) < 100 else f"{abs(finite):,.0f}"
    return f"{'-' if finite < 0 else '+' if signed else ''}${text}"


def count(value: Any) -> str:
    """1234567 as `1,234,567`."""
    return ratio(value, 0)


def format_count(value: int, noun: str) -> str:
    """1 and `bar` as `1 bar`, 1234 as `1,234 bars`."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def short_count(value: Any) -> str:
    """1234567 as `1.23 M`."""
    finite = number(value)
    if finite is None:
        return DASH
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(finite) >= size:
            return f"{finite / size:.3g}{unit}"
    return f"{finite:.3g}"


def period_name(sessions_a_year: int) -> str:
    """Name the periods of a series by their number a year: `session`, `week`, `month`."""
    return {12: "month", 26: "fortnight", 52: "week"}.get(sessions_a_year, "session")


def is_short(sessions: Any, sessions_a_year: int = TRADING_DAYS) -> bool:
    """Check for less than a quarter of a year of sessions, too few for annual figures."""
    finite = number(sessions)
    return finite is not None and finite < min_sessions(sessions_a_year)


def span(sessions: Any, sessions_a_year: int = TRADING_DAYS) -> tuple[float, str]:
    """Return the factor by which to scale a yearly rate for display, and the words after it.

    `(1, "a year")`; below a quarter of a year `(sessions / sessions_a_year, "in the window")`.
    """
    if is_short(sessions, sessions_a_year):
        return float(sessions) / sessions_a_year, "in the window"
    return 1.0, "a year"
