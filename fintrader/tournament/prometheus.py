"""What a running orchestrator serves to Prometheus: an HTTP endpoint with `/metrics` and `/healthz`.

    endpoint = Endpoint.serve("127.0.0.1", 9108)
    with endpoint.watching(run.label, settings) as watch:
        run_tournament(settings, ..., watch=watch)

Counts come from the event log and the leaderboard, so they are those of the whole run however often it was restarted.
The reconcile loop only copies numbers under a lock; text is made when somebody asks.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import subprocess
import threading
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from fintrader.errors import ConfigError
from fintrader.runs import commit, versions
from fintrader.tournament.orchestrator import Orchestrator
from fintrader.tournament.settings import TournamentSettings


@dataclass(frozen=True)
class Metric:
    """A family of series: its kind, what it counts, and its labels."""

    kind: str
    """`gauge`, `counter`, `histogram` or `info`."""
    meaning: str
    labels: tuple[str, ...] = ("run",)


CATALOGUE: dict[str, Metric] = {
    "fintrader_pods": Metric(
        "gauge", "Pods by state: planned, waiting, running, arrived, done, stopped, failed", ("run", "state")
    ),
    "fintrader_pods_wanted": Metric("gauge", "Pods the tournament is to train in all"),
    "fintrader_capacity_pods": Metric("gauge", "Pods that can work at once, at this moment"),
    "fintrader_launches": Metric("counter", "Pods started, restarts included"),
    "fintrader_submissions": Metric("counter", "Results applied to the leaderboard", ("run", "status")),
    "fintrader_pod_losses": Metric("counter", "Attempts that came to nothing, by reason", ("run", "reason")),
    "fintrader_drained": Metric("counter", "Pods stopped to make room or because their node went away"),
    "fintrader_env_steps": Metric("counter", "Environment steps trained, repeated ones counted once"),
    "fintrader_env_steps_per_second": Metric("gauge", "Environment steps a second over the last half minute"),
    "fintrader_best_score": Metric("gauge", "Best validation score on the leaderboard", ("run", "metric")),
    "fintrader_leaderboard_rows": Metric("gauge", "Rows of the leaderboard"),
    "fintrader_reconcile_seconds": Metric("histogram", "Time a turn of the reconcile loop takes"),
    "fintrader_last_reconcile_timestamp_seconds": Metric("gauge", "When the last turn ended, Unix time"),
    "fintrader_gpu_memory_used_bytes": Metric("gauge", "Memory in use on a GPU of this machine", ("gpu",)),
    "fintrader_gpu_memory_total_bytes": Metric("gauge", "Memory of a GPU of this machine", ("gpu",)),
    "fintrader_build": Metric("info", "Versions of what is running", ("version", "commit", "python", "torch")),
}
"""Every family that is served; a counter's series end in `_total`, an info's in `_info`, as Prometheus has it."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the reconcile histogram, seconds."""
RATE_SECONDS = 30.0
STALE_SECONDS = 120.0
"""`/healthz` fails when a race has had no turn for so long: the longest turn measured is two orders below."""


