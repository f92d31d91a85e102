"""Stores: does any kill, and then the loss of the head's disk, lose, double or change a result?
What does it cost?

    python benchmarks/store_chaos.py [--moments 40] [--stride 3] [--failovers 3] [--save]
    python benchmarks/store_chaos.py --only-failovers

Strikes a tournament of stub pods whose run lies in a store at every `stride`-th file and database
operation (SIGKILL, half of a write), and kills heads with pods in processes of their own at random
moments before an S3 server on loopback (moto). After each the disk is emptied and the same command
must complete; everything a seed fixes must equal an undisturbed run without any store, and no
result that the database showed may be missing from the store at the moment of the kill. Failover: a
second machine runs the same command again and again; the first head is killed and its pods are not;
seconds pass until the second one's first decision, and until the first machine's pods have ended.
Also measured: requests and bytes a pod, and seconds a put and a get of snapshots of several sizes,
against that server and a local folder. Prints one JSON object as its last line.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil

from benchmarks.common import ROOT, finish
from fintrader.errors import FintraderError
from fintrader.runs import RunFolder
from fintrader.storage import lease
from fintrader.storage.mirror import Mirror, attach
from fintrader.storage.objects import Objects
from fintrader.tournament.settings import TournamentSettings
from tests.engines import chaos, emptied
from tests.engines.chaos import DONE, REFUSED, Faults, everything, forked
from tests.engines.races import settings, stub_race

PODS = 6
SEED = 5


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument(
        "--moments", type=int, default=40, help="random kills before the S3 server"
    )
    arguments.add_argument("--stride", type=int, default=3, help="1: strike at every operation")
    arguments.add_argument("--failovers", type=int, default=3, help="takeovers by another machine")
    arguments.add_argument(
        "--only-failovers", action="store_true", help="nothing else, and nothing is saved"
    )
    arguments.add_argument("--save", action="store_true")
    options = arguments.parse_args()
    home = Path(tempfile.mkdtemp(prefix="store-chaos-"))
    try:
        reference = RunFolder(home / "undisturbed")
        assert forked(reference, PODS).status == DONE
        expected = everything(reference)
        parts: dict[str, Any] = {"failover": failovers(home, options.failovers, expected)}
        print(f"failover: {parts['failover']}", flush=True)
        if options.only_failovers:
            return
        for mode in ("kill", "torn"):
            parts[mode] = at_operations(home, mode, options.stride, expected)
            print(f"{mode}: {parts[mode]}", flush=True)
        with s3_server(home) as server:
            parts["random_s3"] = at_random_moments(home, options.moments, expected)
            print(f"random_s3: {parts['random_s3']}", flush=True)
            costs = {
                "file": transfers(f"file://{home}/transfers", home),
                "s3_loopback": transfers("s3://bucket/transfers", home),
                "pod": per_pod(home),
            }
            server.terminate()
    finally:
        shutil.rmtree(home, ignore_errors=True)
    figures = {
        "scenarios": sum(part["scenarios"] for part in parts.values()),
        "struck": sum(part["struck"] for part in parts.values()),
        "lost_doubled_or_changed": sum(len(part["problems"]) for part in parts.values()),
        "failover_seconds_worst": parts["failover"]["seconds_worst"],
        "resume_on_empty_disk_seconds": parts["random_s3"]["resume_seconds_median"],
        "parts": parts,
        "transfer": costs,
    }
    finish("store_chaos", figures, seed=SEED, save=options.save)


def at_operations(home: Path, mode: str, stride: int, expected: Any) -> dict[str, Any]:
    """Strike at operations of the head (its pods are threads of it), in a store on the same
    disk."""
    counted, url = emptied.place(home, f"{mode}-count")
    attach(counted.root, url)
    points = forked(counted, PODS, faults=Faults("count", 0, home / f"{mode}.count")).points
    struck = 0
    problems = []
    scenarios = 0
    for at in range(1, points, stride):
        run, url = emptied.place(home, f"{mode}-{at}")
        faults = Faults(mode, at, home / f"{mode}-{at}.mark")
        hit, found = emptied.strike_and_empty(
            run, url, PODS, expected, lambda run, faults=faults: forked(run, PODS, faults=faults)
        )
        scenarios = scenarios + 1
        struck = struck + hit
        problems += [f"{mode} {at}: {problem}" for problem in found]
        for folder in (run.root, Path(url.removeprefix("file://"))):
            shutil.rmtree(folder, ignore_errors=True)
    return {"points": points, "scenarios": scenarios, "struck": struck, "problems": problems}


def at_random_moments(home: Path, moments: int, expected: Any) -> dict[str, Any]:
    """Kill the head's process at a random moment of its life, empty the disk, and start it
    again."""
    draw = random.Random(SEED)
    os.environ["STUB_SECONDS"] = "0.2"
    began = time.perf_counter()
    first = RunFolder(home / "first")
    assert start(first, "s3://bucket/first").wait() == 0
    span = time.perf_counter() - began
    struck = 0
    problems = []
    resumes = []
    for number in range(moments):
        run = RunFolder(home / "machine" / f"s3-{number}")
        url = f"s3://bucket/run-{number}"
        process = start(run, url)
        try:
            process.wait(timeout=draw.uniform(0.25, 1.0) * span)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            struck += 1
        found = emptied.lost_before(run, url)
        before = emptied.results_in(url)
        shutil.rmtree(run.root, ignore_errors=True)
        began = time.perf_counter()
        if start(run, url).wait() != 0:
            found.append("the second run failed")
        else:
            resumes.append(round(time.perf_counter() - began, 2))
            found += emptied.check(run, url, before, expected, PODS)
        problems += [f"moment {number}: {problem}" for problem in found]
        shutil.rmtree(run.root, ignore_errors=True)
    return {
        "scenarios": moments,
        "struck": struck,
        "problems": problems,
        "undisturbed_seconds": round(span, 2),
        "resume_seconds_median": median(resumes) if resumes else None,
        "resume_seconds_worst": max(resumes, default=None),
    }


def failovers(home: Path, times: int, expected: Any) -> dict[str, Any]:
    """Another machine takes a run over from a head that is killed while its pods are at work, with
    default settings."""
    os.environ["STUB_SECONDS"] = "4"
    seconds = []
    ends = []
    problems = []
    refused = 0
    for number in range(times):
        url = f"file://{home}/store/failover-{number}"
        one, two = (RunFolder(home / machine / f"failover-{number}") for machine in ("one", "two"))
        first = start(one, url, machine="one")
        while not chaos.events_of(one, "launched"):
            time.sleep(0.05)
        refused += start(two, url, machine="two").wait() == REFUSED  # while somebody drives the run
        pods = psutil.Process(first.pid).children()
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
        killed = time.time()
        before = emptied.results_in(url)
        second = start(two, url, machine="two")
        while not [event for event in chaos.events_of(two, "resumed") if event["time"] > killed]:
            if second.poll() not in (None, DONE):
                second = start(two, url, machine="two")  # as a supervisor would
            time.sleep(0.02)
        seconds.append(round(time.time() - killed, 1))
        while any(pod.is_running() for pod in pods):
            time.sleep(0.05)
        ends.append(round(time.time() - killed, 1))
        if second.wait() != DONE:
            problems.append("the second head failed")
        problems += emptied.check(two, url, before, expected, PODS)
    del os.environ["STUB_SECONDS"]
    return {
        "scenarios": times,
        "struck": times,
        "refused_before": refused,
        "seconds": seconds,
        "seconds_worst": max(seconds, default=None),
        "orphans_ended_seconds": ends,
        "problems": problems,
    }


def start(run: RunFolder, url: str, *, machine: str = "") -> subprocess.Popen[bytes]:
    """A head in a process of its own, on a `machine` of that name or on this one."""
    command = [sys.executable, __file__, "head", str(run.root), url, machine]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, env=variables, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def head(root: Path, url: str, machine: str) -> None:
    """One tournament of stub pods in processes of their own: `start` runs it so."""
    attach(root, url)
    try:
        if machine:
            lease._kernel = lambda: machine  # type: ignore[assignment]
            patient = {"orphan_seconds": TournamentSettings().orphan_seconds}
            wanted = settings(
                pods=PODS, workers=2, order="submission", retries=50, fresh=0.2, **patient
            )
            stub_race(RunFolder(root), wanted, body="tests.engines.chaos:body", data_hash="data")
        else:
            chaos.race(RunFolder(root), PODS, processes=True)
    except FintraderError as error:
        print(error, file=sys.stderr)
        sys.exit(REFUSED)


def transfers(url: str, home: Path) -> list[dict[str, float]]:
    """Seconds of a put, and of a get with its hash check, by size: median of 7."""
    store = Objects(url)
    figures = []
    for size in (10_000, 100_000, 1_000_000, 10_000_000):
        data = random.Random(size).randbytes(size)
        puts = []
        gets = []
        side = Mirror(home, store)
        for _ in range(7):
            began = time.perf_counter()
            digest = side.put_bytes(data)
            puts.append(time.perf_counter() - began)
            began = time.perf_counter()
            assert side.fetch(digest, home / "fetched")
            gets.append(time.perf_counter() - began)
        figures.append(
            {
                "bytes": size,
                "put_ms": round(1e3 * median(puts), 2),
                "get_ms": round(1e3 * median(gets), 2),
            }
        )
    return figures


def per_pod(home: Path) -> dict[str, float]:
    """Requests and bytes that a tournament makes of its store, by pod, its start and end left
    out."""
    counts = []
    for pods in (6, 26):
        url = f"s3://bucket/count-{pods}"
        run = RunFolder(home / f"count-{pods}")
        attach(run.root, url)
        with counted() as total:
            chaos.race(run, pods, processes=False)
        counts.append(+total)
    few, many = counts
    return {name: round((many[name] - few.get(name, 0)) / 20, 2) for name in sorted(many)}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Requests, and bytes put and got, of all stores that this process talks to meanwhile, by
    kind."""
    total: Counter[str] = Counter()
    kinds = {
        "get": "get",
        "get_file": "get",
        "put": "put",
        "put_file": "put",
        "create": "put",
        "exists": "head",
    }
    kinds |= {"names": "list", "folders": "list", "reach": "list", "remove": "remove"}
    real = {name: getattr(Objects, name) for name in kinds}

    def size(method: str, result: Any, args: tuple[Any, ...]) -> int:
        if method == "get":
            return len(result or b"")
        if method in ("put", "create"):
            return 0 if result is False else len(args[1])
        return (
            args[1].stat().st_size
            if method in ("put_file", "get_file") and result is not False
            else 0
        )

    def noted(method: str) -> Callable[..., Any]:
        def wrapped(self: Objects, *args: Any, **named: Any) -> Any:
            result = real[method](self, *args, **named)
            total[kinds[method]] += len(args) if method == "remove" else 1
            total[f"bytes_{kinds[method]}"] += size(method, result, args)
            return result

        return wrapped

    changed = {name: noted(name) for name in kinds}
    for name, method in changed.items():
        setattr(Objects, name, method)
    try:
        yield total
    finally:
        for name, method in real.items():
            setattr(Objects, name, method)


@contextmanager
def s3_server(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """moto's S3 server in a process of its own, with one bucket."""
    import boto3

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    os.environ |= {
        "AWS_ENDPOINT_URL": url,
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
    }
    os.environ |= {
        "AWS_DEFAULT_REGION": "us-east-1",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
    }
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (home / "s3.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        client = boto3.client("s3", endpoint_url=url)
        for _ in range(100):
            try:
                client.create_bucket(Bucket="bucket")
                break
            except Exception:
                time.sleep(0.2)
        yield server
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["head"]:
        head(Path(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        main()
