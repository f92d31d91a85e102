"""The app behind its guard, with headers that forbid other sites to frame it.

It imports the drawing modules before it answers, and reads the runs while the browser fetches
scripts.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fintrader.errors import ConfigError, FintraderError
from fintrader.system import start_thread
from fintrader_app.guard import GUARD_VARIABLE, Guard, describe, read_admission

HEADERS = (
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)
"""They forbid frames: on a page that hides the app in a frame, a click could start runs."""


@dataclass
class SecurityHeaders:
    """Adds the headers to every answer."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        await self.app(scope, receive, send_with_headers)


@contextlib.asynccontextmanager
async def prepare(_: st.App) -> AsyncIterator[None]:
    from fintrader_app import artifacts, charts, shell, tables  # noqa: F401

    def read() -> None:  # the page itself reports errors in the runs
        with contextlib.suppress(FintraderError, OSError):
            artifacts.load_summaries(shell.find_runs_folder())

    start_thread(read)
    scheme = "https" if st.get_option("server.sslCertFile") else "http"
    for line in describe(ADMISSION, BOUND, st.get_option("server.port"), ROOT, scheme=scheme):
        print(line, flush=True)
    yield


BOUND = st.get_option("server.address") or "::"
"""Address that the server listens on; streamlit listens on all unless it is given one."""
ROOT = "/".join(["", *filter(None, (st.get_option("server.baseUrlPath") or "").split("/"))])
"""Path prefix of the app, for a proxy that serves other sites, too; usually empty."""
try:
    ADMISSION = read_admission(BOUND, sys.argv[1:], os.environ)
except ConfigError as error:
    sys.exit(f"fintrader: {error}")
os.environ[GUARD_VARIABLE] = "" if ADMISSION.token is None else "token"

app = st.App(
    Path(__file__).with_name("streamlit_app.py"),
    middleware=[Middleware(SecurityHeaders), Middleware(Guard, ADMISSION, ROOT)],
    lifespan=prepare,
)
