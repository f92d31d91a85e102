"""Prometheus metrics of a running orchestrator: an HTTP endpoint with `/metrics` and `/healthz`.

    endpoint = Endpoint("127.0.0.1", 9108)
    with endpoint.observe(run.label, settings) as watch:
        run_tournament(settings, ..., watch=watch)

Counts come from the event log and the leaderboard, so they cover the whole run across restarts. The
reconcile loop only copies numbers; a request formats them.
"""

from __future__ import annotations

import contextlib
import errno
import subprocess
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from typing import Any

import prometheus_client as prometheus
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from fintrader.errors import ConfigError
from fintrader.results.tournament_events import LossEvent, select_events
from fintrader.runs import commit, versions
from fintrader.system import start_thread
from fintrader.tournament.orchestrator import Orchestrator
from fintrader.tournament.settings import TournamentSettings


@dataclass(frozen=True)
class MetricFamily:
    """A family of series: its kind, its meaning, and its labels."""

    kind: str
    """`gauge`, `counter`, `histogram` or `info`."""
    meaning: str
    labels: tuple[str, ...] = ("run",)


_LAST_TURN = "fintrader_last_reconcile_timestamp_seconds"
CATALOGUE: dict[str, MetricFamily] = {
    "fintrader_pods": MetricFamily(
        "gauge",
        "Pods by state: planned, waiting, running, arrived, done, failed",
        ("run", "state"),
    ),
    "fintrader_pods_wanted": MetricFamily("gauge", "Pods that the tournament trains in total"),
    "fintrader_capacity_pods": MetricFamily("gauge", "Pods that can run in parallel now"),
    "fintrader_launches": MetricFamily("counter", "Pods started, restarts included"),
    "fintrader_submissions": MetricFamily(
        "counter", "Results applied to the leaderboard", ("run", "status")
    ),
    "fintrader_pod_losses": MetricFamily(
        "counter", "Failed attempts of pods, by reason", ("run", "reason")
    ),
    "fintrader_drained": MetricFamily(
        "counter", "Pods stopped to make room or because their node went away"
    ),
    "fintrader_env_steps": MetricFamily(
        "counter", "Environment steps trained, repeated ones counted once"
    ),
    "fintrader_env_steps_per_second": MetricFamily(
        "gauge", "Environment steps a second over the last half minute"
    ),
    "fintrader_best_score": MetricFamily(
        "gauge", "Best validation score on the leaderboard", ("run", "metric")
    ),
    "fintrader_leaderboard_rows": MetricFamily("gauge", "Rows of the leaderboard"),
    "fintrader_reconcile_seconds": MetricFamily(
        "histogram", "Time a turn of the reconcile loop takes"
    ),
    _LAST_TURN: MetricFamily("gauge", "When the last turn ended, Unix time"),
    "fintrader_gpu_memory_used_bytes": MetricFamily(
        "gauge", "Memory in use on a GPU of this machine", ("gpu",)
    ),
    "fintrader_gpu_memory_total_bytes": MetricFamily(
        "gauge", "Memory of a GPU of this machine", ("gpu",)
    ),
    "fintrader_build": MetricFamily(
        "info", "Versions of what is running", ("version", "commit", "python", "torch")
    ),
}
"""All families; Prometheus appends `_total` to a counter's series and `_info` to an info's."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the reconcile histogram, seconds."""
RATE_SECONDS = 30.0
STALE_SECONDS = 120.0
"""Seconds without a turn after which `/healthz` fails: a hundred times the longest measured
turn."""


