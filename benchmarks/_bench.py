"""What the benchmarks share: arguments, records, rates in turn, other processes, peers' packages.

Every benchmark takes `--seed` and `--save`, and ends with its figures as one JSON object on the
last line; `--save` also writes them to `benchmarks/results/`, and with `--beside` keeps a stored
record of another processor or instruction set, which the pages then show too. Importing this gives
every process that a benchmark starts one thread.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._records import split_record
from fintrader.files import write_text
from fintrader.reproducible import code_paths

ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venv-bench"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)
sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]

Values = dict[str, Any]
"""Settings or figures by name, as JSON has them."""
Run = Callable[[int], int]
"""Takes a number of steps; returns how many units of work they were."""


# --- arguments and records ------------------------------------------------------------------------


def read_options(doc: str | None, **options: Any) -> argparse.Namespace:
    """Parse the command line: an option for each keyword, which is its default.

    A type instead of a value: None unless given. A list: one or more of its values, all by default.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in options.items():
        flag = f"--{name.replace('_', '-')}"
        if default is False:
            parser.add_argument(flag, action="store_true")
        elif isinstance(default, type):
            parser.add_argument(flag, type=default)
        elif isinstance(default, list):
            values = default if isinstance(default[0], str) else None
            parser.add_argument(
                flag, nargs="+", type=type(default[0]), default=default, choices=values
            )
        else:
            parser.add_argument(flag, type=type(default), default=default)
    return parser.parse_args()


def read_arguments(doc: str | None, **options: Any) -> argparse.Namespace:
    """Parse a benchmark's command line: its own options, and those of all."""
    return read_options(doc, save=False, beside=False, **options)


def list_seeds(options: argparse.Namespace) -> range:
    """List `--seeds` seeds from `--seed` on."""
    return range(options.seed, options.seed + options.seeds)


