"""Faults: does any kill, torn write or full disk lose, double or change a tournament's result?

    python benchmarks/chaos.py [--random 200] [--save]

Strikes a tournament of stub pods at every file and database operation (SIGKILL before and after it, half of a write,
a full disk), its pods' processes at each of theirs, and orchestrator and pods at random moments; fills a real small
disk if it may mount one; lets pairs of orchestrators race for one folder. After each, the same command must complete
and everything a seed fixes must equal an undisturbed run. Prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.common import finish
from fintrader.runs import RunFolder
from tests.tournament import chaos
from tests.tournament.chaos import DONE, REFUSED, Faults, Tally, everything, forked


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--pods", type=int, default=6)
    arguments.add_argument("--random", type=int, default=200, help="random moments, half of them pods")
    arguments.add_argument("--save", action="store_true")
    options = arguments.parse_args()
    home = Path(tempfile.mkdtemp(prefix="chaos-"))
    try:
        figures = measure(home, options.pods, options.random)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    finish("chaos", figures, seed=5, save=options.save)


def measure(home: Path, pods: int, moments: int) -> dict[str, Any]:
    import tests.tournament.conftest  # noqa: F401 - forks then find everything imported

    reference = RunFolder(home / "undisturbed")
    assert forked(reference, pods).status == DONE
    expected = everything(reference)
    points = chaos.count_points(home, pods)
    figures: dict[str, Any] = {"operations": points}
    recovery: list[float] = []
    problems: list[str] = []

    def add(name: str, tally: Tally) -> None:
        figures[name] = {"scenarios": tally.scenarios, "struck": tally.struck, "problems": len(tally.problems)}
        recovery.extend(tally.recovery)
        problems.extend(tally.problems)
        print(f"{name}: {figures[name]}", flush=True)

    for mode in ("kill", "torn", "full"):
        tally = Tally()
        for at in range(1, points + 1 if mode == "kill" else points // 2 + 1):
            faults = Faults(mode, at, home / f"{mode}-{at}.mark")
            tally.strike_and_recover(
                home, f"{mode}-{at}", pods, expected, lambda run, faults=faults: forked(run, pods, faults=faults)
            )
        add(mode, tally)
    add("pod_process", pod_process(home, pods, expected))
    add("random_orchestrator", at_random(home, pods, expected, "orchestrator", moments // 2))
    add("random_pod", at_random(home, pods, expected, "pod", moments - moments // 2))
    add("two_orchestrators", two_orchestrators(home, pods, expected))
    figures["real_full_disk"] = real_full_disk(home, pods, expected)
    print(f"real_full_disk: {figures['real_full_disk']}", flush=True)
    struck = sum(figures[name]["struck"] for name in ("kill", "torn", "pod_process"))
    return {
        **figures,
        "kill_points": struck,
        "recovery_seconds_max": round(max(recovery), 3),
        "recovery_seconds_median": round(sorted(recovery)[len(recovery) // 2], 3),
        "lost_or_doubled_or_changed": len(problems),
        "problems": problems[:20],
    }


def pod_process(home: Path, pods: int, expected: Any) -> Tally:
    """SIGKILL of a spawned pod at each of its operations; the orchestrator lives on and tries again."""
    tally = Tally()
    at, missed = 1, 0
    while missed < 3:
        mark = home / f"pod-{at}.mark"
        os.environ["CHAOS_POD"] = json.dumps({"mode": "kill", "at": at, "mark": str(mark)})
        run = RunFolder(home / f"pod-{at}")
        outcome = forked(run, pods, processes=True)
        tally.scenarios += 1
        tally.struck += mark.exists()
        missed = 0 if mark.exists() else missed + 1
        problems = ["did not complete"] if outcome.status != DONE else chaos.check(run, {}, expected)
        problems = [problem for problem in problems if not problem.startswith("left behind")]  # swept at the next start
        tally.problems += [f"pod-{at}: {problem}" for problem in problems]
        shutil.rmtree(run.root)
        at += 1
    del os.environ["CHAOS_POD"]
    return tally


def at_random(home: Path, pods: int, expected: Any, target: str, moments: int) -> Tally:
    """SIGKILL at random moments of a tournament of spawned pods; threads complete it, which is quicker."""
    os.environ["STUB_SECONDS"] = "0.08"
    tally = Tally()
    for seed in range(moments):
        tally.strike_and_recover(
            home,
            f"random-{target}-{seed}",
            pods,
            expected,
            lambda run, seed=seed: chaos.random_kill(seed, run, pods, target=target, within=1.6),
        )
    del os.environ["STUB_SECONDS"]
    return tally


def two_orchestrators(home: Path, pods: int, expected: Any, pairs: int = 20) -> Tally:
    """Two at once on one folder: one finishes, the other is refused or finds the work done."""
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
        tally.struck += codes == [DONE, REFUSED]
        problems = [] if codes in ([DONE, REFUSED], [DONE, DONE]) else [f"exit codes {codes}"]
        tally.problems += [f"pair-{number}: {problem}" for problem in problems + chaos.check(run, {}, expected)]
        shutil.rmtree(run.root)
    return tally


def real_full_disk(home: Path, pods: int, expected: Any) -> dict[str, Any]:
    """A tmpfs too small for the run; grown afterwards. Needs the right to mount."""
    disk = home / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode != 0:
        return {"tried": False}
    try:
        sizes, refused, run = [64, 96, 128, 160, 224, 512, 4096], 0, RunFolder(disk / "run")
        for size in sizes:
            subprocess.run(["mount", "-o", f"remount,size={size}k", str(disk)], check=True)
            outcome = forked(run, pods)
            if outcome.status == DONE:
                break
            if outcome.status != REFUSED:
                return {"tried": True, "untyped_error_at_kib": size}
            refused += 1
        problems = chaos.check(run, {}, expected)
        return {"tried": True, "times_full": refused, "completed_at_kib": size, "problems": len(problems)}
    finally:
        subprocess.run(["umount", str(disk)], check=False)


if __name__ == "__main__":
    started = time.perf_counter()
    main()
