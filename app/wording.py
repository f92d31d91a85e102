"""How foreign text is put on the screen; numbers are written by `results.formatting`."""

from __future__ import annotations

import html
import re
from typing import Any

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:])")
_SECRET = re.compile(r"(?i)(pass(word|wd)?|secret|token|api[_-]?key|access[_-]?key|credential|private[_-]?key)")
_SECRET_QUERY = re.compile(r"(?i)([?&][\w-]*(?:sig|token|key|secret|passw|credential)[\w-]*=)[^&\s'\"]+")


def plain(text: Any, limit: int = 300) -> str:
    """Foreign text made safe for Streamlit's markdown: no link, no image, no HTML, no colour, one line."""
    shown = "".join(char if char.isprintable() else " " for char in str(text))
    shown = shown if len(shown) <= limit else shown[: limit - 1] + "…"
    return _MARKDOWN.sub(r"\\\1", " ".join(shown.split()))


def label(text: Any, limit: int = 60) -> str:
    """Foreign text made safe for plotly, which reads a little HTML in names and hover texts."""
    shown = "".join(char if char.isprintable() else " " for char in str(text))
    return html.escape(shown if len(shown) <= limit else shown[: limit - 1] + "…")


_IN_BRACES = re.compile(r"""([{,]\s*)(["']?[\w.-]+["']?)(\s*:\s*)("[^"]*"|'[^']*'|[^,{}\[\]]+)""")
"""One setting of YAML or JSON that stands on a line with others, as in `{user: me, token: x}`."""


def _hidden(match: re.Match[str]) -> str:
    return f"{match[1]}{match[2]}{match[3]}(hidden)" if is_secret(match[2]) else match[0]


def without_secrets(text: str) -> str:
    """YAML or command text with the values of anything that is named like a secret blanked out."""
    lines = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and _SECRET.search(key) and value.strip() not in {"", "null", "''", '""'}:
            line = f"{key}: (hidden)"
        line = _IN_BRACES.sub(_hidden, line)
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
