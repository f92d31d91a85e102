"""Records in `benchmarks/results/`, and their figures and origins as Markdown."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fintrader.numerals import DASH, chance
from fintrader.results.formatting import statistic

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LOCAL_CHANGES = frozenset({"chaos", "known_optimum", "market_years"})
"""Records that may have been measured in a tree that was not clean; their rows say so. Every other
such record is refused: take a name off when it has been measured again. The only change in
`market_years` was another record."""
MARK = "†"

Record = Mapping[str, Any]
Records = Mapping[str, Record]
Named = Mapping[str, Any]


def read(folder: Path = RESULTS) -> dict[str, Any]:
    """Every record by its name. Raises SystemExit for a file that is no JSON object."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        try:
            found[path.stem] = dict(json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise SystemExit(f"{path}: no record ({error}); measure it again with --save") from None
    return found


def commits(record: Any) -> Iterator[str]:
    """Every commit that a record or a part of it names."""
    if isinstance(record, Mapping):
        for key, value in record.items():
            if key in ("commit", "commits"):
                yield from [value] if isinstance(value, str) else value
            else:
                yield from commits(value)
    elif isinstance(record, Sequence) and not isinstance(record, str):
        for value in record:
            yield from commits(value)


def split_record(record: Record) -> list[dict[str, Any]]:
    """A record, and those of other processors or instruction sets that it keeps beside its own."""
    own = {key: value for key, value in record.items() if key != "elsewhere"}
    return [own, *record.get("elsewhere", ())]


def is_dirty(record: Record) -> bool:
    """Whether any part was measured in a tree with changes that its commit does not have."""
    return any("+" in commit for commit in commits(record))


def refused(
    records: Records, names: Iterable[str], allowed: Iterable[str] = LOCAL_CHANGES
) -> list[str]:
    """Faults in the origin of these records, a line each."""
    problems = []
    for name in names:
        if is_dirty(records[name]) and name not in allowed:
            problems.append(
                f"benchmarks/results/{name}.json was measured with local changes; commit, measure"
                " again"
            )
        if not records[name].get("machine", {}).get("cpu") or not records[name].get("commit"):
            problems.append(
                f"benchmarks/results/{name}.json names no machine or no commit; measure it again"
            )
    return problems


def origin(records: Records, *names: str) -> str:
    """Origin of figures: record, commit, machine, and the mark of a tree that was not clean."""
    said = []
    for name in names:
        for record in split_record(records[name]):
            of = dict.fromkeys(commit.partition("+")[0][:7] for commit in commits(record))
            text = f"`{name}` {' and '.join(of)}, {name_machine(record['machine'])}"
            said.append(text + (f" {MARK}" if is_dirty(record) else ""))
    return "; ".join(said)


def name_machine(machine: Named) -> str:
    """Cores, processor and instruction set of a record (early ones name no instruction set), and
    its GPU."""
    cpu = machine["cpu"].replace("(R)", "").replace(" Processor", "")
    sets = [f"({machine['instruction_set']})"] if "instruction_set" in machine else []
    gpu = f", {machine['gpu']}" if "gpu" in machine else ""
    return " ".join([f"{machine['cores']} × {cpu}", *sets]) + gpu


def describe_machine(machine: Named) -> str:
    """The machine with its caches, threads and versions, where the record has them."""
    parts = [name_machine(machine)]
    parts += [f"{level} {size}" for level, size in machine.get("caches", {}).items()]
    parts += [
        f"{name} {machine[name]}" for name in ("threads", "torch", "numba") if name in machine
    ]
    return ", ".join(parts)


def footnote(records: Records, names: Iterable[str]) -> str:
    """The lines below a table: the mark's meaning, and each machine that names its instruction
    set."""
    every = [record for name in names for record in split_record(records[name])]
    lines = (
        [f"{MARK} measured with local changes to that commit."] if any(map(is_dirty, every)) else []
    )
    machines = [one["machine"] for one in every if "instruction_set" in one["machine"]]
    lines += dict.fromkeys(f"{describe_machine(machine)}." for machine in machines)
    return "".join(f"\n\n{line}" for line in lines)


def sentence(records: Records, *names: str) -> str:
    """The origin as a line below a table of one record or two."""
    return f"Record: {origin(records, *names)}.{footnote(records, names)}"


PAPER = {
    "1.7": {"16": 3400.0, "32": 2400.0, "80": 1900.0},
    "1.8": {"16": 4000.0, "32": 2800.0, "80": 2200.0},
}
"""Seconds to a return of 1.7 and of 1.8 (ElegantRL-Podracer, arXiv 2112.05923, section 5)."""


def fit_amdahl(times: dict[str, float]) -> dict[str, float]:
    """T(G) = serial + parallel / G through the points at 16 and at 80 GPUs."""
    parallel = (times["16"] - times["80"]) / (1 / 16 - 1 / 80)
    serial = times["16"] - parallel / 16
    return {"serial_seconds": round(serial, 1), "parallel_gpu_seconds": round(parallel, 1)}


def describe_paper() -> dict[str, Any]:
    """The paper's figures, the efficiency they amount to, and the serial part that would explain
    it."""
    found = {}
    for target, times in PAPER.items():
        speedup = times["16"] / times["80"]
        found[target] = {
            "seconds": times,
            "speedup_16_to_80": round(speedup, 3),
            "efficiency_16_to_80": round(speedup / 5, 3),
            **fit_amdahl(times),
        }
    return found


def list_speedups(search: Named, target: str, gpus: int) -> list[float]:
    """List the speed-up of a search over 16 GPUs for each seed that arrived with one of them; a
    search that did not arrive took infinitely long."""
    times = {
        (run["gpus"], run["seed"]): math.inf if seconds is None else seconds
        for run in search["runs"]
        for seconds in [run["seconds"][target]]
    }
    return [
        times[16, seed] / seconds
        for (count, seed), seconds in times.items()
        if count == gpus and math.isfinite(min(times.get((16, seed), seconds), seconds))
        if (16, seed) in times
    ]


def prose(text: str, *, item: bool = False) -> str:
    """A paragraph in lines of a page's width; an `item` of a list hangs, or a line that begins with
    a plus is one."""
    first, later = ("- ", "  ") if item else ("", "")
    return textwrap.fill(
        text,
        120,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """Markdown; the first `left` columns flush left, the others right."""
    rule = ["---" if k < left else "---:" for k in range(len(head))]
    lines = ["| " + " | ".join(row) + " |" for row in (head, *rows)]
    return "\n".join([lines[0], "|" + "|".join(rule) + "|", *lines[1:]])


# --- figures --------------------------------------------------------------------------------------


def percent(value: float | None, digits: int = 1, sign: str = "") -> str:
    return DASH if value is None else f"{100 * value:{sign}.{digits}f} %"


def times(value: float | None, digits: int = 1) -> str:
    return DASH if value is None else f"{value:,.{digits}f} ×"


def spread(ends: Sequence[float], digits: int = 1) -> str:
    """The range over the rounds of a benchmark."""
    return f"{ends[0]:,.{digits}f} to {ends[1]:,.{digits}f}"


def joined(parts: Iterable[str]) -> str:
    """`a, b and c`."""
    *most, last = list(parts)
    return f"{', '.join(most)} and {last}" if most else last


def p_value(value: float | None) -> str:
    return "" if value is None else chance(value)


def cells(metrics: Named, keys: Iterable[str]) -> list[str]:
    """A strategy's metrics as the reports write them."""
    return [statistic(key, metrics.get(key)) for key in keys]


def rank_kelly(record: Record) -> list[tuple[str, Named]]:
    """Shares of each algorithm by name, the best mean first."""
    figures = {
        name.removesuffix("_share").upper(): one
        for name, one in record["figures"].items()
        if isinstance(one, dict)
    }
    return sorted(figures.items(), key=lambda item: -item[1]["mean"])