def describe_machine() -> Values:
    """Name processor, instruction set, caches, cores, threads, memory, versions and, if any,
    GPU."""
    import numba
    import torch

    paths = code_paths()
    pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {
        "cpu": paths["processor"],
        "instruction_set": paths["torch"],
        "caches": read_caches(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "memory_gib": round(pages / 2**30, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numba": numba.__version__,
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    return found


def read_caches(cpu: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[str, str]:
    """Sizes of a core's data caches by level, as Linux names them; empty elsewhere."""
    parts = [
        [(index / name).read_text().strip() for name in ("type", "level", "size")]
        for index in sorted(cpu.glob("index*"))
    ]
    return {f"L{level}": size for kind, level, size in parts if kind != "Instruction"}


def read_commit() -> str:
    """Name the checkout's commit, marked if files differ from it."""

    def ask(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True).stdout

    head = ask("rev-parse", "--short=12", "HEAD").strip() or "unknown"
    changed = ask("status", "--porcelain", "-uno", "--", ".", ":!benchmarks/results")
    return head + ("+changes" if changed.strip() else "")


def round_figures(value: Any) -> Any:
    """Round the floats of a record to eight significant digits."""
    if isinstance(value, Mapping):
        return {name: round_figures(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [round_figures(part) for part in value]
    return float(f"{value:.8g}") if isinstance(value, float) else value


def finish(name: str, figures: Mapping[str, Any], options: argparse.Namespace) -> None:
    """Print the last line; with `--save` also write `benchmarks/results/<name>.json`."""
    record = {"benchmark": name, **round_figures(figures), "machine": describe_machine()}
    record |= {"commit": read_commit()}
    if "seed" in options:
        record |= {"seed": options.seed}
    if options.save:
        path = ROOT / "benchmarks" / "results" / f"{name}.json"
        if options.beside and path.is_file():
            known = [record, *split_record(json.loads(path.read_text()))]
            places = {
                (one["machine"]["cpu"], one["machine"].get("instruction_set")): one
                for one in reversed(known)
            }
            record["elsewhere"] = [one for one in places.values() if one is not record]
        write_text(path, json.dumps(record, indent=2) + "\n")
    print(json.dumps(record))


@contextmanager
def draw_picture(name: str, *shape: int, **how: Any) -> Iterator[Any]:
    """Yield the axes of a figure of that shape; at the end it is `docs/images/<name>.png`."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(*shape, constrained_layout=True, **how)
    yield axes
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(ROOT / "docs" / "images" / f"{name}.png", dpi=110, metadata={"Software": None})
    pyplot.close(figure)


class FinishedRuns:
    """Finished runs of a long benchmark, a JSON file each in `runs/benchmarks/<name>/`, so that a
    stopped one goes on where it was."""

    def __init__(self, name: str, options: argparse.Namespace | None = None) -> None:
        """`options`, of the command line: with `fresh`, everything is measured again."""
        self.name = name
        self.options = options
        self.folder = ROOT / "runs" / "benchmarks" / name
        self.fresh = getattr(options, "fresh", False)
        self.commits: set[str] = set()
        """Commits of all runs handed out."""

    def get(self, key: str, settings: Mapping[str, Any], measure: Callable[[], Values]) -> Values:
        """Return the run of `key` if it had equal `settings`; else measure and keep it. Print its
        end."""
        path = self.folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', key)}.json"
        wanted = json.loads(json.dumps(settings))
        stored = json.loads(path.read_text()) if path.is_file() and not self.fresh else {}
        if stored.get("settings") != wanted:
            stored = {
                "settings": wanted,
                "record": {**round_figures(measure()), "commit": read_commit()},
            }
            self.folder.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(stored))
        record = stored["record"]
        self.commits.add(record["commit"])
        print(key, record.get("curve", [record])[-1])
        return record

    def finish(self, figures: Mapping[str, Any]) -> None:
        """Finish the benchmark with the commits of all runs handed out."""
        finish(self.name, {**figures, "commits": sorted(self.commits)}, self.options)


# --- rates ----------------------------------------------------------------------------------------


def alternate(
    runs: Mapping[str, Run],
    rounds: int,
    seconds: float,
    clock: Callable[[], float] = time.process_time,
) -> dict[str, list[float]]:
    """Measure units a second of each run in each round, one after the other in every round."""
    steps = {}
    for name, run in runs.items():
        run(2)  # compiles, and finds its memory
        begun = clock()
        run(2)
        steps[name] = max(1, round(2 * seconds / max(clock() - begun, 1e-6)))
    rates = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            begun = clock()
            done = run(steps[name])
            rates[name].append(done / (clock() - begun))
    return rates


class Figures(Values):
    """What was measured, by name."""

    def add_rates(self, rates: Mapping[str, list[float]], pattern: str) -> None:
        """Note the best round of each run, under the pattern with its name put in."""
        self.update({pattern.format(run): max(values) for run, values in rates.items()})

    def add_times(
        self, name: str, ours: list[float], theirs: list[float] | None, factor: float = 1.0
    ) -> None:
        """Note how many times as fast ours is: the median of the rounds' own ratios, and their
        range; None where there is no peer."""
        self[name] = None
        if theirs is not None:
            rounds = [factor * our / their for our, their in zip(ours, theirs, strict=True)]
            self[name] = median(rounds)
            self.setdefault("ranges", {})[name] = [min(rounds), max(rounds)]

    def merge(self, other: Figures) -> None:
        """Take over another part's figures."""
        self.setdefault("ranges", {}).update(other.pop("ranges", {}))
        self.update(other)


def summarise(values: Sequence[float]) -> dict[str, float]:
    """Mean and range over the seeds."""
    mean = round(sum(values) / len(values), 4)
    return {"mean": mean, "min": min(values), "max": max(values)}


# --- other processes and packages -----------------------------------------------------------------


def run_child(
    words: Sequence[str], *, paths: Sequence[Path] = (), python: str = sys.executable, **env: str
) -> Any:
    """Run Python with these words on one thread; return its last line of output, which is JSON."""
    known = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(filter(None, [str(ROOT), *map(str, paths), known]))
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **env}
    done = subprocess.run([python, *words], env=variables, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)[:200]} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


CALL = """
import importlib, json, sys
module, name, arguments = sys.argv[1:]
result = getattr(importlib.import_module(module), name)(*json.loads(arguments))
print(json.dumps(result))
"""


def call_in_child(
    function: Callable[..., Any], *arguments: Any, before: Sequence[str] = (), **how: Any
) -> Any:
    """Call a benchmark's function in a process of its own; arguments and result pass as JSON.

    `before`: words of a command that Python runs in place of the call, with the call as its
    arguments. `how`: as in `run_child`.
    """
    module = sys.modules[function.__module__].__spec__.name
    words = ["-c", CALL, module, function.__name__, json.dumps(arguments)]
    return run_child([*before, *words], **how)


class NoPeer(Exception):
    """A peer cannot be had here, and why."""


@contextmanager
def skip_absent_peer() -> Iterator[None]:
    """Print why a peer of the block cannot be had, and go on after the block."""
    try:
        yield
    except NoPeer as error:
        print(error, file=sys.stderr)


def install_peer(package: str, version: str) -> Path:
    """A folder with that package alone, without what it depends on. Raises NoPeer."""
    target = PEERS / f"{package}-{version}"
    if not target.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(target)]
        done = subprocess.run([*pip, f"{package}=={version}"], capture_output=True, text=True)
        if done.returncode:
            raise NoPeer(f"{package} {version} cannot be had here: {done.stderr.strip()[-300:]}")
    return target


def import_peer(module: str, *packages: tuple[str, str]) -> Any:
    """Import a module after putting packages, each with its version, on the path. Raises NoPeer."""
    for package in packages:
        sys.path.insert(0, str(install_peer(*package)))
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NoPeer(f"{module} cannot be imported here: {error}") from None


def make_environment(name: str, *packages: str) -> Path:
    """The interpreter of an environment that holds these packages; made when it is not there."""
    folder = ROOT / f".venv-bench-{name}"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True)
    return python
