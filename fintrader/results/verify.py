"""Checks of a stored run: configuration, bars, trials, results, seals and the ledger of looks.

Stored totals are not trusted: the caller recounts the trials from the tournaments' files. An edited
file contradicts other files. If all are edited consistently, they contradict the ledger of looks,
which other runs share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fintrader.errors import FintraderError, RunError
from fintrader.files import hash_file, read_json
from fintrader.results.backtest_files import (
    SEAL,
    StoredBacktest,
    describe_seal_problems,
    read_backtest,
    read_seal,
)
from fintrader.results.folders import Folder
from fintrader.results.run import WINDOWS
from fintrader.results.stored_looks import hash_stored_result
from fintrader.runs import RunFolder
from fintrader.verdict.looks import Ledger, Line, explain_missing, look_number


@dataclass(frozen=True)
class Check:
    """One comparison of stored values with their sources."""

    name: str
    compares: str
    """Both sides of the comparison, in words."""
    problems: Sequence[str] = ()
    """Every disagreement, a sentence each."""
    result: str = ""
    """The outcome in words where there is no problem."""
    remedy: str = ""
    """The user's next step where there is a problem."""

    @property
    def is_ok(self) -> bool:
        return not self.problems


def list_problems(checks: Iterable[Check]) -> list[str]:
    """Collect the problems of all checks."""
    return [problem for check in checks for problem in check.problems]


_EDITED = "restore the file from a backup, or run the same configuration under another name"
_NEW_RESULT = "`fintrader backtest RUN` makes the result again, which counts as a further look"
_LEDGER = "restore looks.jsonl from a backup: it alone records how often a window was looked at"


def find_searches(folder: RunFolder) -> list[RunFolder]:
    """List the tournaments of a run, except those of null models."""
    if (folder.root / "tournament.json").is_file():
        return [folder]
    return folder.folds


def check_run(
    folder: RunFolder,
    manifest: Mapping[str, Any],
    trials: Mapping[Path, int],
    content_of: Callable[[Path], str],
) -> Iterator[Check]:
    """Make the checks of a run whose tournaments have finished.

    `trials`: recounted trials of each tournament, by its folder. `content_of` computes the
    content hash of a market file from its arrays.
    """
    searches = find_searches(folder)
    yield _check_config(folder, manifest)
    yield _check_data(folder, manifest, searches, content_of)
    count = sum(trials[search.root] for search in searches) + _count_inherited(searches, manifest)
    yield _check_trials(manifest, count, searches, trials)
    yield _check_backtests(folder, manifest)
    ledger = Ledger()
    compares = "each line of looks.jsonl with its seal and with the line before it"
    try:
        lines = ledger.lines()
        looks = ledger.looks()
    except FintraderError as error:
        yield Check("ledger of looks", compares, (str(error),), remedy=_LEDGER)
        return
    result = f"{len(lines)} lines, each as it was written, in their order"
    yield Check("ledger of looks", compares, result=result)
    for window, home in _find_backtests(folder):
        yield _check_seal(window, home, lines)
        yield _check_look(window, home, count, lines, looks)
    yield _check_lost_results(folder, manifest, looks)


def _find_backtests(folder: RunFolder) -> Iterator[tuple[str, Path]]:
    for window in WINDOWS:
        home = folder.backtest_of(window)
        if any((home / name).exists() for name in (SEAL, "metrics.json", "context.json")):
            yield window, home


# --- configuration and data -----------------------------------------------------------------------


def _check_config(folder: RunFolder, manifest: Mapping[str, Any]) -> Check:
    problems = []
    if not folder.config.is_file():
        problems = ["config.yaml is missing, and no other file holds the run's settings"]
    elif hash_file(folder.config) != manifest.get("config_hash"):
        problems = [
            "config.yaml does not have the hash in manifest.json: one of the two was edited"
        ]
    return Check(
        "configuration",
        "config.yaml with its hash in manifest.json",
        problems,
        "config.yaml has the hash in the manifest",
        _EDITED,
    )