@dataclass
class Watch:
    """The numbers of one race. Called by the reconcile loop after each turn; read by the endpoint's threads."""

    run: str
    settings: TournamentSettings
    lock: threading.Lock = field(default_factory=threading.Lock)
    clock: Callable[[], float] = time.monotonic
    states: dict[str, int] = field(default_factory=dict)
    capacity: int = 0
    launches: int = 0
    drained: int = 0
    submissions: Counter[str] = field(default_factory=Counter)
    losses: Counter[str] = field(default_factory=Counter)
    env_steps: int = 0
    best: float | None = None
    rows: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS) + 1))
    turn_seconds: float = 0.0
    last_turn: float = 0.0
    _seen: dict[str, int] = field(default_factory=dict)
    _events: int = 0
    _applied: int = 0
    _marks: deque[tuple[float, int]] = field(default_factory=deque)

    def __call__(self, orchestrator: Orchestrator) -> None:
        """Copy the numbers of a turn."""
        progress = orchestrator.launcher.progress()
        capacity = orchestrator.launcher.capacity()
        with self.lock:
            self._count_events(orchestrator.log.records)
            self._count_results(orchestrator)
            for pod, at in progress.items():
                if pod in orchestrator.running:
                    self._steps(pod, at.env_steps)
            self.states = {
                "planned": max(0, self.settings.pods - len(orchestrator.specs)),
                "waiting": len(orchestrator.waiting),
                "running": len(orchestrator.running),
                "arrived": len(orchestrator.pending),
                **{status: self.submissions[status] for status in ("done", "stopped", "failed")},
            }
            self.capacity = capacity
            self.rows = len(orchestrator.leaderboard.rows)
            self.best = orchestrator.leaderboard.rows[0].score if orchestrator.leaderboard.rows else None
            self.buckets[bisect_left(BUCKETS, orchestrator.turn_seconds)] += 1
            self.turn_seconds += orchestrator.turn_seconds
            self.last_turn = time.time()
            self._mark()

    def _count_events(self, records: list[dict[str, Any]]) -> None:
        for event in records[self._events :]:
            match event.get("event"):
                case "launched":
                    self.launches += 1
                case "drained":
                    self.drained += 1
                case "lost":
                    self.losses[event["reason"]] += 1
        self._events = len(records)

    def _count_results(self, orchestrator: Orchestrator) -> None:
        first = not self._marks
        for entry in orchestrator.leaderboard.applied[self._applied :]:
            self.submissions[entry.result.status] += 1
            self._steps(entry.spec.pod, entry.result.env_steps)
            self._seen.pop(entry.spec.pod, None)
        self._applied = len(orchestrator.leaderboard.applied)
        if first:  # what an earlier process did counts, but not in this one's rate
            self._marks.append((self.clock(), self.env_steps))

    def _steps(self, pod: str, env_steps: int) -> None:
        """Steps beyond what this pod was seen at: an attempt that starts over repeats steps, it adds none."""
        before = self._seen.get(pod, 0)
        if env_steps > before:
            self.env_steps += env_steps - before
            self._seen[pod] = env_steps

    def _mark(self) -> None:
        now = self.clock()
        if now - self._marks[-1][0] >= 1.0 or len(self._marks) == 1:
            self._marks.append((now, self.env_steps))
        while len(self._marks) > 2 and now - self._marks[1][0] > RATE_SECONDS:
            self._marks.popleft()

    def rate(self) -> float:
        """Env-steps a second over the last half minute."""
        if not self._marks:
            return 0.0
        elapsed = self.clock() - self._marks[0][0]
        return (self.env_steps - self._marks[0][1]) / elapsed if elapsed > 0 else 0.0

    def samples(self) -> Iterator[tuple[str, dict[str, str], Any]]:
        """Family, labels and value of all of this race's numbers."""
        run = {"run": self.run}
        with self.lock:
            for state, count in self.states.items():
                yield "fintrader_pods", {**run, "state": state}, count
            yield "fintrader_pods_wanted", run, self.settings.pods
            yield "fintrader_capacity_pods", run, self.capacity
            yield "fintrader_launches", run, self.launches
            for status, count in self.submissions.items():
                yield "fintrader_submissions", {**run, "status": status}, count
            for reason, count in self.losses.items():
                yield "fintrader_pod_losses", {**run, "reason": reason}, count
            yield "fintrader_drained", run, self.drained
            yield "fintrader_env_steps", run, self.env_steps
            yield "fintrader_env_steps_per_second", run, self.rate()
            if self.best is not None:
                yield "fintrader_best_score", {**run, "metric": self.settings.metric}, self.best
            yield "fintrader_leaderboard_rows", run, self.rows
            yield "fintrader_reconcile_seconds", run, (list(self.buckets), self.turn_seconds)
            if self.last_turn:
                yield "fintrader_last_reconcile_timestamp_seconds", run, self.last_turn


class _Collector:
    """All watches, the machine's GPUs and the versions as Prometheus families, made when asked for."""

    def __init__(self, watches: dict[str, Watch], gpus: Callable[[], list[tuple[str, int, int]]]) -> None:
        self._watches, self._gpus = watches, gpus
        known = versions()
        found = {name: known.get(name, "") for name in ("python", "torch")}
        self._build = {"version": known.get("fintrader", ""), "commit": commit() or "", **found}

    def collect(self) -> Iterable[Any]:
        """Called by the registry at every scrape."""
        from prometheus_client import core

        makers = {
            "gauge": core.GaugeMetricFamily,
            "counter": core.CounterMetricFamily,
            "histogram": core.HistogramMetricFamily,
            "info": core.InfoMetricFamily,
        }
        families = {
            name: makers[metric.kind](name, metric.meaning, labels=() if metric.kind == "info" else metric.labels)
            for name, metric in CATALOGUE.items()
        }
        families["fintrader_build"].add_metric((), self._build)
        for gpu, used, total in self._gpus():
            families["fintrader_gpu_memory_used_bytes"].add_metric((gpu,), used)
            families["fintrader_gpu_memory_total_bytes"].add_metric((gpu,), total)
        for watch in list(self._watches.values()):
            for name, labels, value in watch.samples():
                values = [labels[label] for label in CATALOGUE[name].labels]
                if CATALOGUE[name].kind == "histogram":
                    counts, total_seconds = value
                    bounds, below = [], 0
                    for bound, count in zip([*map(str, BUCKETS), "+Inf"], counts, strict=True):
                        below += count
                        bounds.append((bound, below))
                    families[name].add_metric(values, bounds, total_seconds)
                else:
                    families[name].add_metric(values, value)
        return families.values()


