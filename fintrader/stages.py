"""The stages of a run, how far each has come and what one failed of: one account for terminal, log
and app.

    data → tournament → null model → backtest → report

What is done, and how long it took, stands in `manifest.json`. How far the stage at work is stands
beside it in `progress.json`, written once a second at most and gone when nothing is at work any
more. `read_stages` reads both.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fintrader.errors import FintraderError
from fintrader.files import dump_json, remove, write_bytes
from fintrader.progress import Task, format_duration, observe_tasks, with_strip

State = Literal["done", "running", "failed", "stopped", "waiting"]

WHOLE = ("data", "tournament", "null_model", "backtest", "report")
"""The stages of `fintrader run`, in order."""
TITLES = {
    "data": "data",
    "tournament": "tournament",
    "null_model": "null model",
    "backtest": "backtest",
}
TITLES |= {"report": "report", "train": "training"}
ABOUT = {
    "data": "bars become the market that agents trade in",
    "tournament": "agents are trained, compared on the validation window, and copied with changes",
    "null_model": (
        "the same search on bars whose features hold no information: what luck alone would have"
        " made. It takes about as long as the tournament; backtest.null_model: false leaves it out,"
        " and with it that comparison"
    ),
    "backtest": (
        "what was chosen trades the window nobody has looked at, beside all that could have been"
        " luck"
    ),
    "report": "figures and verdict are drawn, written down and sealed",
    "train": "one agent, without a tournament",
}
LIVE = "progress.json"
SECONDS = 1.0
"""Between two versions of the file."""


@dataclass(frozen=True)
class Stage:
    """One stage of a run, as far as it has come."""

    name: str
    state: State
    seconds: float | None = None
    """Of a stage that is done: all that it took. Of one at work: since it began this time."""
    doing: str = ""
    """What is at work in it now, in its own units."""
    done: float | None = None
    total: float | None = None
    unit: str = ""
    seconds_left: float | None = None
    """Of what is at work; of a null model that waits: what the tournament takes. None: nobody knows
    yet."""
    note: str = ""

    @property
    def title(self) -> str:
        """Its name for people."""
        return TITLES.get(self.name, self.name.replace("_", " "))

    @property
    def about(self) -> str:
        """What it is for, in a sentence without its full stop."""
        return ABOUT.get(self.name, "")

    @property
    def share(self) -> float | None:
        """0 to 1; None where nobody knows."""
        if self.state == "done":
            return 1.0
        if self.done is None or not self.total or self.total <= 0:
            return None
        return min(1.0, max(0.0, self.done / self.total))

    def describe(self) -> str:
        """Name, share and time: `tournament 38 %, 40 s left`."""
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
    """All stages as one line."""
    return " → ".join(stage.describe() for stage in stages)


def read_stages(
    manifest: Mapping[str, Any], live: Mapping[str, Any], *, alive: bool
) -> list[Stage]:
    """The stages of a run, from what its two files say (both may say anything at all); `alive`: it
    is being worked on.

    `progress.json` of a run that nobody works on says how far it was when it ended.
    """
    known = _read_mapping(manifest.get("stages"))
    failure = _read_mapping(manifest.get("failure"))
    plan = manifest.get("plan")
    planned = [str(name) for name in plan if name != ""] if isinstance(plan, list) else []
    names = planned or _guess_stages(manifest, known)
    is_done = {name: bool(_read_mapping(known.get(name)).get("done")) for name in names}
    at_work = live.get("stage") if live.get("stage") in names else None
    if alive and at_work is None:
        at_work = next((name for name in names if not is_done[name]), None)
    found: list[Stage] = []
    for name in names:
        seconds = _read_number(_read_mapping(known.get(name)).get("seconds"))
        if alive and name == at_work:
            found.append(_read_live_stage(name, live, "running"))
        elif is_done[name] and not (
            alive and name == "report" and at_work == "backtest"
        ):  # of an earlier window
            found.append(Stage(name, "done", seconds))
        elif not alive and name == failure.get("stage"):
            found.append(_read_live_stage(name, live, "failed"))
        elif not alive and name == at_work:
            found.append(_read_live_stage(name, live, "stopped"))
        else:
            waits = _as_long(found) if name == "null_model" else None
            found.append(Stage(name, "waiting", seconds_left=waits))
    return found


def _as_long(before: Sequence[Stage]) -> float | None:
    """Seconds of the tournament, as far as they are known: the null model is the same search once
    more."""
    for stage in before:
        if stage.name == "tournament" and stage.seconds is not None:
            if stage.state == "done":
                return stage.seconds
            if stage.state == "running" and stage.seconds_left is not None:
                return stage.seconds + stage.seconds_left
    return None


def _guess_stages(manifest: Mapping[str, Any], known: Mapping[str, Any]) -> list[str]:
    """The stages of a run that does not say what it plans: a finished one had those that it has."""
    return [name for name in WHOLE if name in known or not manifest.get("finished")]


def _read_live_stage(name: str, live: Mapping[str, Any], state: State) -> Stage:
    if live.get("stage") != name:
        return Stage(name, state)
    number = {
        key: _read_number(live.get(key))
        for key in ("done", "total", "seconds_left", "seconds", "updated")
    }
    since = (
        0.0
        if state != "running" or number["updated"] is None
        else max(0.0, time.time() - number["updated"])
    )
    left = number["seconds_left"]
    return Stage(
        name,
        state,
        seconds=None if number["seconds"] is None else number["seconds"] + since,
        doing=str(live.get("doing") or ""),
        done=number["done"],
        total=number["total"],
        unit=str(live.get("unit") or ""),
        seconds_left=None if left is None or state != "running" else max(0.0, left - since),
        note=str(live.get("note") or ""),
    )


def _read_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _read_number(value: Any) -> float | None:
    fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if fits else None


# --- who tells it ---------------------------------------------------------------------------------


_outer: ContextVar[_Teller | None] = ContextVar("fintrader_stage", default=None)


class _Teller:
    """Writes down how far one stage is, as its tasks say."""

    def __init__(
        self,
        folder: Path,
        values: Mapping[str, Any],
        name: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = folder / LIVE
        self._values = values
        self._name = name
        self._clock = clock
        self._began = clock()
        self._written = self._began - SECONDS
        self._task: Task | None = None
        self.tell(None)

    def tell(self, task: Task | None) -> None:
        """A task of this stage began, moved or ended; None: there is none any more."""
        self._task = task
        now = self._clock()
        if now - self._written >= SECONDS:
            self._written = now
            with contextlib.suppress(
                OSError, FintraderError, ValueError
            ):  # no run ends because nobody could watch it
                write_bytes(self._path, dump_json(self._describe_live()).encode(), sync=False)

    def resume(self) -> None:
        """A stage inside this one is over."""
        self._written -= SECONDS
        self.tell(None)

    def _describe_live(self) -> dict[str, Any]:
        found = {
            "stage": self._name,
            "seconds": round(self._clock() - self._began, 3),
            "updated": time.time(),
        }
        if (task := self._task) is not None:
            found |= {
                "doing": task.name,
                "done": task.done,
                "total": task.total,
                "unit": task.unit,
                "note": task.note,
            }
            found |= {"seconds_left": None if task.finished else task.seconds_left}
        return found

    def strip(self) -> str:
        """All stages of the run, as of now."""
        return strip(read_stages(self._values, self._describe_live(), alive=True))


@contextlib.contextmanager
def track_stage(folder: Path, values: Mapping[str, Any], name: str) -> Iterator[None]:
    """Inside the block the tasks of this thread are those of stage `name` of the run in `folder`,
    whose manifest says `values`. A stage may lie inside another. When it ends well and lies in
    none, nothing is at work any more."""
    outer = _outer.get()
    teller = _Teller(folder, values, name)
    token = _outer.set(teller)
    try:
        with observe_tasks(teller.tell), with_strip(teller.strip):
            yield
    finally:
        _outer.reset(token)
    if outer is None:
        with contextlib.suppress(OSError, FintraderError):
            remove(folder / LIVE)
    else:
        outer.resume()
