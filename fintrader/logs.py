"""Structured logs: one JSON object a line on standard error, with the run and the pod it is about.

    with logs.written("json"), logs.bound(run="quickstart"):
        logging.getLogger("fintrader").info("a result", extra={"fields": {"score": 1.2}})

Off unless asked for (`--log-format json`, or FINTRADER_LOG_FORMAT=json, which processes of pods
inherit). Everything that goes through the standard library's logging, warnings and uncaught
exceptions included, then has one shape.
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
from typing import Any, Literal, TextIO, cast

LogFormat = Literal["plain", "json"]
FORMAT_VARIABLE = "FINTRADER_LOG_FORMAT"
"""Environment variable that says how processes log; `--log-format json` sets it for the pods'
processes."""
RESERVED = ("time", "level", "logger", "message", "exception")
"""Keys that no field of a record can take."""
_fields: ContextVar[Mapping[str, Any]] = ContextVar(
    "fintrader_log_fields", default=MappingProxyType({})
)


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time (UTC), level, logger, message, what is bound, what came
    with it."""

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
        return json.dumps(_plain(entry), default=str, allow_nan=False)


def _plain(value: Any) -> Any:
    """JSON knows no NaN and no infinity: they become words."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(below) for below in value]
    return value


class _Stderr(logging.Handler):
    """Writes to whatever standard error is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def structured() -> bool:
    """Are the logs of this process JSON?"""
    return any(isinstance(handler, _Stderr) for handler in logging.getLogger().handlers)


@contextlib.contextmanager
def written(form: str | None = None) -> Iterator[None]:
    """Inside the block logs are written as `form`; `plain` leaves them as they are. Nested blocks
    change nothing.

    None: as FORMAT_VARIABLE says, for whoever started this process.
    """
    before = os.environ.get(FORMAT_VARIABLE)
    if (form or before) != "json" or structured():
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
    sys.excepthook = _uncaught
    os.environ[FORMAT_VARIABLE] = "json"
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
        if sys.exc_info()[0] is None:  # an exception on its way out is still to be told of
            sys.excepthook = hook
        os.environ.pop(FORMAT_VARIABLE, None) if before is None else os.environ.update(
            {FORMAT_VARIABLE: before}
        )


def _uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    record = logging.LogRecord(
        "fintrader", logging.CRITICAL, "", 0, str(error), None, (kind, error, trace)
    )
    print(JsonFormatter().format(record), file=sys.stderr, flush=True)


@contextlib.contextmanager
def bound(**fields: Any) -> Iterator[None]:
    """Every record written inside the block (by this thread) carries these fields."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


class _Records(io.TextIOBase):
    """A text stream whose lines become records: what a pod's code prints keeps the shape of its
    log."""

    encoding = "utf-8"
    _rest = ""

    def write(self, text: str) -> int:
        """Log the whole lines; the rest waits for its end."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.strip():
                logging.getLogger("fintrader.stdout").info(line)
        return len(text)


def print_as_records() -> None:
    """From here on `print` to standard output logs; does nothing while logs are plain."""
    if structured():
        sys.stdout = cast(TextIO, _Records())
