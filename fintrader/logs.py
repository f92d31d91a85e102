"""Structured logs: one JSON object a line on standard error, with its run and pod.

    with logs.use_format(), logs.bind(run="quickstart"):
        logging.getLogger("fintrader").info("a result", extra={"fields": {"score": 1.2}})

Off by default; FINTRADER_LOG_FORMAT=json turns them on, also in processes of pods, which inherit
it. Records of `logging`, warnings and uncaught exceptions then have one shape.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType, TracebackType
from typing import Any, TextIO, cast

FORMAT_VARIABLE = "FINTRADER_LOG_FORMAT"
"""Environment variable with the log format, which processes of pods inherit."""
RESERVED = ("time", "level", "logger", "message", "exception")
"""Keys that a record's own fields may not use."""
_fields: ContextVar[Mapping[str, Any]] = ContextVar(
    "fintrader_log_fields", default=MappingProxyType({})
)


class JsonFormatter(logging.Formatter):
    """Formatter of a record as one line of JSON: time (UTC), level, logger, message, and the fields
    of `bind` and of the record."""

    def format(self, record: logging.LogRecord) -> str:
        own = {**_fields.get(), **getattr(record, "fields", {})}
        entry: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **{f"{key}_" if key in RESERVED else key: value for key, value in own.items()},
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(_replace_non_finite(entry), default=str, allow_nan=False)


def _replace_non_finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON lacks, by words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _replace_non_finite(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_non_finite(below) for below in value]
    return value


class _Stderr(logging.Handler):
    """Handler that looks up `sys.stderr` at each record, since it may be replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def is_structured() -> bool:
    """Check that this process logs JSON."""
    return any(isinstance(handler, _Stderr) for handler in logging.getLogger().handlers)


@contextlib.contextmanager
def use_format() -> Iterator[None]:
    """Write JSON within the block where FORMAT_VARIABLE asks for it; a nested block changes
    nothing."""
    if os.environ.get(FORMAT_VARIABLE) != "json" or is_structured():
        yield
        return
    root = logging.getLogger()
    handlers = root.handlers[:]
    level = root.level
    hook = sys.excepthook
    handler = _Stderr()
    handler.setFormatter(JsonFormatter())
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
        if sys.exc_info()[0] is None:  # an exception on its way out is logged by the hook
            sys.excepthook = hook


def _log_uncaught(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    record = logging.LogRecord(
        "fintrader", logging.CRITICAL, "", 0, str(error), None, (kind, error, trace)
    )
    print(JsonFormatter().format(record), file=sys.stderr, flush=True)


@contextlib.contextmanager
def bind(**fields: Any) -> Iterator[None]:
    """Add these fields to every record that this thread writes within the block."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


class _Records(io.TextIOBase):
    """Text stream whose lines become log records, for prints of a pod's code."""

    encoding = "utf-8"
    _rest = ""

    def write(self, text: str) -> int:
        """Log the complete lines; keep the rest until its line ends."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                logging.getLogger("fintrader.stdout").info(line)
        return len(text)


def print_as_records() -> None:
    """Turn later prints to standard output into log records; does nothing for plain logs."""
    if is_structured():
        sys.stdout = cast(TextIO, _Records())
