"""Evaluators that can be killed, without Ray: a pod trains in a thread of the orchestrator, and its
evaluation is a process.

A small server forks these processes. It was itself forked before there were any threads.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fintrader.records import from_json, to_json
from fintrader.runs import RunFolder
from fintrader.tournament.launchers import PodFailure
from fintrader.tournament.pod import begin_pod, evaluate_pod, find_reason
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.spec import PodResult, PodSpec, TrainedPod
from fintrader.tournament.store import RunStore
from tests.engines import chaos, stubs
from tests.engines.thread_launcher import ThreadLauncher


@dataclass(frozen=True)
class Plan:
    """Strike one evaluator at its `at`-th operation, or (`random`) `after` some seconds."""

    mode: str
    """`kill`, `torn`, `full` as in `chaos.Faults`; `random`."""
    mark: Path
    at: int = 0
    after: float = 0.0
    nth: int = 1
    """`random`: which of the evaluations is struck."""


class Evaluators:
    """The server: it forks an evaluator for each task, strikes it if planned, and reports its
    end."""

    def __init__(self, plan: Plan) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            try:
                _serve(theirs, plan)
            finally:
                os._exit(0)
        theirs.close()
        self._lock = threading.Lock()
        self._socket = ours
        self._lines = ours.makefile()

    def evaluate(self, **task: Any) -> dict[str, Any]:
        """Its exit status (minus the signal), and the reason and detail of a failure."""
        with self._lock:
            self._socket.sendall(json.dumps(task).encode() + b"\n")
            answer: dict[str, Any] = json.loads(self._lines.readline())
            return answer

    def close(self) -> None:
        """The server ends with the connection, as it does when the orchestrator is killed."""
        self._lines.close()
        self._socket.close()
        os.waitpid(self.pid, 0)


def _serve(connection: socket.socket, plan: Plan) -> None:
    for number, line in enumerate(connection.makefile(), 1):
        heard, said = os.pipe()
        pid = os.fork()
        if pid == 0:
            os._exit(_evaluator(json.loads(line), plan, said))
        os.close(said)
        if plan.mode == "random" and number == plan.nth:
            time.sleep(plan.after)
            os.kill(pid, signal.SIGKILL)
        words = b""
        while part := os.read(heard, 65536):
            words += part
        os.close(heard)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if plan.mode == "random" and code == -signal.SIGKILL:
            plan.mark.touch()
        connection.sendall(
            json.dumps({"code": code, "failure": json.loads(words or b"null")}).encode() + b"\n"
        )


def _evaluator(task: dict[str, Any], plan: Plan, said: int) -> int:
    """The evaluator's process."""
    write = os.write  # as it is before it counts as an operation
    if plan.mode != "random":
        chaos.install(chaos.Faults(plan.mode, plan.at, plan.mark))
    context = PodContext(
        RunFolder(Path(task["run"])),
        Path(task["market"]),
        token=task["token"],
        evaluate_elsewhere=True,
    )
    try:
        spec = from_json(PodSpec, task["spec"])
        evaluate_pod(spec, context, from_json(TrainedPod, task["draft"]))
    except BaseException as error:
        write(said, json.dumps([find_reason(error), f"{type(error).__name__}: {error}"]).encode())
        return 1
    return 0


class ApartLauncher(ThreadLauncher):
    """Train in threads and evaluate elsewhere; a lost evaluator is a lost pod, as on Ray."""

    def __init__(
        self,
        run: RunFolder,
        market: Path,
        evaluators: Evaluators,
        *,
        workers: int,
        token: int | None,
    ) -> None:
        super().__init__(run, market, stubs.leaving_body, workers=workers, token=token)
        self.evaluators = evaluators

    def _work(self, spec: PodSpec, attempt: int) -> PodResult:
        context = PodContext(
            self.run, self.market, token=self.token, attempt=attempt, evaluate_elsewhere=True
        )
        try:
            outcome = begin_pod(spec, context, self.body)
        except Exception as error:
            raise PodFailure(find_reason(error), f"{type(error).__name__}: {error}") from error
        if not isinstance(outcome, TrainedPod):
            return outcome
        ended = self.evaluators.evaluate(
            run=str(self.run.root),
            market=str(self.market),
            token=self.token,
            spec=to_json(spec),
            draft=to_json(outcome),
        )
        if ended["failure"] is not None:
            raise PodFailure(*ended["failure"])
        if ended["code"] != 0:
            raise PodFailure("killed", f"its evaluator ended with status {ended['code']}")
        return RunStore(self.run).read_result(spec.pod)

    def close(self) -> None:
        super().close()
        self.evaluators.close()


def struck(run: RunFolder, pods: int, plan: Plan) -> chaos.Outcome:
    """Run a tournament in a fork of this process and strike one of its evaluators."""

    def launching() -> Any:
        server = Evaluators(plan)  # forked before there are threads, and before the lease
        return lambda _, access: ApartLauncher(
            access.run, access.market, server, workers=2, token=access.token
        )

    outcome = chaos.forked(run, pods, launching=launching)
    outcome.hits = int(plan.mark.exists())
    return outcome


def struck_at_random(run: RunFolder, pods: int, seed: int) -> chaos.Outcome:
    """SIGKILL one of the evaluators within 20 ms of its start, which is about what it takes."""
    chance = random.Random(seed)
    mark = run.root.with_suffix(".mark")
    after = chance.uniform(0, 0.02)
    return struck(run, pods, Plan("random", mark, after=after, nth=chance.randint(1, pods)))
