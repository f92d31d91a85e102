"""How a command can be watched: its logs' form, and the metrics endpoint of its orchestrators."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING

from fintrader import logs
from fintrader.pipeline.configuration import RunConfig
from fintrader.progress import reporter
from fintrader.runs import RunFolder
from fintrader.tournament.observe import Endpoint

if TYPE_CHECKING:
    from fintrader.tournament.reconcile import Orchestrator

_endpoint: ContextVar[Endpoint | None] = ContextVar("fintrader_endpoint", default=None)


@contextlib.contextmanager
def observing(config: RunConfig) -> Iterator[Endpoint | None]:
    """Inside the block logs have the configured form and name the run, and metrics are served where asked for.

    Raises ConfigError when the port is taken or the extra `observe` is missing.
    """
    with logs.written(config.log_format), logs.bound(run=config.name):
        if config.metrics_port is None or _endpoint.get() is not None:
            yield _endpoint.get()
            return
        endpoint = Endpoint.serve(config.metrics_host, config.metrics_port)
        url = f"http://{endpoint.host}:{endpoint.port}/metrics"
        reporter().event({"event": "metrics", "metrics_url": url}, f"metrics: {url}")
        token = _endpoint.set(endpoint)
        try:
            yield endpoint
        finally:
            _endpoint.reset(token)
            endpoint.close()


@contextlib.contextmanager
def watching(config: RunConfig, folder: RunFolder) -> Iterator[Callable[[Orchestrator], None] | None]:
    """What the reconcile loop of a search is to call after each turn; None where nobody watches."""
    endpoint = _endpoint.get()
    with logs.bound(run=folder.label):
        if endpoint is None:
            yield None
            return
        with endpoint.watching(folder.label, config.tournament) as watch:
            yield watch
