"""Kills on a Ray cluster: does any of them lose, double or change a tournament's result, and how
soon does it go on?

    python benchmarks/ray_chaos.py [--rounds 5] [--seed 0] [--save]

Each round runs one generational tournament of stub pods on a cluster of three nodes (loopback, one
machine) and strikes it in random order: SIGKILL to a pod's process, to a node with all its
processes, to a node's raylet alone; a node that joins; a drain with a deadline; SIGKILL to the
orchestrator alone; and at the end SIGKILL to the head and the orchestrator (every other round to
the head alone), after which the same command goes on upon a new cluster. After each round, what a
seed fixes must equal an undisturbed run on threads. Recovery is measured from the strike to the
result of the pod that was struck, or to the first reconcile of the next orchestrator. Prints one
JSON object as its last line.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil

from benchmarks.common import finish
from fintrader.files import read_jsonl
from fintrader.runs import RunFolder
from tests.engines import chaos, stubs
from tests.engines.ray_cluster import Nodes
from tests.engines.ray_race import REFUSED, Racer, generational
from tests.engines.thread_launcher import ThreadLauncher

STRIKES = ("process", "node", "raylet", "join", "drain", "orchestrator")
HEADS = ("head_and_orchestrator", "head_alone")
PATIENCE_SECONDS = 180.0


class Round:
    """One tournament and what was done to it."""

    def __init__(self, home: Path, number: int, pods: int, seconds: float, seed: int) -> None:
        self.run = RunFolder(home / f"round-{number}")
        self.pods = pods
        self.chance = random.Random(seed * 1000 + number)
        self.kills: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()  # the pod had its result already
        self.seen: set[str] = set()
        self.recovery: dict[str, list[float]] = defaultdict(list)
        self.problems: list[str] = []
        self.cluster = Nodes(1, 1, quick=True, STUB_SECONDS=str(seconds))
        self.racer = self.race()

    def race(self) -> Racer:
        return Racer(self.run, self.cluster.address, "stub", {"drain_seconds": 1.0}, pods=self.pods)

    # --- strikes ----------------------------------------------------------------------------------

    def strike(self, kind: str) -> None:
        """Disturb, and wait until the tournament goes on."""
        if kind in ("node", "raylet", "drain"):
            self.cluster.add(1)  # in whose place the work goes on
        pod, node, pid = self.until(self.young, f"a pod that has just begun before {kind}")
        stored = set(chaos.acknowledged(self.run))
        begun = time.monotonic()
        match kind:
            case "process":
                psutil.Process(pid).kill()
            case "node":
                self.cluster.kill(node)
            case "raylet":
                self.cluster.kill_raylet(node)
            case "join":
                self.cluster.add(1)
            case "drain":
                self.cluster.drain(node, seconds=2.0)
            case "orchestrator":
                self.racer.process.send_signal(signal.SIGKILL)
                self.racer.stop()
                acknowledged = chaos.acknowledged(self.run)
                self.racer = self.race()
                self.until(lambda: self.racer.note()["pods"], "the next orchestrator")
                self.kept(acknowledged)
        self.kills[kind] += 1
        self.missed[kind] += pod in stored
        if kind == "join":
            self.until(
                lambda: set(chaos.acknowledged(self.run)) - stored or self.ended(),
                "a result after a node joined",
            )
        elif kind != "orchestrator":
            self.until(
                lambda: pod in chaos.acknowledged(self.run) or self.ended(),
                f"the struck pod's result ({kind})",
            )
        self.recovery[kind].append(time.monotonic() - begun)

    def young(self) -> tuple[str, str, int] | None:
        """A pod that is at work since the last look, with its node and process: it has the most of
        its time left."""
        pods = self.racer.note()["pods"]
        new = sorted(set(pods) - self.seen - set(chaos.acknowledged(self.run)))
        self.seen |= set(pods)
        if not new:
            return None
        pod = self.chance.choice(new)
        return pod, *pods[pod]

    def behead(self, alone: bool) -> None:
        """The head and the orchestrator at once, or the head alone, which the orchestrator has to
        notice; then a new cluster and the same command."""
        kind = "head_alone" if alone else "head_and_orchestrator"
        self.until(
            lambda: self.racer.note()["pods"] or self.ended(),
            "pods at work before the end of the head",
        )
        self.cluster.kill_head()
        if alone and not self.ended():
            status, said = self.racer.wait(PATIENCE_SECONDS)
            if status != REFUSED or "head" not in said:
                self.problems.append(f"without a head: ended with {status}: {said[-300:]}")
        self.racer.stop()
        acknowledged = chaos.acknowledged(self.run)
        self.cluster.stop()
        begun = time.monotonic()
        self.cluster = Nodes(1, 1, quick=True, STUB_SECONDS="0.2")
        self.racer = self.race()
        self.until(lambda: self.racer.note()["pods"] or self.ended(), "the next orchestrator")
        self.recovery[kind].append(time.monotonic() - begun)
        self.kills[kind] += 1
        self.kept(acknowledged)

    def conclude(self, expected: Any) -> None:
        """Let it end, and compare."""
        status, said = self.racer.wait(PATIENCE_SECONDS)
        if status != 0:
            self.problems.append(f"ended with {status}: {said[-500:]}")
            return
        self.problems += chaos.check(self.run, {}, expected)

    def kept(self, acknowledged: dict[str, bytes]) -> None:
        after = chaos.acknowledged(self.run)
        self.problems += [
            f"{pod} lost or changed" for pod, data in acknowledged.items() if after.get(pod) != data
        ]

    def ended(self) -> bool:
        return self.racer.process.poll() is not None

    def until(self, condition: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited too long for {what}")
            time.sleep(0.02)
        return found

    def close(self) -> None:
        self.racer.stop()
        self.cluster.stop()


def play(home: Path, number: int, options: argparse.Namespace, expected: Any) -> Round:
    """One round from the first pod to the comparison."""
    one = Round(home, number, options.pods, options.seconds, options.seed)
    try:
        kinds = list(STRIKES)
        one.chance.shuffle(kinds)
        for kind in kinds:
            if one.ended() or len(chaos.acknowledged(one.run)) > options.pods - 4:
                break
            one.strike(kind)
        one.behead(alone=number % 2 == 1)
        one.conclude(expected)
    except (TimeoutError, RuntimeError, psutil.NoSuchProcess) as error:
        one.problems.append(f"{type(error).__name__}: {error}")
    finally:
        one.close()
    return one


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--pods", type=int, default=48)
    arguments.add_argument("--seconds", type=float, default=1.0, help="of a stub pod")
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--save", action="store_true")
    options = arguments.parse_args()
    home = Path(tempfile.mkdtemp(prefix="ray-chaos-"))
    begun = time.monotonic()
    try:
        undisturbed = RunFolder(home / "undisturbed")
        generational(
            undisturbed,
            ThreadLauncher(undisturbed, home, stubs.body, workers=4),
            "stub",
            pods=options.pods,
        )
        expected = chaos.everything(undisturbed)
        rounds = []
        for number in range(options.rounds):
            rounds.append(play(home, number, options, expected))
            print(
                f"round {number}: {dict(rounds[-1].kills)} {rounds[-1].problems}",
                file=sys.stderr,
                flush=True,
            )
        lost = Counter(
            event["reason"]
            for one in rounds
            for event in read_jsonl(one.run.events)
            if event["event"] == "lost"
        )
    finally:
        shutil.rmtree(home, ignore_errors=True)
    kills: Counter[str] = sum((one.kills for one in rounds), Counter())
    problems = [problem for one in rounds for problem in one.problems]
    recovery = {
        kind: [second for one in rounds for second in one.recovery[kind]]
        for kind in (*STRIKES, *HEADS)
    }
    finish(
        "ray_chaos",
        {
            "rounds": options.rounds,
            "pods_per_round": options.pods,
            "pod_seconds": options.seconds,
            "strikes": dict(sorted(kills.items())),
            "strikes_at_a_pod_already_done": sum(sum(one.missed.values()) for one in rounds),
            "attempts_lost_by_reason": dict(sorted(lost.items())),
            "results_lost_or_changed": sum("lost or changed" in problem for problem in problems),
            "results_doubled": sum("applied" in problem for problem in problems),
            "differs_from_undisturbed": sum("differs" in problem for problem in problems),
            "problems": problems,
            "recovery_seconds_median": {
                k: round(statistics.median(v), 2) for k, v in recovery.items() if v
            },
            "recovery_seconds_max": {k: round(max(v), 2) for k, v in recovery.items() if v},
            "wall_seconds": round(time.monotonic() - begun, 1),
        },
        seed=options.seed,
        save=options.save,
    )
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
