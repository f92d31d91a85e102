"""Everything that a broker's calls say, also in their errors, for tests that look for keys in it."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fintrader.errors import DeployError


def collect_words(
    server: Any, calls: Iterable[Callable[[], Any]], faults: Iterable[str | None]
) -> list[str]:
    """Call everything under each fault of the loopback server; collect answers, tracebacks and the
    contents of all errors."""
    said: list[str] = []
    for fault in faults:
        for call in calls:
            server.faults = {len(server.seen) + 1: fault} if fault else {}
            try:
                said.append(repr(call()))
            except DeployError as error:
                said += traceback.format_exception(error)
                said += [repr(one) + str(vars(one)) + str(one.args) for one in _chain(error)]
    server.faults = {}
    return said


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