def _check_data(
    folder: RunFolder,
    manifest: Mapping[str, Any],
    searches: Sequence[RunFolder],
    content_of: Callable[[Path], str],
) -> Check:
    problems = []
    absent = []
    markets = [("the manifest", Path(str(manifest.get("market"))), manifest.get("data_hash"))]
    for search in searches:
        try:
            begun_with = str(read_json(search.root / "tournament.json")["data_hash"])
        except (FintraderError, KeyError, TypeError) as error:
            problems.append(f"{search.label}: tournament.json cannot be read ({error})")
            continue
        if search.root != folder.root:
            markets.append((search.label, search.root / "market.safetensors", begun_with))
        elif begun_with != manifest.get("data_hash"):
            problems.append(
                "the manifest and tournament.json name different bars: one of the two was edited"
            )
    for place, path, expected in markets:
        if not path.is_file():
            absent.append(str(path))
        elif (content := content_of(path)) != expected:
            problems.append(
                f"{path} holds other data ({content[:12]}) than {place} says ({str(expected)[:12]})"
            )
    result = "the bars have the hash in the manifest"
    if absent:
        result = (
            f"not compared with the bars: {', '.join(absent)} is not here (`fintrader data build"
            f" {folder.config}` makes it)"
        )
    remedy = f"`fintrader data build {folder.config}` makes the market again from the same bars"
    if markets[0][1].name == "environment.json":
        remedy = "write id and seed of config.yaml into environment.json again"
    return Check(
        "data",
        "the arrays of the market with their hash in manifest.json and tournament.json",
        problems,
        result,
        remedy,
    )


# --- trials ---------------------------------------------------------------------------------------


def _count_inherited(searches: Sequence[RunFolder], manifest: Mapping[str, Any]) -> int:
    """Read the number of trials of the earlier run whose pods this run started from."""
    for search in searches:
        path = search.root / "inherited.json"
        if not path.is_file():
            continue
        inherited = read_json(path)
        try:
            # Pods of the previous fold are counted in that fold.
            if not str(inherited["address"]).startswith("folds/"):
                return int(inherited["trials"])
        except (KeyError, TypeError, ValueError):
            raise RunError(
                f"{path} is damaged: it names no earlier run with its trials; restore it from a"
                " copy"
            ) from None
    recorded = manifest.get("inherited")
    return int(recorded.get("trials", 0)) if isinstance(recorded, Mapping) else 0


def _check_trials(
    manifest: Mapping[str, Any],
    count: int,
    searches: Sequence[RunFolder],
    trials: Mapping[Path, int],
) -> Check:
    problems = []
    if manifest.get("trials") != count:
        problems.append(
            f"manifest.json says {manifest.get('trials')} trials, and the run's files"
            f" hold {count}: pods were deleted, or the manifest was edited"
        )
    numbers = [int(search.root.name) for search in searches if search.root.parent.name == "folds"]
    if numbers != list(range(len(numbers))):
        problems.append(
            "the folder of an earlier fold is missing, and its trials must be counted too"
        )
    for search in searches:
        path = search.ensemble / "ensemble.json"
        chosen_from = read_json(path).get("trials") if path.is_file() else None
        if chosen_from not in (None, trials[search.root]):
            problems.append(
                f"{search.label}: ensemble.json says {chosen_from} trials, but the pods hold"
                f" {trials[search.root]}"
            )
    return Check(
        "trials",
        "the trials in the results of all pods with manifest.json and ensemble.json",
        problems,
        f"{count}, as the manifest says",
        _EDITED,
    )


# --- results --------------------------------------------------------------------------------------


def _check_backtests(folder: RunFolder, manifest: Mapping[str, Any]) -> Check:
    stored = [window for window, _ in _find_backtests(folder)]
    problems = []
    if not stored and manifest.get("stages", {}).get("backtest", {}).get("done"):
        problems.append("the manifest names a backtest, but there is none: it was deleted")
    return Check(
        "backtests",
        "the stored backtests with the stages in manifest.json",
        problems,
        f"stored for: {', '.join(stored) or 'no window yet'}",
        _NEW_RESULT,
    )


