"""Markets built in processes that never built another: nothing that is remembered from one build
reaches the next.

A spawned process opens the source and then builds nothing itself. For every view it forks: the copy
has the bars, but no feature has run in it, so a cache that was filled with the whole of them is
empty there. Where a process cannot be forked, every view gets a spawned process, which opens the
source again.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

from pydantic import TypeAdapter

from fintrader import errors
from fintrader.backtesting.lookahead.views import View, ViewFeed, settings_of
from fintrader.bars.calendar import session_grid, timezone_of
from fintrader.bars.sources.vendor_settings import VendorSettings
from fintrader.config import load_object
from fintrader.errors import BacktestError, FintraderError
from fintrader.market.bar_source import open_feed
from fintrader.market.build import assemble
from fintrader.market.settings import DataSettings
from fintrader.market.tensors import MarketTensors
from fintrader.reproducible import ONE_THREAD
from fintrader.system import HAS_FORK, start_fork

_ANSWER = "answer.json"
_VIEW = TypeAdapter(View)


class FreshBuilds:
    """Builds views of the market of some settings. A context manager: the process ends with it.

    `setup` names a function (`package.module:function`) that is called in the process before
    anything is built, for what a script of your own would have done by then. Raises what a build
    would raise; BacktestError where code of your own fails on a view.
    """

    def __init__(
        self,
        settings: DataSettings,
        *,
        seed: int,
        cache: Path | None = None,
        setup: str | None = None,
    ):
        self._folder = TemporaryDirectory(prefix="fintrader-lookahead-")
        self._count = 0
        self._source = {
            "settings": json.loads(settings.model_dump_json()),
            "seed": seed,
            "cache": None if cache is None else str(cache),
            "setup": setup,
        }
        self._process = _spawn()
        self.span: tuple[int, int] = (0, 0)
        """First and last time of all bars."""
        try:
            self.span = tuple(self._ask(**self._source)["span"])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and remove what it wrote."""
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        with self._process:  # which closes its pipes
            self._process.kill()  # it holds nothing that has to be kept

    def __call__(self, view: View) -> MarketTensors:
        """The market of a view."""
        return next(iter(self.each([view])))

    def each(self, views: Sequence[View]) -> Iterator[MarketTensors]:
        """The markets of views, in their order; as many are built at once as there are
        processors."""
        size = (os.cpu_count() or 1) if HAS_FORK else 1
        for start in range(0, len(views), size):
            if self._count and not HAS_FORK:
                self._end()
                self._process = _spawn()
                self._ask(**self._source)
            jobs = []
            for view in views[start : start + size]:
                self._count += 1
                folder = Path(self._folder.name) / str(self._count)
                folder.mkdir()
                jobs.append({"view": _VIEW.dump_python(view, mode="json"), "folder": str(folder)})
            self._ask(jobs=jobs)
            for job in jobs:
                market = MarketTensors.load(Path(job["folder"]) / "market.safetensors")
                shutil.rmtree(job["folder"])  # the market stays mapped
                yield market

    def _ask(self, **message: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        except (BrokenPipeError, ValueError):
            raise BacktestError(
                "the process that builds views ended; was its memory used up?"
            ) from None
        if "error" in answer:
            raise getattr(errors, answer["type"], BacktestError)(answer["error"])
        return answer


def _spawn() -> subprocess.Popen[str]:
    """Start a process that builds views, spoken to by lines of JSON."""
    path = os.pathsep.join(part or "." for part in sys.path)
    command = [sys.executable, "-c", f"from {__name__} import main; main()"]
    pipe = subprocess.PIPE
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": path}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)


def _problem(error: Exception) -> dict[str, str]:
    """A failure as an answer. A failure of code that is not ours names the place."""
    if isinstance(error, FintraderError):
        return {"error": str(error), "type": type(error).__name__}
    place = traceback.extract_tb(error.__traceback__)[-1]
    return {
        "error": (
            f"building a view of the market failed in {place.name} ({Path(place.filename).name},"
            f" line {place.lineno}): {type(error).__name__}: {error}; code that runs on every row"
            " must run on fewer rows too"
        ),
        "type": "BacktestError",
    }


class _Server:
    """The spawned process: the source, opened once, and every view in a fork of its own."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        if values["setup"] is not None:
            load_object(values["setup"])()
        self.settings = DataSettings.model_validate(values["settings"])
        vendor = isinstance(self.settings.source, VendorSettings)
        cache = Path(values["cache"]) if vendor and values["cache"] is not None else None
        self.feed = open_feed(self.settings, cache)
        self.feed.prepare()
        self.seed = int(values["seed"])
        self.bars = {name: self.feed.bars(name) for name in self.feed.symbols}
        timezone_of(self.settings.calendar)  # as below
        gc.freeze()

    def _work(self, view: View, folder: Path) -> None:
        """Build a view and write down what came of it."""
        result = {"error": "code of your own ended the process", "type": "BacktestError"}
        try:
            settings = settings_of(self.settings, view, folder)
            market = assemble(settings, ViewFeed(self.feed, self.bars, view, self.seed))
            market.save(folder / "market.safetensors")
            result = {}
        except Exception as error:
            result = _problem(error)
        finally:
            (folder / _ANSWER).write_text(json.dumps(result))

    def answer(self, jobs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Build each view in a fork of its own; the first problem among them, if there is one."""
        children = []
        for job in jobs:
            view = _VIEW.validate_python(job["view"])
            folder = Path(job["folder"])
            session_grid(
                self.settings.calendar, view.start, view.end
            )  # forks find it ready: it takes a second
            children.append((start_fork(partial(self._work, view, folder)), folder / _ANSWER))
        answers: list[dict[str, Any]] = []
        for wait, answer in children:
            wait()
            lost = {
                "error": "a process that built a view was killed; was its memory used up?",
                "type": "BacktestError",
            }
            answers.append(json.loads(answer.read_text()) if answer.is_file() else lost)
        return next((answer for answer in answers if answer), {})


def main() -> None:
    """Answer lines of JSON until the pipe ends. What code of others prints goes to standard
    error."""
    with os.fdopen(os.dup(1), "w") as channel:
        os.dup2(2, 1)
        server: _Server | None = None
        for line in sys.stdin:
            message = json.loads(line)
            try:
                if server is None:
                    server = _Server(message)
                    said: dict[str, Any] = {"span": server.feed.span()}
                else:
                    said = server.answer(message["jobs"])
            except Exception as error:
                said = _problem(error)
            channel.write(json.dumps(said) + "\n")
            channel.flush()