class Watch:
    """Numbers of one run. The reconcile loop updates them after each turn; the endpoint's threads
    read them."""

    def __init__(
        self, run: str, settings: TournamentSettings, observe: Callable[[float], None]
    ) -> None:
        """`observe` is called with the seconds of each turn."""
        self.run = run
        self.settings = settings
        self._observe = observe
        self.env_steps = 0
        self.last_turn = 0.0
        """Unix time of the last turn; 0 before the first."""
        self._samples: list[tuple[str, tuple[str, ...], float]] = []
        """Family, labels without `run`, and value of each number of a turn. The list is replaced as
        a whole, so that a scrape never mixes turns."""
        self._events: Counter[str] = Counter()
        self._losses: Counter[str] = Counter()
        self._results: Counter[str] = Counter()
        self._seen: dict[str, int] = {}
        self._records = 0
        self._applied = 0
        self._marks: deque[tuple[float, int]] = deque()

    def __call__(self, orchestrator: Orchestrator) -> None:
        """Copy the numbers of a turn."""
        leaderboard = orchestrator.leaderboard
        results = self._results
        new = orchestrator.log.records[self._records :]
        self._records += len(new)
        self._events.update(event.event for event in new)
        self._losses.update(event.reason for event in select_events(new, LossEvent))
        self._count_results(orchestrator)
        for pod, at in orchestrator.launcher.report_progress().items():
            if pod in orchestrator.running:
                self._count_steps(pod, at.env_steps)
        self._mark()
        self._observe(orchestrator.turn_seconds)
        self.last_turn = time.time()
        states = {
            "planned": max(0, self.settings.pods - len(orchestrator.specs)),
            "waiting": len(orchestrator.waiting),
            "running": len(orchestrator.running),
            "arrived": len(orchestrator.pending),
            "done": results["done"],
            "failed": results["failed"],
        }
        self._samples = [
            *(("fintrader_pods", (state,), count) for state, count in states.items()),
            ("fintrader_pods_wanted", (), self.settings.pods),
            ("fintrader_capacity_pods", (), orchestrator.launcher.measure_capacity()),
            ("fintrader_launches", (), self._events["launched"]),
            *(("fintrader_submissions", (status,), count) for status, count in results.items()),
            *(("fintrader_pod_losses", (reason,), count) for reason, count in self._losses.items()),
            ("fintrader_drained", (), self._events["drained"]),
            ("fintrader_env_steps", (), self.env_steps),
            *(
                ("fintrader_best_score", (self.settings.metric,), best.score)
                for best in leaderboard.rows[:1]
            ),
            ("fintrader_leaderboard_rows", (), len(leaderboard.rows)),
            (_LAST_TURN, (), self.last_turn),
        ]

    def _count_results(self, orchestrator: Orchestrator) -> None:
        for entry in orchestrator.leaderboard.applied[self._applied :]:
            self._results[entry.result.status] += 1
            self._count_steps(entry.spec.pod, entry.result.env_steps)
            self._seen.pop(entry.spec.pod, None)
        self._applied = len(orchestrator.leaderboard.applied)
        if not self._marks:  # the rate leaves out the steps of earlier processes
            self._marks.append((time.monotonic(), self.env_steps))

    def _count_steps(self, pod: str, env_steps: int) -> None:
        """Count new steps of this pod; a restarted attempt repeats steps and adds none."""
        before = self._seen.get(pod, 0)
        if env_steps > before:
            self.env_steps += env_steps - before
            self._seen[pod] = env_steps

    def _mark(self) -> None:
        now = time.monotonic()
        if now - self._marks[-1][0] >= 1.0 or len(self._marks) == 1:
            self._marks.append((now, self.env_steps))
        while len(self._marks) > 2 and now - self._marks[1][0] > RATE_SECONDS:
            self._marks.popleft()

    def rate(self) -> float:
        """Return env-steps a second over the last half minute."""
        if not self._marks:
            return 0.0
        began, steps = self._marks[0]
        elapsed = time.monotonic() - began
        return (self.env_steps - steps) / elapsed if elapsed > 0 else 0.0

    def list_samples(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """List family, labels and value of this run's numbers, without the histogram of turns."""
        yield "fintrader_env_steps_per_second", (self.run,), self.rate()
        for name, labels, value in self._samples:
            yield name, (self.run, *labels), value


class Endpoint:
    """HTTP server of one process. Its threads die with the process."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen on `host:port` (0: any free port, see `.port`).

        Raises ConfigError when the port is taken.
        """
        self._watches: dict[str, Watch] = {}
        self._racing: set[str] = set()
        registry = prometheus.CollectorRegistry()
        registry.register(self)
        prometheus.ProcessCollector(registry=registry)
        prometheus.PlatformCollector(registry=registry)
        known = versions()
        build = {"version": known.get("fintrader", ""), "commit": commit() or ""}
        build |= {package: known.get(package, "") for package in ("python", "torch")}
        name = "fintrader_build"
        prometheus.Info(name, CATALOGUE[name].meaning, registry=registry).info(build)
        name = "fintrader_reconcile_seconds"
        self._turns = prometheus.Histogram(
            name, CATALOGUE[name].meaning, ("run",), buckets=BUCKETS, registry=registry
        )
        endpoint = self

        class Handler(prometheus.MetricsHandler):
            """`/metrics` in the form the scraper asks for, `/healthz` for probes."""

            def do_GET(self) -> None:
                path = self.path.split("?")[0]
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    if path == "/metrics":
                        super().do_GET()
                    elif path == "/healthz":
                        problem = endpoint.find_problem()
                        self._answer(503 if problem else 200, problem or "ok")
                    else:
                        self._answer(404, "/metrics or /healthz")

            def _answer(self, status: int, text: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "text/plain; charset=utf-8")
                self.end_headers()
                self.wfile.write(f"{text}\n".encode())

        try:
            self._server = ThreadingHTTPServer((host, port), Handler.factory(registry))
        except OSError as error:
            taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
            problem = (
                "is taken or not allowed; choose another" if taken else f"cannot be used ({error})"
            )
            raise ConfigError(f"operations.metrics: {host}:{port} {problem}") from None
        self.host = str(self._server.server_address[0])
        self.port = int(self._server.server_address[1])
        start_thread(self._server.serve_forever, name="metrics")

    @contextlib.contextmanager
    def observe(self, run: str, settings: TournamentSettings) -> Iterator[Watch]:
        """Make a watch for `run_tournament`; its last numbers remain after the block."""
        watch = self._watches[run] = Watch(run, settings, self._turns.labels(run).observe)
        self._racing.add(run)
        try:
            yield watch
        finally:
            self._racing.discard(run)

    def collect(self) -> Iterable[Any]:
        """Collect all watches and the GPUs as families; called at every scrape."""
        makers = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}
        families = {
            name: makers[metric.kind](name, metric.meaning, labels=metric.labels)
            for name, metric in CATALOGUE.items()
            if metric.kind in makers
        }
        for gpu, used, total in read_gpu_memory():
            families["fintrader_gpu_memory_used_bytes"].add_metric((gpu,), used)
            families["fintrader_gpu_memory_total_bytes"].add_metric((gpu,), total)
        for run, watch in list(self._watches.items()):
            for name, labels, value in watch.list_samples():
                if name != _LAST_TURN or run in self._racing:  # a search that has ended makes none
                    families[name].add_metric(labels, value)
        return families.values()

    def find_problem(self) -> str:
        """Find the reason for `/healthz` to fail; empty if there is none."""
        now = time.time()
        for run in list(self._racing):
            last = self._watches[run].last_turn
            if last and now - last > STALE_SECONDS:
                return f"{run}: no turn of the reconcile loop for {now - last:.0f} s"
        return ""

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


def read_gpu_memory() -> list[tuple[str, int, int]]:
    """Read index, used bytes and total bytes of each GPU of this machine.

    Asks `nvidia-smi`, which makes no CUDA context here; empty without it.
    """
    query = [
        "nvidia-smi",
        "--query-gpu=index,memory.used,memory.total",
        "--format=csv,noheader,nounits",
    ]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    rows = []
    for line in answer.splitlines():
        with contextlib.suppress(ValueError):
            index, used, total = (part.strip() for part in line.split(","))
            rows.append((index, int(used) * 2**20, int(total) * 2**20))
    return rows
