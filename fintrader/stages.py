"""The stages of a run, with their progress and the cause of a failure: one source for terminal,
log and app.

    data → tournament → null model → backtest → report

`manifest.json` has the finished stages and their seconds. `progress.json` has the progress of the
running stage; it is written at most once a second, and removed when no stage runs any more.
`read_stages` reads both.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fintrader.errors import FintraderError
from fintrader.files import dump_json, remove, write_bytes
from fintrader.progress import Task, format_duration, observe_tasks

State = Literal["done", "running", "failed", "stopped", "waiting"]

WHOLE = ("data", "tournament", "null_model", "backtest", "report")
"""The stages of `fintrader run`, in order."""
TITLES = {"null_model": "null model", "train": "training"}
"""Display names of stages that differ from their names."""
ABOUT = {
    "data": "bars become the market that agents trade in, or seeds of episodes are drawn",
    "tournament": "agents are trained, compared in validation, and copied with changes",
    "null_model": (
        "the same search on bars whose features hold no information, to show the results of luck"
        " alone. It takes about as long as the tournament; backtest.null_model: false leaves it"
        " out, and with it that comparison"
    ),
    "backtest": (
        "the selected policies trade the untouched test window, next to baselines and null models"
    ),
    "evaluation": "ensemble and best pod play the test episodes",
    "report": "figures and verdict are drawn, written down and sealed",
    "train": "one agent, without a tournament",
}
LIVE = "progress.json"
SECONDS = 1.0
"""Least time between two writes of `progress.json`."""


@dataclass(frozen=True)
class Stage:
    """One stage of a run, with its progress."""

    name: str
    state: State
    seconds: float | None = None
    """Seconds of a finished stage in all attempts, or of the present attempt of a running one."""
    doing: str = ""
    """Its running task; `done` and `total` are in the task's `unit`."""
    done: float | None = None
    total: float | None = None
    unit: str = ""
    seconds_left: float | None = None
    """Estimate for the running task; for a waiting null model the time of the tournament. None:
    unknown yet."""
    note: str = ""

    @property
    def title(self) -> str:
        """Display name."""
        return TITLES.get(self.name, self.name)

    @property
    def about(self) -> str:
        """Purpose, in a sentence without its full stop."""
        return ABOUT.get(self.name, "")

    @property
    def share(self) -> float | None:
        """Finished share, 0 to 1; None where unknown."""
        if self.state == "done":
            return 1.0
        if self.done is None or not self.total or self.total <= 0:
            return None
        return min(1.0, max(0.0, self.done / self.total))

    def describe(self) -> str:
        """Describe name, share and time: `tournament 38 %, 40 s left`."""
        if self.state == "done":
            return (
                f"{self.title} ({format_duration(self.seconds)})"
                if self.seconds is not None
                else f"{self.title} (done)"
            )
        left = "" if self.seconds_left is None else format_duration(self.seconds_left)
        if self.state == "waiting":
            return f"{self.title} (about {left})" if left else self.title
        if self.state != "running":
            return f"{self.title} {self.state}" + (
                "" if self.share is None else f" at {self.share:.0%}"
            )
        share = "" if self.share is None else f" {self.share:.0%}"
        return f"{self.title}{share or ' …'}" + (f", {left} left" if left else "")


def strip(stages: Sequence[Stage]) -> str:
    """Describe all stages in one line."""
    return " → ".join(stage.describe() for stage in stages)


