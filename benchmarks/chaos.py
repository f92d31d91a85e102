"""Faults: does any kill, torn write or full disk lose, double or change a tournament's result?

    python benchmarks/chaos.py [--random 200] [--save]

Strikes a tournament of stub pods at every file and database operation (SIGKILL before and after it,
half of a write, a full disk), its pods' and its evaluators' processes at each of theirs, and
orchestrator, pods and evaluators at random moments; fills a real small disk if it may mount one;
lets pairs of orchestrators race for one folder. After each, the same command must complete and
everything a seed fixes must equal an undisturbed run. Prints one JSON object as its last line.
`scenarios` are runs; the count beside it is named after what was counted, and is lower where runs
ended before their moment came: `strikes` that struck, processes `killed`, tournaments that a full
disk `stopped`, second orchestrators `refused`. Each part has the commit that it was measured at.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks import _evaluators as evaluators
from benchmarks.common import ROOT, commit, finish
from fintrader.runs import RunFolder
from tests.engines import chaos
from tests.engines.chaos import DONE, REFUSED, Faults, Outcome, Tally, everything, forked

PARTS = (
    "kill",
    "torn",
    "full",
    "pod_process",
    "evaluator",
    "evaluator_full",
    "random_orchestrator",
    "random_pod",
    "random_evaluator",
    "two_orchestrators",
    "real_full_disk",
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--pods", type=int, default=6)
    arguments.add_argument(
        "--random",
        type=int,
        default=200,
        help="random moments of orchestrators and of pods; half as many again of evaluators",
    )
    arguments.add_argument(
        "--only",
        nargs="+",
        choices=PARTS,
        default=PARTS,
        help="some parts; --save keeps the others",
    )
    arguments.add_argument("--save", action="store_true")
    options = arguments.parse_args()
    home = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        parts = measure(home, options.pods, options.random, options.only)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    with (Path(tempfile.gettempdir()) / "fintrader-chaos.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stored = ROOT / "benchmarks" / "results" / "chaos.json"
        if options.save and set(options.only) != set(PARTS) and stored.exists():
            parts = {**json.loads(stored.read_text())["parts"], **parts}
        finish("chaos", {**summary(parts), "parts": parts}, seed=5, save=options.save)


def measure(home: Path, pods: int, moments: int, only: Sequence[str]) -> dict[str, Any]:
    """Each part's counts, problems and slowest recovery."""
    import tests.tournament.conftest  # noqa: F401 - forks then find everything imported

    reference = RunFolder(home / "undisturbed")
    assert forked(reference, pods).status == DONE
    expected = everything(reference)
    points = chaos.count_points(home, pods)
    parts: dict[str, Any] = {}
    for name in only:
        if name == "real_full_disk":
            parts[name] = real_full_disk(home, pods, expected)
        else:
            if name == "pod_process":
                tally = pod_process(home, pods, expected)
            elif name.startswith("evaluator"):
                modes = ("full",) if name == "evaluator_full" else ("kill", "torn")
                tally = evaluator(home, pods, expected, modes)
            elif name == "two_orchestrators":
                tally = two_orchestrators(home, pods, expected)
            elif name.startswith("random_"):
                tally = at_random(home, pods, expected, name.removeprefix("random_"), moments // 2)
            else:
                tally = every_operation(home, pods, expected, name, points)
            parts[name] = {
                "scenarios": tally.scenarios,
                counted(name): tally.stopped if counted(name) == "stopped" else tally.hits,
                "problems": tally.problems[:20],
                "recovery_seconds_max": round(max(tally.recovery, default=0.0), 3),
            }
        parts[name]["commit"] = commit()
        print(f"{name}: {parts[name]}", flush=True)
    return parts


def counted(name: str) -> str:
    """What a part counts besides its scenarios."""
    if name == "two_orchestrators":
        return "refused"
    if name.endswith("full"):
        return "stopped"
    return "killed" if name.startswith("random_") else "strikes"


def summary(parts: dict[str, Any]) -> dict[str, Any]:
    """The figures asked for."""

    def total(key: str, *names: str) -> int:
        return sum(parts.get(name, {}).get(key, 0) for name in names)

    by_chance = ("random_orchestrator", "random_pod", "random_evaluator")
    return {
        "kill_points": total("strikes", "kill", "torn", "pod_process", "evaluator"),
        "random_moments": total("scenarios", *by_chance),
        "killed_at_random_moments": total("killed", *by_chance),
        "full_disk_points": total("stopped", "full", "evaluator_full"),
        "recovery_seconds_max": max(
            (part.get("recovery_seconds_max", 0.0) for part in parts.values()), default=0.0
        ),
        "lost_or_doubled_or_changed": sum(
            len(part["problems"])
            if isinstance(part.get("problems"), list)
            else part.get("problems", 0)
            for part in parts.values()
        ),
    }


def every_operation(home: Path, pods: int, expected: Any, mode: str, points: int) -> Tally:
    """A strike at each file and database operation of orchestrator and (threaded) pods."""
    tally = Tally()
    for at in range(1, points + 1 if mode == "kill" else points // 2 + 1):
        faults = Faults(mode, at, home / f"{mode}-{at}.mark")
        tally.strike_and_recover(
            home,
            f"{mode}-{at}",
            pods,
            expected,
            lambda run, faults=faults: forked(run, pods, faults=faults),
        )
    return tally


def pod_process(home: Path, pods: int, expected: Any) -> Tally:
    """SIGKILL of a spawned pod at each of its operations; the orchestrator lives on and tries
    again."""
    tally = Tally()
    at = 1
    missed = 0
    while missed < 3:
        mark = home / f"pod-{at}.mark"
        os.environ["CHAOS_POD"] = json.dumps({"mode": "kill", "at": at, "mark": str(mark)})
        run = RunFolder(home / f"pod-{at}")
        outcome = forked(run, pods, processes=True)
        tally.scenarios += 1
        tally.hits += mark.exists()
        missed = 0 if mark.exists() else missed + 1
        problems = (
            ["did not complete"] if outcome.status != DONE else chaos.check(run, {}, expected)
        )
        problems = [
            problem for problem in problems if not problem.startswith("left behind")
        ]  # swept at the next start
        tally.problems += [f"pod-{at}: {problem}" for problem in problems]
        shutil.rmtree(run.root)
        at += 1
    del os.environ["CHAOS_POD"]
    return tally


def evaluator(home: Path, pods: int, expected: Any, modes: Sequence[str]) -> Tally:
    """A strike at each operation of an evaluator's process; the orchestrator lives on, unless the
    disk is full."""
    tally = Tally()
    for mode in modes:
        at = 1
        missed = 0
        while missed < 3:
            plan = evaluators.Plan(mode, home / f"evaluator-{mode}-{at}.mark", at=at)
            tally.strike_and_recover(
                home,
                f"evaluator-{mode}-{at}",
                pods,
                expected,
                lambda run, plan=plan: evaluators.struck(run, pods, plan),
            )
            missed = 0 if plan.mark.exists() else missed + 1
            at += 1
    return tally


def at_random(home: Path, pods: int, expected: Any, target: str, moments: int) -> Tally:
    """SIGKILL at random moments of a tournament of spawned pods; threads complete it, which is
    quicker."""
    os.environ["STUB_SECONDS"] = "0.08"
    tally = Tally()

    def strike(run: RunFolder, seed: int) -> Outcome:
        if target == "evaluator":  # an evaluation takes about so long
            return random_evaluator_kill(seed, run, pods, within=0.02)
        return random_kill(seed, run, pods, target=target, within=1.6)

    for seed in range(moments):
        name = f"random-{target}-{seed}"
        tally.strike_and_recover(
            home, name, pods, expected, lambda run, seed=seed: strike(run, seed)
        )
    del os.environ["STUB_SECONDS"]
    return tally


def random_kill(seed: int, run: RunFolder, pods: int, *, target: str, within: float) -> Outcome:
    """Start a tournament of spawned pods and SIGKILL the orchestrator, or one of its pods, at a
    random moment.

    That of a pod is counted from the start of the first pod's process.
    """
    chance = random.Random(seed)
    pid = chaos.fork_race(run, pods)
    children: list[psutil.Process] = []
    with contextlib.suppress(psutil.NoSuchProcess):  # it ended before its moment came
        orchestrator = psutil.Process(pid)
        while (
            target == "pod"
            and not orchestrator.children()
            and orchestrator.status() != psutil.STATUS_ZOMBIE
        ):
            time.sleep(0.005)
        time.sleep(chance.uniform(0, within))
        children = orchestrator.children(recursive=True)
        if target == "orchestrator":
            orchestrator.kill()
        elif children:
            chance.choice(children).kill()
    return chaos.ended(pid, run, children, target=target)


def random_evaluator_kill(seed: int, run: RunFolder, pods: int, *, within: float) -> Outcome:
    """SIGKILL one of the evaluators at a random moment of its work; the orchestrator lives on and
    tries again."""
    chance = random.Random(seed)
    mark = run.root.parent / f"{run.root.name}.mark"
    plan = evaluators.Plan(
        "random", mark, after=chance.uniform(0, within), nth=chance.randint(1, pods)
    )
    return evaluators.struck(run, pods, plan)


def two_orchestrators(home: Path, pods: int, expected: Any, pairs: int = 20) -> Tally:
    """Two at once on one folder, for longer than either waits: one finishes, the other is
    refused."""
    os.environ["STUB_SECONDS"] = "1.0"
    tally = Tally()
    for number in range(pairs):
        run = RunFolder(home / f"pair-{number}")
        children = []
        for _ in range(2):
            pid = os.fork()
            if pid == 0:
                os._exit(forked(run, pods).status & 0xFF)
            children.append(pid)
        codes = sorted(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children)
        tally.scenarios += 1
        tally.hits += codes == [DONE, REFUSED]
        problems = [] if codes == [DONE, REFUSED] else [f"exit codes {codes}"]
        tally.problems += [
            f"pair-{number}: {problem}" for problem in problems + chaos.check(run, {}, expected)
        ]
        shutil.rmtree(run.root)
    del os.environ["STUB_SECONDS"]
    return tally


def real_full_disk(home: Path, pods: int, expected: Any) -> dict[str, Any]:
    """A tmpfs too small for the run; grown afterwards. Needs the right to mount."""
    disk = home / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True
    )
    if mounted.returncode != 0:
        return {"tried": False}
    try:
        sizes = [64, 96, 128, 160, 224, 512, 4096]
        refused = 0
        run = RunFolder(disk / "run")
        for size in sizes:
            subprocess.run(["mount", "-o", f"remount,size={size}k", str(disk)], check=True)
            outcome = forked(run, pods)
            if outcome.status == DONE:
                break
            if outcome.status != REFUSED:
                return {"tried": True, "untyped_error_at_kib": size}
            refused += 1
        problems = chaos.check(run, {}, expected)
        return {
            "tried": True,
            "times_full": refused,
            "completed_at_kib": size,
            "problems": len(problems),
        }
    finally:
        subprocess.run(["umount", str(disk)], check=False)


if __name__ == "__main__":
    main()
