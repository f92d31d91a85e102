"""The live view: leaderboard, pods at work and latest events, below the progress bar of a
terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fintrader.results.leaderboard_reader import BENCHMARK
from fintrader.tournament.launchers import PodProgress
from fintrader.tournament.leaderboard import Leaderboard

ROWS = 8
EVENTS = 4
_SHOWN = frozenset(
    {
        "applied",
        "lost",
        "drained",
        "damaged",
        "capacity",
        "resumed",
        "no_capacity",
        "leaderboard_damaged",
    }
)


def render(
    leaderboard: Leaderboard,
    metric: str,
    progress: Mapping[str, PodProgress],
    origins: Mapping[str, str],
    records: Sequence[dict[str, Any]],
) -> RenderableType:
    """What the terminal shows: the leaderboard, the pods at work and their origins, the latest
    events."""
    return Group(
        build_leaderboard_table(leaderboard, metric),
        build_pods_table(progress, origins),
        *[Text(line, style="dim") for line in list_recent(records)],
    )


def build_leaderboard_table(leaderboard: Leaderboard, metric: str) -> Table:
    """The first rows of the leaderboard, and the benchmark portfolio among or below them."""
    table = Table(
        title=f"leaderboard: validation {metric}", title_justify="left", box=None, pad_edge=False
    )
    for name in ("rank", "pod", "score", "algorithm", "parent", "generation", "hyper-parameters"):
        table.add_column(
            name,
            justify="right" if name in ("rank", "score", "generation") else "left",
            no_wrap=True,
        )
    benchmark = leaderboard.benchmark_score
    passed = False
    for rank, row in enumerate(leaderboard.rows[:ROWS], 1):
        if benchmark is not None and not passed and row.score <= benchmark:
            table.add_row("", BENCHMARK, f"{benchmark:.3f}")
            passed = True
        hyper = ", ".join(
            f"{name.split('.')[-1]} {_format_value(value)}"
            for name, value in row.spec.hyper.items()
        )
        algo = str(row.spec.agent.get("algo", ""))
        parent = row.spec.parent or "-"
        table.add_row(
            str(rank),
            row.spec.pod,
            f"{row.score:.3f}",
            algo,
            parent,
            str(row.spec.generation),
            hyper,
        )
    if benchmark is not None and not passed:
        table.add_row("", BENCHMARK, f"{benchmark:.3f}")
    return table


def build_pods_table(progress: Mapping[str, PodProgress], origins: Mapping[str, str]) -> Table:
    """Pods at work: how far they are and for how long they have been."""
    table = Table(title="at work", title_justify="left", box=None, pad_edge=False)
    for name in ("pod", "origin", "device", "done", "env-steps", "for", ""):
        table.add_column(name, no_wrap=True)
    now = time.time()
    for pod, at in sorted(progress.items())[:ROWS]:
        elapsed = f"{now - at.since:.0f} s" if at.since else ""
        table.add_row(
            pod,
            origins.get(pod, ""),
            at.device,
            f"{at.share:.0%}",
            f"{at.env_steps:,}",
            elapsed,
            at.note,
        )
    return table


def list_recent(records: Sequence[dict[str, Any]]) -> list[str]:
    """The latest events worth showing, oldest first."""
    shown = [record for record in records[-50:] if record.get("event") in _SHOWN]
    return [describe(record) for record in shown[-EVENTS:]]


def describe(event: dict[str, Any]) -> str:
    """One event as one line."""
    pod = event.get("pod", "")
    match event["event"]:
        case "applied" if event["score"] is None:
            return f"{pod}: failed ({event['reason'] or 'no score'})"
        case "applied":
            rank = (
                f"rank {event['position'] + 1}"
                if event["position"] is not None
                else "off the leaderboard"
            )
            stopped = ", stopped early" if event["status"] == "stopped" else ""
            return f"{pod}: {event['score']:.3f}, {rank}{stopped}"
        case "lost":
            return (
                f"{pod}: lost at attempt {event['attempt']} ({event['reason']}:"
                f" {event['detail'][:80]})"
            )
        case "drained":
            return f"{pod}: stopped to make room, continues later"
        case "damaged":
            return f"{pod}: {event['detail']}; trained again"
        case "capacity":
            bound = event.get("at_once", event["pods"])
            few = (
                f", of which the scheduler lets {bound} work at once"
                if bound < event["pods"]
                else ""
            )
            return f"capacity is now {event['pods']} pod(s){few}"
        case "resumed":
            return f"resumed with {event['results']} result(s)"
        case "no_capacity":
            return "no device is left; waiting"
        case other:
            return f"{other} {pod}".strip()


def _format_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
