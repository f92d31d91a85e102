"""A store that does not answer while a file is there: for this process, and for pods that take
their body from here."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fintrader.storage.objects import ObjectStore
from tests.engines import stubs

VARIABLE = "STORE_IS_AWAY"
"""Path of that file."""
body = stubs.body
_call = ObjectStore._call


def _away(self: ObjectStore, name: str, call: Callable[[], Any]) -> Any:
    def tried() -> Any:
        if self.url.startswith("file:") and Path(os.environ[VARIABLE]).exists():
            raise ConnectionError("no route to host")
        return call()

    return _call(self, name, tried)


def install() -> None:
    ObjectStore._call = _away  # type: ignore[method-assign]


def remove() -> None:
    ObjectStore._call = _call  # type: ignore[method-assign]


if VARIABLE in os.environ:  # a pod's process, which takes the launcher's environment on
    install()