class Endpoint:
    """The HTTP server of one process. Its threads die with the process."""

    def __init__(self, server: ThreadingHTTPServer, watches: dict[str, Watch]) -> None:
        self._server, self._watches = server, watches
        self._racing: set[str] = set()
        self.host, self.port = str(server.server_address[0]), int(server.server_address[1])

    @classmethod
    def serve(cls, host: str = "127.0.0.1", port: int = 0) -> Endpoint:
        """Listen on `host:port` (0: any free port; `.port` says which).

        Raises ConfigError when the port is taken or the extra `observe` is not installed.
        """
        try:
            from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
        except ImportError:
            raise ConfigError(
                "metrics_port needs prometheus-client; install it with `pip install 'fintrader[observe]'`"
            ) from None
        watches: dict[str, Watch] = {}
        registry = CollectorRegistry()
        registry.register(_Collector(watches, _Gpus().read))
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        try:
            server = ThreadingHTTPServer((host, port), _Handler)
        except OSError as error:
            taken = error.errno in (errno.EADDRINUSE, errno.EACCES)
            problem = "is taken or not allowed; choose another" if taken else f"cannot be used ({error})"
            raise ConfigError(f"metrics_port: {host}:{port} {problem}") from None
        server.daemon_threads = True
        endpoint = cls(server, watches)
        server.registry, server.endpoint = registry, endpoint  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True, name="metrics").start()
        return endpoint

    @contextlib.contextmanager
    def watching(self, run: str, settings: TournamentSettings) -> Iterator[Watch]:
        """A watch for `run_tournament`; its last numbers stay on show after the block."""
        watch = self._watches[run] = Watch(run, settings)
        self._racing.add(run)
        try:
            yield watch
        finally:
            self._racing.discard(run)

    def problem(self) -> str:
        """Why `/healthz` should fail; empty while all is well."""
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


class _Handler(BaseHTTPRequestHandler):
    """`/metrics` in the form the scraper asks for, `/healthz` for probes."""

    def do_GET(self) -> None:
        from prometheus_client.exposition import choose_encoder

        path = self.path.split("?")[0]
        if path == "/metrics":
            encode, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, kind, encode(self.server.registry))  # type: ignore[attr-defined]
        elif path == "/healthz":
            problem = self.server.endpoint.problem()  # type: ignore[attr-defined]
            self._answer(503 if problem else 200, "text/plain; charset=utf-8", f"{problem or 'ok'}\n".encode())
        else:
            self._answer(404, "text/plain; charset=utf-8", b"/metrics or /healthz\n")

    def _answer(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """A scrape every few seconds is no news."""


class _Gpus:
    """Memory of this machine's GPUs by `nvidia-smi`, which wakes no CUDA context in this process."""

    def __init__(self, seconds: float = 10.0) -> None:
        self._command = shutil.which("nvidia-smi")
        self._seconds = seconds
        self._at = -seconds
        self._known: list[tuple[str, int, int]] = []
        self._lock = threading.Lock()

    def read(self) -> list[tuple[str, int, int]]:
        """Index, bytes in use and bytes in all of each GPU; asked at most every ten seconds."""
        if self._command is None:
            return []
        with self._lock:
            if time.monotonic() - self._at >= self._seconds:
                self._at = time.monotonic()
                self._known = self._ask(self._command)
            return self._known

    @staticmethod
    def _ask(command: str) -> list[tuple[str, int, int]]:
        query = [command, "--query-gpu=index,memory.used,memory.total", "--format=csv,noheader,nounits"]
        try:
            answer = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return []
        found = []
        for line in answer.splitlines():
            with contextlib.suppress(ValueError):
                index, used, total = (part.strip() for part in line.split(","))
                found.append((index, int(used) * 2**20, int(total) * 2**20))
        return found
