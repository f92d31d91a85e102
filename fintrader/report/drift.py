"""The page of a drift report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fintrader.files import write_text


def write_drift(path: Path, report: Mapping[str, Any]) -> Path:
    write_text(path, "<html></html>")
    return path
