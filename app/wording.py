"""How numbers, times and foreign text are put on the screen. A missing number is a dash, never a zero."""

from __future__ import annotations

import html
import math
import re
from datetime import UTC, datetime
from numbers import Real
from typing import Any

DASH = "–"
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:])")
_SECRET = re.compile(r"(?i)(pass(word|wd)?|secret|token|api[_-]?key|access[_-]?key|credential|private[_-]?key)")
_SECRET_QUERY = re.compile(r"(?i)([?&][\w-]*(?:sig|token|key|secret|passw|credential)[\w-]*=)[^&\s'\"]+")


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


def chance(value: Any) -> str:
    """A p-value: 0.0123 as `0.012`, smaller ones as `< 0.001`."""
    found = number(value)
    return "< 0.001" if found is not None and 0 <= found < 0.0005 else ratio(value, 3)


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


def short_count(value: Any) -> str:
    """1234567 as `1.23 M`."""
    found = number(value)
    if found is None:
        return DASH
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(found) >= size:
            return f"{found / size:.3g}{unit}"
    return f"{found:.3g}"


def duration(seconds: Any) -> str:
    """75 as `1 min 15 s`."""
    found = number(seconds)
    if found is None or found < 0:
        return DASH
    whole = round(found)
    if whole < 60:
        return f"{found:.1f} s" if found < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02d} h"


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


def plain(text: Any, limit: int = 300) -> str:
    """Foreign text made safe for Streamlit's markdown: no link, no image, no HTML, no colour, one line."""
    shown = "".join(char if char.isprintable() else " " for char in str(text))
    shown = shown if len(shown) <= limit else shown[: limit - 1] + "…"
    return _MARKDOWN.sub(r"\\\1", " ".join(shown.split()))


def label(text: Any, limit: int = 60) -> str:
    """Foreign text made safe for plotly, which reads a little HTML in names and hover texts."""
    shown = "".join(char if char.isprintable() else " " for char in str(text))
    return html.escape(shown if len(shown) <= limit else shown[: limit - 1] + "…")


def without_secrets(text: str) -> str:
    """YAML or command text with the values of anything that is named like a secret blanked out."""
    lines = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and _SECRET.search(key) and value.strip() not in {"", "null", "''", '""'}:
            line = f"{key}: (hidden)"
        line = re.sub(r"(\w+://)[^/\s:@]*:[^/\s@]+@", r"\1(hidden)@", line)
        lines.append(_SECRET_QUERY.sub(r"\1(hidden)", line))
    return "\n".join(lines)


def is_secret(name: str) -> bool:
    """Whether something so called is nobody's business."""
    return _SECRET.search(name) is not None


def human(name: str) -> str:
    """`learning_rate` as `Learning rate`."""
    words = name.replace("_", " ").replace(".", " · ").replace(" usd", " USD").strip()
    return words[:1].upper() + words[1:]


def window_words(window: object) -> str | None:
    """`test` as "test window"; a walk-forward already says what it is. None for anything that is no name."""
    if not isinstance(window, str):
        return None
    return plain(window if window.startswith("walk-forward") else f"{window} window")