def read_stages(
    manifest: Mapping[str, Any], live: Mapping[str, Any], *, alive: bool
) -> list[Stage]:
    """Read the stages of a run from the contents of its two files, which need not be valid.

    `alive`: a process works on the run. If not, `progress.json` shows how far it was when it ended.
    """
    known = _read_mapping(manifest.get("stages"))
    failure = _read_mapping(manifest.get("failure"))
    plan = manifest.get("plan")
    planned = [str(name) for name in plan if name != ""] if isinstance(plan, list) else []
    # Without a plan, a finished run has no more than the stages recorded.
    names = planned or [name for name in WHOLE if name in known or not manifest.get("finished")]
    is_done = {name: bool(_read_mapping(known.get(name)).get("done")) for name in names}
    at_work = live.get("stage") if live.get("stage") in names else None
    if alive and at_work is None:
        at_work = next((name for name in names if not is_done[name]), None)
    found = []
    for name in names:
        seconds = _read_number(_read_mapping(known.get(name)).get("seconds"))
        if alive and name == at_work:
            found.append(_read_live_stage(name, live, "running"))
        elif is_done[name] and not (
            alive and name == "report" and at_work == "backtest"
        ):  # the report of an earlier window
            found.append(Stage(name, "done", seconds))
        elif not alive and name == failure.get("stage"):
            found.append(_read_live_stage(name, live, "failed"))
        elif not alive and name == at_work:
            found.append(_read_live_stage(name, live, "stopped"))
        else:
            waits = _estimate_null_model(found) if name == "null_model" else None
            found.append(Stage(name, "waiting", seconds_left=waits))
    return found


def _estimate_null_model(before: Sequence[Stage]) -> float | None:
    """Estimate the seconds of the null model by the tournament's: it is the same search once
    more."""
    for stage in before:
        if stage.name == "tournament" and stage.seconds is not None:
            left = 0.0 if stage.state == "done" else stage.seconds_left
            return None if left is None else stage.seconds + left
    return None


def _read_live_stage(name: str, live: Mapping[str, Any], state: State) -> Stage:
    if live.get("stage") != name:
        return Stage(name, state)
    updated, seconds, left = (
        _read_number(live.get(key)) for key in ("updated", "seconds", "seconds_left")
    )
    is_running = state == "running"
    since = max(0.0, time.time() - updated) if is_running and updated is not None else 0.0
    return Stage(
        name,
        state,
        seconds=None if seconds is None else seconds + since,
        doing=str(live.get("doing") or ""),
        done=_read_number(live.get("done")),
        total=_read_number(live.get("total")),
        unit=str(live.get("unit") or ""),
        seconds_left=max(0.0, left - since) if is_running and left is not None else None,
        note=str(live.get("note") or ""),
    )


def _read_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _read_number(value: Any) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if fits else None


# --- writing --------------------------------------------------------------------------------------


class _ProgressWriter:
    """Writer of one stage's progress, as its tasks report it."""

    def __init__(self, folder: Path, values: Mapping[str, Any], name: str) -> None:
        self._path = folder / LIVE
        self._values = values
        self._name = name
        self._began = time.monotonic()
        self._written = self._began - SECONDS
        self._task: Task | None = None
        self.tell(None)

    def tell(self, task: Task | None) -> None:
        """Write the progress of a task; None: no task is running."""
        self._task = task
        now = time.monotonic()
        if now - self._written >= SECONDS:
            self._written = now
            # A run goes on even if its progress cannot be written.
            with contextlib.suppress(OSError, FintraderError, ValueError):
                write_bytes(self._path, dump_json(self._describe_live()).encode(), sync=False)

    def resume(self) -> None:
        """Go on after an inner stage."""
        self._written -= SECONDS
        self.tell(None)

    def _describe_live(self) -> dict[str, Any]:
        progress = {
            "stage": self._name,
            "seconds": round(time.monotonic() - self._began, 3),
            "updated": time.time(),
        }
        task = self._task
        if task is not None:
            progress |= {
                "doing": task.name,
                "done": task.done,
                "total": task.total,
                "unit": task.unit,
                "note": task.note,
                "seconds_left": None if task.finished else task.seconds_left,
            }
        return progress

    def strip(self) -> str:
        """Describe the present state of all stages of the run."""
        return strip(read_stages(self._values, self._describe_live(), alive=True))


@contextlib.contextmanager
def track_stage(folder: Path, values: Mapping[str, Any], name: str) -> Iterator[None]:
    """Inside the block, write the progress of this thread's tasks as that of the stage `name`.

    `folder` is the run's, `values` are its manifest's. Stages may be nested; if the outermost one
    raises nothing, `progress.json` is removed.
    """
    with observe_tasks(_ProgressWriter(folder, values, name)) as outer:
        yield
    if outer is None:
        with contextlib.suppress(OSError, FintraderError):
            remove(folder / LIVE)
    else:
        outer.resume()
