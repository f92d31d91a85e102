"""Tables of what the benchmarks measured, from the records in `benchmarks/results/`; and how a
table is written."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._records import PAPER, RESULTS, describe_machine, describe_paper, list_speedups


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join(map(cell, row)) + " |" for row in rows]
    return "\n".join(lines)


def cell(text: str) -> str:
    """Text safe inside a table: stars and bars escaped outside code, bars inside it too, addresses
    as links."""
    parts = text.split("`")
    for k in range(0, len(parts), 2):
        parts[k] = re.sub(r"(https?://[^\s)]+)", r"<\1>", parts[k].replace("*", "\\*"))
    return "`".join(parts).replace("|", "\\|")


def origin_of(stored: dict[str, Any]) -> str:
    """The machine of a record and its commit."""
    return f"{describe_machine(stored['machine'])}, {commit_of(stored)}"


def commit_of(stored: dict[str, Any]) -> str:
    """The commit that was measured, and whether the tree was otherwise."""
    commit, _, changes = str(stored.get("commit", "?")).partition("+")
    return f"commit {commit[:12]}{' with local changes' if changes else ''}"


def optimum_table(*_: Any) -> str:
    """What each algorithm reached of the known optimum, from the benchmark's own record."""
    path = RESULTS / "known_optimum.json"
    if not path.is_file():
        return "No measurement is stored: run `python -m benchmarks.known_optimum --save`."
    stored = json.loads(path.read_text())
    rows = []
    for name, found in stored["figures"].items():
        algo, _, reward = name.rpartition("_")
        if isinstance(found, dict) and "rate_ratio" in found:
            shares = [_spread(found.get(f"share_{seconds}s"), "{:.1%}") for seconds in (5, 20, 60)]
            rows.append((algo.upper(), reward, *shares, _spread(found.get("rate_ratio"), "{:.2f}")))
    seeds = f"{stored.get('seeds', 1)} seed{'' if stored.get('seeds', 1) == 1 else 's'}"
    where = f"Measured with {seeds} on one thread: {origin_of(stored)}."
    head = ("algorithm", "reward", "share at 5 s", "at 20 s", "at 60 s", "trade rate / optimal")
    return table(head, rows) + "\n\n" + where


def _spread(found: Any, pattern: str) -> str:
    """Mean over the seeds, with its range where there are several."""
    if not isinstance(found, dict) or found.get("mean") is None:
        return "–"
    mean = pattern.format(found["mean"])
    several = found["min"] != found["max"]
    return (
        f"{mean} ({pattern.format(found['min'])} to {pattern.format(found['max'])})"
        if several
        else mean
    )


def scaling_table(which: str, *_: Any) -> str:
    """One of the tables of the page on scaling, from the benchmarks' own records."""
    name = {"search": "search", "parts": "search", "communication": "communication"}.get(
        which, "scaling"
    )
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        return f"No measurement is stored: run `python -m benchmarks.{name} --save`."
    stored = json.loads(path.read_text())
    found = table(*_SCALING[which](stored))
    return found if which == "paper" else f"{found}\n\n{origin_of(stored)}."


_CONVENTIONS = {
    "commission_in_cents": "each commission rounded to the cent, as on a broker's bill",
    "prices_in_tenths_of_a_cent": "prices in 1/1000 USD, as zipline's bundles store them",
    "prices_in_float64": "prices as quoted, in float64; fintrader's are float32",
    "fills_at_next_close": "fills at the next session's close, zipline's own choice for daily bars",
}


def engines_table(which: str, *_: Any) -> str:
    """The same orders through other engines that follow fintrader's conventions (`same`), or not
    (`otherwise`)."""
    path = RESULTS / "cross_engine.json"
    if not path.is_file():
        return "No measurement is stored: run `python -m benchmarks.cross_engine --save`."
    stored, rows = json.loads(path.read_text()), []
    for name, market in stored["markets"].items():
        bars = f"{name}, {market['symbols']} stocks × {market['sessions']} sessions"
        for row in market["agreement"] if which == "same" else ():
            engine = f"{row['engine']} {market['versions'][row['engine']]}"
            gaps = (row["largest_equity_difference_usd"], abs(row["commission_difference_usd"]))
            rows.append(
                [
                    bars,
                    engine,
                    f"`{row['fill']}`",
                    f"{row['fills']:,}",
                    *(f"{gap:.7f}" for gap in gaps),
                ]
            )
        for row in market["otherwise"] if which == "otherwise" else ():
            final = (
                f"{row['final_equity_difference_usd']:+,.2f}",
                f"{row['final_equity_difference_bps']:+,.3f}",
            )
            rows.append(
                [
                    bars,
                    _CONVENTIONS[row["what"]],
                    f"{row['largest_equity_difference_usd']:,.2f}",
                    *final,
                ]
            )
    at_most = "largest difference of equity at any bar, USD"
    if which == "same":
        head = ["bars", "engine", "fill", "equal fills", at_most, "of all commissions, USD"]
    else:
        head = ["bars", "what is done otherwise", at_most, "at the end, USD", "bps of equity"]
    return f"{table(head, rows)}\n\nMeasured at {commit_of(stored)}."


