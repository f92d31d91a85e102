from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from fintrader.runs import RunFolder
from fintrader.storage.mirror import find_mirror
from fintrader.tournament.launchers import Launcher, PodFailure, PodProgress
from fintrader.tournament.pod import find_reason, run_pod
from fintrader.tournament.pod_context import WITHOUT_WAITING, Body, PodContext
from fintrader.tournament.settings import OperationsSettings
from fintrader.tournament.spec import PodResult, PodSpec


class ThreadLauncher(Launcher):
    """Pods as threads of this process: for stub bodies in tests and benchmarks, and for a
    debugger."""

    def __init__(
        self,
        run: RunFolder,
        market: Path,
        body: str | Body,
        *,
        workers: int,
        token: int | None = None,
        operations: OperationsSettings = WITHOUT_WAITING,
    ) -> None:
        self.run = run
        self.market = market
        self.body = body
        self.token = token
        self.mirror = find_mirror(run.root)
        self._limit = workers
        self._operations = operations
        self._pool = ThreadPoolExecutor(max_workers=max(workers, 64))
        self._progress: dict[str, PodProgress] = {}

    def measure_capacity(self) -> int:
        return self._limit

    def resize(self, workers: int | None) -> None:
        self._limit = workers or 1

    def submit(self, spec: PodSpec, *, attempt: int = 1) -> Future[PodResult]:
        self._progress[spec.pod] = PodProgress(since=time.time(), device="thread")
        return self._pool.submit(self._work, spec, attempt)

    def _work(self, spec: PodSpec, attempt: int) -> PodResult:
        def report(share: float, env_steps: int, note: str) -> None:
            self._progress[spec.pod] = PodProgress(share, env_steps, note, device="thread")

        context = PodContext(
            self.run,
            self.market,
            mirror=self.mirror,
            token=self.token,
            attempt=attempt,
            report=report,
            operations=self._operations,
        )
        try:
            return run_pod(spec, context, self.body)
        except Exception as error:
            raise PodFailure(
                find_reason(error), f"{type(error).__name__}: {error}"[:2000]
            ) from error
        finally:
            self._progress.pop(spec.pod, None)

    def report_progress(self) -> dict[str, PodProgress]:
        return dict(self._progress)

    def check_pods(self) -> None:
        """Find nothing: a thread does not die alone."""

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)
