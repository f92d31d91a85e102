"""What the server runs: the app, with headers that keep other sites from showing it inside their
own pages.

It has imported what pages draw with when it first answers, and reads the runs while the browser
fetches its scripts.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import streamlit as st
from starlette.middleware import Middleware

from fintrader.errors import FintraderError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

HEADERS = (
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
)
"""A page in somebody else's frame could be clicked unseen: it starts runs and writes files."""


class Unframed:
    """Adds the headers to every answer."""

    def __init__(self, app: Callable[[Message, Receive, Send], Awaitable[None]]) -> None:
        self.app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        await self.app(scope, receive, send_with_headers)


@contextlib.asynccontextmanager
async def prepared(_: st.App) -> AsyncIterator[None]:
    from fintrader_app import artifacts, charts, shell, tables  # noqa: F401

    def read() -> None:  # what is wrong with the runs the page itself will say
        with contextlib.suppress(FintraderError, OSError):
            artifacts.summaries(shell.runs_folder())

    threading.Thread(target=read, daemon=True).start()
    yield


app = st.App(
    Path(__file__).with_name("streamlit_app.py"),
    middleware=[Middleware(Unframed)],
    lifespan=prepared,
)