def calibration_table(which: str, *_: Any) -> str:
    """Shares that the verdict's tests call skilled: without skill (`size`, `nulls`, `survivors`),
    with it (`power`, `at_it`), and of both (`chosen`)."""
    path = RESULTS / "calibration.json"
    if not path.is_file():
        return "No measurement is stored: run `python -m benchmarks.calibration --save`."
    stored = json.loads(path.read_text())
    found = table(*_CALIBRATIONS[which](stored[which]))
    level = f"Level of a first look, {stored['nulls'][0]['level']:.2%}; "
    at = "" if "alpha" in stored[which][0] else level
    return f"{found}\n\n{at}{stored['repeats']} repeats each, {commit_of(stored)}."


def _tabulate_tests(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    is_power = any(row["ratio"] for row in rows)
    skilled = ["true ratio"] if is_power else []
    head = ["sessions", "trials", *skilled, "the verdict's test", "Newey–West"]
    cells = []
    for row in rows:
        against = "cash" if row["cash"] else "equal weight"
        skill = [f"{row['ratio']:.2f} over {against}"] if is_power else []
        tests = ("alpha", "newey_west", "shift", "betting")
        shares = [f"{row[test]:.1%}" for test in tests]
        trials = str(row["trials"])
        cells.append([f"{row['sessions']:,}", trials, *skill, f"**{shares[0]}**", *shares[1:]])
    return [*head, "shifts in time", "betting"], cells


def _tabulate_nulls(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    shares = {(row["null"], row["sessions"]): f"{row['passed']:.1%}" for row in rows}
    sizes = sorted({sessions for _, sessions in shares})
    names = dict.fromkeys(name for name, _ in shares)
    head = ["without skill", *(f"{size:,} sessions" for size in sizes)]
    return head, [[name, *(shares[name, size] for size in sizes)] for name in names]


def _tabulate_choices(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    head = ["trials", "skilled", "correlation", "best called skilled", "of them lucky"]
    return head, [
        [
            str(row["trials"]),
            f"{row['skilled']:.0%}",
            f"{row['common']:.1f}",
            f"{row['passed']:.1%}",
            f"{row['lucky']:.1%}",
        ]
        for row in rows
    ]


def _tabulate_survivors(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    head = ["years", "called skilled", "less the bound", "bound, a year"]
    return head, [
        [
            f"{row['years']:g}",
            f"{row['passed']:.1%}",
            f"{row['cleared']:.1%}",
            f"{row['bound']:.1%}",
        ]
        for row in rows
    ]


_CALIBRATIONS = {
    "size": _tabulate_tests,
    "power": _tabulate_tests,
    "at_it": _tabulate_tests,
    "nulls": _tabulate_nulls,
    "chosen": _tabulate_choices,
    "survivors": _tabulate_survivors,
}


def _scaling_constants(stored: dict[str, Any]) -> tuple[Iterable[str], list[list[str]]]:
    names = ("n", "mean_ms", "p05_ms", "p50_ms", "p95_ms", "max_ms")
    rows = [
        [f"`{name}`", *(f"{found[key]:,g}" for key in names)]
        for name, found in stored["constants"].items()
    ]
    return ("constant", "n", "mean, ms", "5 %", "median", "95 %", "max"), rows


def _scaling_throughput(stored: dict[str, Any]) -> tuple[Iterable[str], list[list[str]]]:
    rows = []
    for curve in stored["throughput"].values():
        for gpus, row in curve["by_gpus"].items():
            pod = f"{curve['pod_seconds']:g} s + {curve['overhead_seconds']:.2f} s"
            cpu = f"{row['orchestrator_cpu_ms_per_pod']:.2f}"
            rows.append([pod, gpus, f"{row['seconds']:,.0f}", f"{row['efficiency']:.1%}", cpu])
        rows.append([pod, "16 → 80", "", f"{curve['efficiency_16_to_80']:.1%}", ""])
    pods = f"seconds to {curve['pods']:,} pods"
    return ("S + o", "GPUs", pods, "efficiency (predicted)", "orchestrator, CPU ms a pod"), rows


def _scaling_stress(stored: dict[str, Any]) -> tuple[Iterable[str], list[list[str]]]:
    rows = []
    for row in stored["stress"]:
        lost = ", ".join(f"{count} {reason}" for reason, count in sorted(row["losses"].items()))
        waits = f"{row['result_waits_seconds_p50']:g} / {row['result_waits_seconds_p99']:g}"
        idle = (
            f"{row['gpu_idle_between_pods_seconds_p50']:g} /"
            f" {row['gpu_idle_between_pods_seconds_p99']:g}"
        )
        cpu = f"{row['orchestrator_cpu_ms_per_pod']:.2f}"
        rows.append(
            [
                f"{row['pods']:,}",
                f"{row['gpus']:,}",
                lost,
                cpu,
                waits,
                idle,
                f"{row['lost_or_doubled_results']}",
            ]
        )
    waits, idle = "result waits, s (median / 99 %)", "GPU idle between pods, s (median / 99 %)"
    return (
        "pods",
        "GPUs",
        "attempts lost",
        "orchestrator, CPU ms a pod",
        waits,
        idle,
        "lost or doubled",
    ), rows


def _scaling_paper(_: dict[str, Any]) -> tuple[Iterable[str], list[list[str]]]:
    rows = []
    for target, found in describe_paper().items():
        times = [f"{seconds:,.0f} s" for seconds in found["seconds"].values()]
        fit = f"{found['serial_seconds']:,.0f} s + {found['parallel_gpu_seconds']:,.0f} s / G"
        rows.append([target, *times, f"{found['efficiency_16_to_80']:.0%}", fit])
    return (
        "return",
        "16 GPUs",
        "32 GPUs",
        "80 GPUs",
        "efficiency 16 → 80",
        "a + b / G through 16 and 80",
    ), rows


def _scaling_search(stored: dict[str, Any]) -> tuple[Iterable[str], list[list[str]]]:
    counts = sorted({str(run["gpus"]) for run in stored["runs"]}, key=int)
    rows = []
    for target, found in stored["targets"].items():
        times = [
            f"{found['seconds'][gpus]:,.0f}" if gpus in found["seconds"] else "–" for gpus in counts
        ]
        arrived = ", ".join(str(found["arrived"][gpus]) for gpus in counts)
        rows.append([f"{float(target):.0%} of the optimum", *times, arrived])
    seeds = len({run["seed"] for run in stored["runs"]})
    heads = [f"{gpus} GPUs, s" for gpus in counts]
    return (f"target ({seeds} seeds, medians)", *heads, "arrived"), rows


def _scaling_parts(stored: dict[str, Any]) -> tuple[Iterable[str], list[list[str]]]:
    """Speed-up over 16 GPUs by orchestration alone, of the search alone, and in the paper."""
    counts = ("8", "16", "32", "80")
    whole = json.loads((RESULTS / "scaling.json").read_text())
    seconds = {
        gpus: row["seconds"] for gpus, row in whole["throughput"]["long_pods"]["by_gpus"].items()
    }
    rows = [
        ["ideal", *(f"{int(gpus) / 16:g}" for gpus in counts)],
        ["orchestration alone", *(f"{seconds['16'] / seconds[gpus]:.2f}" for gpus in counts)],
    ]
    for target in stored["targets"]:
        gains = [list_speedups(stored, target, int(gpus)) for gpus in counts]
        cells = [f"{median(x):.2f} ({min(x):.2f} to {max(x):.2f})" if x else "–" for x in gains]
        cells[counts.index("16")] = "1"
        rows.append([f"search alone, to {float(target):.0%} of the optimum", *cells])
    for target, times in PAPER.items():
        cells = [f"{times['16'] / times[gpus]:.2f}" if gpus in times else "–" for gpus in counts]
        rows.append([f"paper, to a return of {target}", *cells])
    return ("speed-up over 16 GPUs", *(f"{gpus} GPUs" for gpus in counts)), rows


def _scaling_communication(stored: dict[str, Any]) -> tuple[Iterable[str], list[list[str]]]:
    rows = []
    for size in ("small", "wide"):
        for name, found in stored[size].items():
            if isinstance(found, dict):
                share = found.get("share_of_optimum_mean")
                speech = f"{found['communication_seconds_per_epoch']:.3f}"
                parameters = f"{stored[size]['parameters']:,}"
                updates = f"{stored[size]['updates_per_epoch']}"
                told = "–" if share is None else f"{share:.1%}"
                rows.append(
                    [
                        parameters,
                        updates,
                        f"`{name}`",
                        f"{found['bytes_per_epoch']:,}",
                        speech,
                        told,
                    ]
                )
    return (
        "parameters",
        "updates an epoch",
        "way",
        "bytes an epoch and rank",
        "seconds in collectives",
        "share",
    ), rows


_SCALING: dict[str, Callable[[dict[str, Any]], tuple[Iterable[str], list[list[str]]]]] = {
    "constants": _scaling_constants,
    "throughput": _scaling_throughput,
    "stress": _scaling_stress,
    "paper": _scaling_paper,
    "search": _scaling_search,
    "parts": _scaling_parts,
    "communication": _scaling_communication,
}