def _check_seal(window: str, home: Path, lines: Sequence[Mapping[str, Any]]) -> Check:
    problems = []
    place = Folder.locate(home)
    if problem := describe_seal_problems(place):
        problems.append(
            f"changed after it was written: {problem}; it no longer holds the original result"
        )
    elif read_seal(place).get("look") != {} and hash_file(home / SEAL) not in {
        line.get("seal") for line in lines
    }:
        problems.append(
            f"the ledger of looks does not have the hash of {SEAL}: result and seal were remade,"
            " or the line of the ledger was deleted"
        )
    return Check(
        f"seal of the {window} backtest",
        f"each file with its hash in {SEAL}, and {SEAL} with its hash in the ledger",
        problems,
        "every file is as it was written, and the ledger has the seal",
        _NEW_RESULT,
    )


def _check_look(
    window: str, home: Path, trials: int, lines: Sequence[Mapping[str, Any]], looks: Sequence[Line]
) -> Check:
    result = ""
    try:
        stored = read_backtest(home)
        look = read_seal(Folder.locate(home)).get("look")
        counts = {
            "context.json": stored.context.trials,
            "verdict.json": trials if stored.verdict is None else stored.verdict.selection.trials,
        }
        problems = [
            f"{name} says {count} trials and there are {trials}: it was edited, or the run has"
            " gone on since"
            for name, count in counts.items()
            if count != trials
        ]
        if look is None:
            problems.append("its seal names no line of the ledger: it was not made by a run")
        elif look == {}:
            result = f"{trials} trials; its look was not counted: the ledger could not be written"
            if stored.context.look is not None:
                problems.append(f"it claims look {stored.context.look}, but no look was counted")
        elif gone := explain_missing(lines, look):
            problems.append(gone)
        else:
            differences, number = _compare_look(stored, window, look["line"], looks)
            problems += differences
            result = f"{trials} trials, look {number} at these bars (line {look['line']})"
    except FintraderError as error:
        problems = [str(error)]
    return Check(
        f"trials and looks of the {window} backtest",
        "the trials, the look and the result of the backtest with the ledger",
        problems,
        result,
        _NEW_RESULT,
    )


def _compare_look(
    stored: StoredBacktest, window: str, number: int, looks: Sequence[Line]
) -> tuple[list[str], int]:
    """Compare a result with line `number` of the ledger; return the differences and the number of
    the look."""
    line = next((line for line in looks if line.number == number), None)
    if line is None:
        return [f"line {number} of the ledger is no look"], 0
    differences = []
    if line.look.result != hash_stored_result(stored):
        differences.append(f"line {number} of the ledger has another result than the one stored")
    if line.look.trials != stored.context.trials:
        differences.append(f"line {number} of the ledger says {line.look.trials} trials")
    look = look_number(
        looks[: looks.index(line) + 1], line.look.bars, line.look.result, line.look.question
    )
    if window == "test" and stored.context.look != look:
        differences.append(
            f"it says look {stored.context.look}, and on the ledger it is look {look}"
        )
    return differences, look


def _check_lost_results(
    folder: RunFolder, manifest: Mapping[str, Any], looks: Sequence[Line]
) -> Check:
    run = (manifest.get("name"), manifest.get("created"))
    windows = {line.look.window for line in looks if (line.look.run, line.look.created) == run}
    gone = sorted(windows - {window for window, _ in _find_backtests(folder)})
    deleted = "and its backtest was deleted"
    return Check(
        "results on the ledger",
        "the looks of this run on the ledger with its stored backtests",
        [f"the ledger has a look at the {window} window, {deleted}" for window in gone],
        "each is stored",
        _NEW_RESULT,
    )
