"""Gauges of a deployment for Prometheus (extra `observe`).

fintrader_deployment_equity_usd, _cash_usd, _halted, _flattening, _decisions, _missed,
_beat_timestamp_seconds and _orders by state, all labelled with the deployment's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fintrader.errors import ConfigError, install_command

MEANING = {
    "equity_usd": "Worth of the account at the newest decision",
    "cash_usd": "Cash of the account at the newest decision",
    "halted": "1 while nothing may be ordered, else 0",
    "flattening": "1 while a flatten has not ended, else 0",
    "decisions": "Decisions taken",
    "missed": "Alerts of missed or skipped decisions",
    "beat_timestamp_seconds": "Last sign of life of the loop, Unix time",
}
Read = Callable[[], tuple[Mapping[str, float], Mapping[str, int]]]
"""Name in `MEANING` -> value, and orders by state."""


class Gauges:
    """A server that asks `read()` whenever it is scraped; it dies with the process."""

    def __init__(self, name: str, host: str, port: int, read: Read) -> None:
        """Raises ConfigError when the address cannot be used or the package is missing."""
        try:
            import prometheus_client
            from prometheus_client.core import GaugeMetricFamily
        except ImportError:
            raise ConfigError(
                f"metrics needs prometheus-client; install it with `{install_command('observe')}`"
            ) from None

        class Collector(prometheus_client.registry.Collector):
            def collect(self) -> Iterator[Any]:
                values, orders = read()
                for key, meaning in MEANING.items():
                    family = GaugeMetricFamily(
                        f"fintrader_deployment_{key}", meaning, labels=["deployment"]
                    )
                    if key in values:
                        family.add_metric([name], values[key])
                    yield family
                family = GaugeMetricFamily(
                    "fintrader_deployment_orders", "Orders by state", labels=["deployment", "state"]
                )
                for state, count in orders.items():
                    family.add_metric([name, state], count)
                yield family

        registry = prometheus_client.CollectorRegistry()
        registry.register(Collector())
        try:
            self._server, _ = prometheus_client.start_http_server(
                port, addr=host, registry=registry
            )
        except (OSError, UnicodeError) as error:
            raise ConfigError(
                f"metrics: {host}:{port} cannot be used ({error}); choose another"
            ) from None
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._server.server_close()
