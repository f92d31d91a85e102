"""Build each market in a fresh process, so that nothing cached by one build reaches the next.

A spawned process opens the source but builds nothing from it. It forks for every view: the fork has
the bars, but no feature has run in it, so no cache holds values of the whole market. Where a
process cannot be forked, every view gets a newly spawned one, which opens the source again.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import subprocess
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Self

from pydantic import TypeAdapter

from fintrader import errors
from fintrader.backtesting.lookahead.views import View, ViewFeed, derive_settings
from fintrader.bars.calendar import find_exchange_timezone, session_date
from fintrader.bars.sources.vendor_settings import VendorSettings
from fintrader.config import load_object
from fintrader.errors import BacktestError, FintraderError
from fintrader.market import features
from fintrader.market.bar_source import open_feed
from fintrader.market.build import assemble, lay_grid, make_market
from fintrader.market.settings import DataSettings
from fintrader.market.synthetic import SyntheticSettings
from fintrader.market.tensors import MarketTensors
from fintrader.records import JsonValue
from fintrader.reproducible import ONE_THREAD
from fintrader.system import HAS_FORK, NO_DATA, start_fork

_ANSWER = "answer.json"
_VIEW = TypeAdapter(View)


class FreshBuilds:
    """A context manager that builds views of a market in a process, which ends with it.

    `setup` names a function (`package.module:function`) that the process calls before it builds
    anything, to be prepared as by your script. Raises the errors of a build, and BacktestError
    where your own code fails on a view.
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
        self.at_once = (os.cpu_count() or 1) if HAS_FORK else 1
        """Number of views that are built at the same time."""
        self.opened: dict[str, list[str]] = {}
        """Own feature -> files that it opened while it was computed."""
        try:
            self._ask(**self._source)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process and remove its files."""
        self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        with self._process:  # closes its pipes
            self._process.kill()  # it holds no unsaved work

    def __call__(self, view: View) -> MarketTensors:
        """Build the market of a view."""
        (market,) = self.each([view])
        if isinstance(market, FintraderError):
            raise market
        return market

    def each(self, views: Sequence[View]) -> list[MarketTensors | FintraderError]:
        """Build the markets of at most `at_once` views; a failed build gives its error instead."""
        if self._count and not HAS_FORK:
            self._end()
            self._process = _spawn()
            self._ask(**self._source)
        jobs = []
        for view in views:
            self._count += 1
            folder = Path(self._folder.name) / str(self._count)
            folder.mkdir()
            jobs.append({"view": _VIEW.dump_python(view, mode="json"), "folder": str(folder)})
        markets: list[MarketTensors | FintraderError] = []
        for job, answer in zip(jobs, self._ask(jobs=jobs)["answers"], strict=True):
            self.opened |= answer.get("opened", {})
            path = Path(job["folder"]) / "market.safetensors"
            markets.append(_make_error(answer) or MarketTensors.load(path))
            shutil.rmtree(job["folder"])  # the market stays mapped
        return markets

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
        error = _make_error(answer)
        if error is not None:
            raise error
        return answer


def _make_error(answer: Mapping[str, Any]) -> FintraderError | None:
    kind: type[FintraderError] = getattr(errors, answer.get("type", ""), BacktestError)
    return kind(answer["error"]) if "error" in answer else None


def _spawn() -> subprocess.Popen[str]:
    """Start a process that builds views, controlled by lines of JSON."""
    path = os.pathsep.join(part or "." for part in sys.path)
    command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()"]
    pipe = subprocess.PIPE
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": path}
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment)


def _describe_problem(error: Exception) -> dict[str, str]:
    """Describe an error as an answer; an unexpected one with its place in the code."""
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
    """The spawned process: it opens the source once and builds every view in a fork."""

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
        first, last = self.feed.span()
        calendar = self.settings.calendar
        self.span = session_date(calendar, first), session_date(calendar, last)
        # Prepare compiled code, the calendar and the grid once for all forks, since they take a
        # second. Build nothing of the market itself.
        make_market(DataSettings(source=SyntheticSettings(num_symbols=2, num_sessions=20)))
        find_exchange_timezone(calendar)
        lay_grid(self.settings, (first, last), self.settings.bar_minutes)
        gc.freeze()

    def _work(self, view: View, folder: Path) -> None:
        """Build a view; write its market and the answer to `folder`."""
        opened: dict[str, set[str]] = {}
        result: Mapping[str, JsonValue] = {
            "error": "code of your own ended the process",
            "type": "BacktestError",
        }
        sys.addaudithook(partial(_note_file, opened))
        if view.cut is not None:  # its warnings would be about scrambled bars
            logging.disable()
            warnings.simplefilter("ignore")
        try:
            settings = derive_settings(self.settings, view, self.span, folder)
            known_at = settings.features.known_at
            feed = ViewFeed(self.feed, self.bars, view, self.seed, known_at)
            market = assemble(settings, feed)
            market.save(folder / "market.safetensors")
            result = {"opened": {name: sorted(paths) for name, paths in opened.items()}}
        except Exception as error:
            result = _describe_problem(error)
        finally:
            (folder / _ANSWER).write_text(json.dumps(result))

    def answer(self, jobs: Sequence[Mapping[str, Any]]) -> Mapping[str, JsonValue]:
        """Build each view in a separate fork."""
        children = []
        for job in jobs:
            view = _VIEW.validate_python(job["view"])
            folder = Path(job["folder"])
            children.append((start_fork(partial(self._work, view, folder)), folder / _ANSWER))
        answers: list[JsonValue] = []
        for wait, answer in children:
            wait()
            lost = {
                "error": "a process that built a view was killed; was its memory used up?",
                "type": "BacktestError",
            }
            answers.append(json.loads(answer.read_text()) if answer.is_file() else lost)
        return {"answers": answers}


_CODE = (".py", ".pyc", ".so", ".pyd", ".dll", ".dylib", ".nbi", ".nbc")
_NO_DATA = (sys.prefix, sys.base_prefix, *NO_DATA)
"""Folders of installed packages and of the system."""


def _note_file(opened: dict[str, set[str]], event: str, arguments: tuple[Any, ...]) -> None:
    """Audit hook: note a file that a feature, or the import of its module (`module:*`), opens."""
    if event not in ("open", "sqlite3.connect") or not isinstance(arguments[0], str | bytes):
        return
    path = os.path.abspath(os.fsdecode(arguments[0]))
    if path.startswith(_NO_DATA) or path.endswith(_CODE) or "__pycache__" in path:
        return
    frame: FrameType | None = sys._getframe(1)
    is_import = False
    while frame is not None:
        is_import |= frame.f_code.co_filename.startswith("<frozen importlib")
        if frame.f_globals.get("__name__") == features.__name__ and "name" in frame.f_locals:
            module, _, name = str(frame.f_locals["name"]).partition(":")
            opened.setdefault(f"{module}:{'*' if is_import else name}", set()).add(path)
            return
        frame = frame.f_back


def main() -> None:
    """Answer lines of JSON until the pipe ends. Prints of other code go to standard error."""
    with os.fdopen(os.dup(1), "w") as channel:
        os.dup2(2, 1)
        server: _Server | None = None
        for line in sys.stdin:
            message = json.loads(line)
            try:
                if server is None:
                    server = _Server(message)
                    answer: Mapping[str, JsonValue] = {}
                else:
                    answer = server.answer(message["jobs"])
            except Exception as error:
                answer = _describe_problem(error)
            channel.write(json.dumps(answer) + "\n")
            channel.flush()
