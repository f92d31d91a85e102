"""The live view: leaderboard, pods at work and latest events, below the progress bar of a
terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from fintrader.numerals import format_count
from fintrader.results.leaderboard_reader import BENCHMARK
from fintrader.results.table import Table
from fintrader.results.tournament_events import (
    CapacityEvent,
    DamageEvent,
    DrainEvent,
    IndexDamageEvent,
    LossEvent,
    NoCapacityEvent,
    ResultEvent,
    ResumptionEvent,
    TournamentEvent,
)
from fintrader.tournament.launchers import PodProgress
from fintrader.tournament.leaderboard import Leaderboard

ROWS = 8
EVENTS = 4


def render(
    leaderboard: Leaderboard,
    metric: str,
    progress: Mapping[str, PodProgress],
    origins: Mapping[str, str],
    records: Sequence[TournamentEvent],
) -> RenderableType:
    """Render the leaderboard, the pods at work and their origins, and the latest events."""
    tables = present_leaderboard(leaderboard, metric), present_pods(progress, origins)
    recent = [*filter(None, map(describe, records[-50:]))]
    return Group(
        *[Text(str(table), no_wrap=True) for table in tables],
        *[Text(line, style="dim") for line in recent[-EVENTS:]],
    )


def present_leaderboard(leaderboard: Leaderboard, metric: str) -> Table:
    """Present the first rows and the benchmark portfolio among or below them."""
    words = ("pod", "algorithm", "parent", "hyper-parameters")
    columns = ("rank", "pod", "score", "algorithm", "parent", "generation", "hyper-parameters")
    shown = leaderboard.rows[:ROWS]
    lines = list[tuple[str, ...]]()
    for rank, row in enumerate(shown, 1):
        spec = row.spec
        hyper = ", ".join(
            f"{name.split('.')[-1]} {_format_value(value)}" for name, value in spec.hyper.items()
        )
        cells = str(rank), spec.pod, f"{row.score:.3f}", str(spec.agent.get("algo", ""))
        lines.append((*cells, spec.parent or "-", str(spec.generation), hyper))
    benchmark = leaderboard.benchmark_score
    if benchmark is not None:
        place = sum(row.score > benchmark for row in shown)
        lines.insert(place, ("", BENCHMARK, f"{benchmark:.3f}"))
    return Table.of(columns, lines, f"leaderboard: validation {metric}", words=words)


def present_pods(progress: Mapping[str, PodProgress], origins: Mapping[str, str]) -> Table:
    """Present the pods at work, with their progress and time at work."""
    lines = []
    for pod, at in sorted(progress.items())[:ROWS]:
        elapsed = f"{time.time() - at.since:.0f} s" if at.since else ""
        numbers = f"{at.share:.0%}", f"{at.env_steps:,}", elapsed
        lines.append((pod, origins.get(pod, ""), at.device, *numbers, at.note))
    columns = ("pod", "origin", "device", "done", "env-steps", "for", "note")
    return Table.of(columns, lines, "at work", words=("origin", "device", "note"))


def describe(event: TournamentEvent) -> str:
    """Describe an event in one line; empty for an event that is not worth showing."""
    match event:
        case ResultEvent(score=None):
            return f"{event.pod}: failed ({event.reason or 'no score'})"
        case ResultEvent():
            position = event.position
            rank = "off the leaderboard" if position is None else f"rank {position + 1} so far"
            return f"{event.pod}: {event.score:.3f}, {rank}"
        case LossEvent():
            why = f"{event.reason}: {event.detail[:80]}"
            return f"{event.pod}: lost at attempt {event.attempt} ({why})"
        case DrainEvent():
            return f"{event.pod}: stopped to make room, continues later"
        case DamageEvent():
            return f"{event.pod}: {event.detail}; trained again"
        case CapacityEvent():
            bound = event.at_once
            is_bound = bound is not None and bound < event.pods
            few = f", of which the scheduler lets {bound} work at once" if is_bound else ""
            return f"capacity is now {format_count(event.pods, 'pod')}{few}"
        case ResumptionEvent():
            return f"resumed with {format_count(event.results, 'result')}"
        case NoCapacityEvent():
            return "no device is left; waiting"
        case IndexDamageEvent():
            return "the leaderboard's database was damaged, and is rebuilt"
    return ""


def _format_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
