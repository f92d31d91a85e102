"""Whether a run's files still say what the run did: trials recounted, results against their seals,
looks on the ledger.

It recounts from what the tournament left behind (events, specs, results, snapshots) and believes no
sum that is written anywhere. Whoever edits one file is found out by another; whoever rewrites them
all, by the ledger of looks, which another run's lines may stand on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fintrader.errors import FintraderError, RunError
from fintrader.files import file_sha256, read_bytes, read_json, read_jsonl, seal_of, unseal
from fintrader.results.backtest_files import (
    SEAL,
    StoredBacktest,
    broken_seal,
    read_backtest,
    read_seal,
)
from fintrader.results.folders import COPY, Folder
from fintrader.results.leaderboard_reader import dropped_pods
from fintrader.results.looks import Ledger, Line, look_number, missing, stored_result
from fintrader.results.run import WINDOWS
from fintrader.runs import Manifest, RunFolder


@dataclass(frozen=True)
class Check:
    """One line of an audit."""

    what: str
    problems: tuple[str, ...]
    said: str = ""
    """What was found where there is no problem."""

    @property
    def ok(self) -> bool:
        return not self.problems


def audit(folder: RunFolder, content_of: Callable[[Path], str]) -> list[Check]:
    """Every check of a finished run. `content_of`: the content hash of a market file, computed from
    its arrays.

    Raises RunError when the folder holds no run, or one without results.
    """
    if not folder.manifest.is_file():
        raise RunError(
            f"{folder.root}: no run lies here (it would hold manifest.json); give the folder of"
            " a run"
        )
    manifest = Manifest.load(folder.manifest).values
    searches = _searches(folder)
    if not searches or not manifest.get("stages", {}).get("tournament", {}).get("done"):
        raise RunError(
            f"{folder.root}: there is nothing to audit before its tournament has finished; run the"
            " command in its manifest.json again"
        )
    checks = [_config(folder, manifest), _data(folder, manifest, searches, content_of)]
    counts: list[int] = []
    for search in searches:
        found = _pods(search)
        counts.append(found.trials)
        checks.append(
            Check(f"pods of {search.label}" if len(searches) > 1 else "pods", *found.outcome)
        )
    trials = sum(counts) + _earlier(folder, searches, manifest)
    checks.append(_trials(manifest, trials, searches, counts))
    checks.append(_backtests(folder, manifest))
    ledger = Ledger(folder.root.resolve().parent)
    try:
        lines = ledger.lines()
        looks = ledger.looks()
    except FintraderError as error:
        return [*checks, Check("ledger of looks", (str(error),))]
    checks.append(
        Check("ledger of looks", (), f"{len(lines)} lines, each as it was written, in their order")
    )
    for window, home in _stored(folder):
        checks.append(_sealed(window, home, lines))
        checks.append(_shown(window, home, trials, lines, looks))
    checks.append(_lost(folder, manifest, looks))
    return checks


def _searches(folder: RunFolder) -> list[RunFolder]:
    """The tournaments that a run chose from: its own, or one a fold; never those of null models."""
    if (folder.root / "tournament.json").is_file():
        return [folder]
    found = sorted(path for path in (folder.root / "folds").glob("*") if path.is_dir())
    return [RunFolder(path) for path in found]


def _stored(folder: RunFolder) -> Iterator[tuple[str, Path]]:
    for window in WINDOWS:
        home = folder.backtest if window == "test" else folder.backtest / window
        if any((home / name).exists() for name in (SEAL, "metrics.json", "context.json")):
            yield window, home


# --- what the run is made of ----------------------------------------------------------------------


def _config(folder: RunFolder, manifest: Mapping[str, Any]) -> Check:
    what = "configuration"
    if not folder.config.is_file():
        return Check(what, ("config.yaml is missing: nobody can say what the run was made with",))
    if file_sha256(folder.config) != manifest.get("config_hash"):
        return Check(
            what,
            (
                (
                    "config.yaml is not the one that manifest.json has the hash of: one of the two"
                    " was edited"
                ),
            ),
        )
    return Check(what, (), "config.yaml has the hash that the manifest says")


def _data(
    folder: RunFolder,
    manifest: Mapping[str, Any],
    searches: Sequence[RunFolder],
    content_of: Callable[[Path], str],
) -> Check:
    """The market's content against the manifest, and what the pods were trained on against the
    market."""
    problems = []
    unseen = []
    markets = [("the manifest", Path(str(manifest.get("market"))), manifest.get("data_hash"))]
    for search in searches:
        try:
            begun = str(read_json(search.root / "tournament.json")["data_hash"])
        except (FintraderError, KeyError, TypeError) as error:
            problems.append(f"{search.label}: tournament.json cannot be read ({error})")
            continue
        if search.root == folder.root:
            if begun != manifest.get("data_hash"):
                problems.append(
                    "the manifest and tournament.json name different bars: one of the two was"
                    " edited"
                )
        else:
            markets.append((search.label, search.root / "market.safetensors", begun))
    for named, path, expected in markets:
        if not path.is_file():
            unseen.append(str(path))
        elif (content := content_of(path)) != expected:
            problems.append(
                f"{path} holds other bars ({content[:12]}) than {named} says ({str(expected)[:12]})"
            )
    said = "the bars are those that the manifest has the hash of"
    if unseen:
        said = (
            f"not compared with the bars: {', '.join(unseen)} is not here (`fintrader data build`"
            " makes it)"
        )
    return Check("data", tuple(problems), said)


# --- trials ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pods:
    trials: int
    problems: tuple[str, ...]
    said: str

    @property
    def outcome(self) -> tuple[tuple[str, ...], str]:
        return self.problems, self.said


def _pods(search: RunFolder) -> _Pods:
    """The trials of one tournament, and where its events, specs, results and snapshots contradict
    each other."""
    problems: list[str] = []
    events = read_jsonl(search.events)
    if not events:
        problems.append("events.jsonl is missing or empty")
    specs = {path.parent.name: path for path in sorted(search.pods.glob("p[0-9]*/spec.json"))}
    results = {path.parent.name: path for path in sorted(search.pods.glob("p[0-9]*/result.json"))}
    proposed = {
        str(event.get("pod")) for event in events if event.get("event") in ("proposed", "adopted")
    }
    applied = {str(event.get("pod")): event for event in events if event.get("event") == "applied"}
    dropped = dropped_pods(events)
    problems += _gaps(sorted({*specs, *results, *proposed, *applied}))
    problems += _apart(
        "have no spec.json: their folders were deleted",
        {*proposed, *applied, *results} - set(specs),
    )
    problems += _apart("have no result.json: it was deleted", set(applied) - set(results))
    problems += _apart(
        "have a result that events.jsonl never counted: lines were deleted",
        set(results) - set(applied),
    )
    trials = 0
    snapshots = set[str]()
    for pod, path in results.items():
        try:
            result = _unsealed(path)
            score = result["score"]
            looks = int(result["looks"])
            spec = result["spec"]
        except (FintraderError, KeyError, TypeError, ValueError) as error:
            problems.append(f"{pod}: result.json cannot be read ({error})")
            continue
        trials += looks if score is not None else 0
        try:
            sealed = (
                seal_of(read_bytes(specs[pod])) if pod in specs and _unsealed(specs[pod]) else spec
            )
        except FintraderError as error:
            problems.append(f"{pod}: spec.json cannot be read ({error})")
            continue
        if sealed != spec:
            problems.append(
                f"{pod}: its result belongs to another spec.json: one of the two was edited"
            )
        if pod in applied and applied[pod].get("score") != score:
            problems.append(
                f"{pod}: scored {score} in result.json and {applied[pod].get('score')} in"
                " events.jsonl"
            )
        policy = path.with_name("policy.safetensors")
        if result.get("policy") and policy.is_file() and file_sha256(policy) != result["policy"]:
            problems.append(f"{pod}: policy.safetensors is not the one that was scored")
        if result.get("snapshot") and pod not in dropped:
            snapshots.add(str(result["snapshot"]))
    problems += _snapshots(search, snapshots, {str(event.get("event")) for event in events})
    ends = [event.get("trials") for event in events if event.get("event") == "finished"]
    if not ends:
        problems.append("events.jsonl does not say that the tournament finished")
    elif ends[-1] != trials:
        problems.append(
            f"events.jsonl finished with {ends[-1]} trials, and the results make {trials}"
        )
    return _Pods(
        trials, tuple(problems), f"{len(results)} results of {len(specs)} pods make {trials} trials"
    )


def _unsealed(path: Path) -> dict[str, Any]:
    return unseal(read_bytes(path), RunError(f"{path.name} was changed after it was written"))


def _gaps(pods: Sequence[str]) -> list[str]:
    """Pods are numbered without a gap."""
    numbers = {int(pod[1:]) for pod in pods if pod[1:].isdigit()}
    gone = sorted(set(range(max(numbers, default=-1) + 1)) - numbers)
    return _apart(
        "are nowhere, and later ones are there: they were deleted",
        {f"p{number:04d}" for number in gone},
    )


def _apart(what: str, pods: set[str]) -> list[str]:
    shown = sorted(pods)
    return [f"{', '.join(shown[:5])}{' ...' if len(shown) > 5 else ''} {what}"] if shown else []


def _snapshots(search: RunFolder, named: set[str], events: set[str]) -> list[str]:
    """Snapshots that results name and that are gone or changed, and whole ones that nobody
    names."""
    found = {
        path.name.removesuffix(".safetensors"): path
        for path in (search.root / "snapshots").glob("*.safetensors")
    }
    problems = [
        f"snapshot {name[:12]} was changed"
        for name, path in found.items()
        if file_sha256(path) != name
    ]
    copy = any((above / COPY).is_file() for above in (search.root, *search.root.parents[:2]))
    if not copy:
        problems += [
            f"snapshot {name[:12]}, which a result names, is missing"
            for name in sorted(named - set(found))
        ]
    inherited = search.root / "inherited.json"
    taken = read_json(inherited)["entries"] if inherited.is_file() else []
    strange = set(found) - named - {str(result["snapshot"]) for _, result in taken}
    # A pod that was killed after it stored its snapshot, and whose next attempt learned something
    # else, leaves one.
    if strange and not events & {"lost", "drained", "damaged", "resumed"}:
        problems.append(f"{len(strange)} snapshots belong to no result: pods were deleted")
    return problems


def _earlier(folder: RunFolder, searches: Sequence[RunFolder], manifest: Mapping[str, Any]) -> int:
    """Trials among which those pods were chosen that the run began with: of the run that it was
    told to start from."""
    said = manifest.get("inherited")
    for search in searches:
        path = search.root / "inherited.json"
        if not path.is_file():
            continue
        known = read_json(path)
        if not str(known["address"]).startswith(
            "folds/"
        ):  # a fold that starts from the one before counts its pods once
            return int(known["trials"])
    return int(said.get("trials", 0)) if isinstance(said, Mapping) else 0


def _trials(
    manifest: Mapping[str, Any], trials: int, searches: Sequence[RunFolder], counts: Sequence[int]
) -> Check:
    problems = []
    if manifest.get("trials") != trials:
        problems.append(
            f"manifest.json says {manifest.get('trials')} trials, and what the run left behind"
            f" makes {trials}: pods were deleted, or the manifest was edited"
        )
    numbers = [int(search.root.name) for search in searches if search.root.parent.name == "folds"]
    if numbers and numbers != list(range(len(numbers))):
        problems.append("a fold before the last is missing: its trials count too")
    for search, count in zip(searches, counts, strict=True):
        path = search.ensemble / "ensemble.json"
        said = read_json(path).get("trials") if path.is_file() else None
        if said not in (None, count):
            problems.append(
                f"{search.label}: ensemble.json was chosen from {said} trials, and there are"
                f" {count}"
            )
    return Check("trials", tuple(problems), f"{trials}, as the manifest says")


# --- results --------------------------------------------------------------------------------------


def _backtests(folder: RunFolder, manifest: Mapping[str, Any]) -> Check:
    stored = [window for window, _ in _stored(folder)]
    done = manifest.get("stages", {}).get("backtest", {}).get("done")
    if not stored and done:
        return Check(
            "backtests", ("the manifest says that one was made, and none is there: it was deleted",)
        )
    return Check("backtests", (), f"stored for: {', '.join(stored) or 'no window yet'}")


def _sealed(window: str, home: Path, lines: Sequence[Mapping[str, Any]]) -> Check:
    """The files against their seal, and the seal against the ledger."""
    what = f"seal of the {window} backtest"
    place = Folder.locate(home)
    if problem := broken_seal(place):
        return Check(
            what, (f"changed after it was written: {problem}; what it says is not what was found",)
        )
    digest = file_sha256(home / SEAL)
    if not any(line.get("seal") == digest for line in lines):
        return Check(
            what,
            (
                (
                    f"{SEAL} is not the one that the ledger of looks has the hash of: result and"
                    " seal were made anew, or the ledger's line was deleted"
                ),
            ),
        )
    return Check(what, (), "every file is as it was written, and the ledger has the seal")


def _shown(
    window: str, home: Path, trials: int, lines: Sequence[Mapping[str, Any]], looks: Sequence[Line]
) -> Check:
    """What a stored backtest says of trials and looks, and its look's line."""
    what = f"trials and looks of the {window} backtest"
    try:
        stored = read_backtest(home)
        look = read_seal(Folder.locate(home)).get("look")
        problems = _said(stored, trials)
        result = stored_result(stored)
    except FintraderError as error:
        return Check(what, (str(error),))
    if look is None:
        return Check(
            what, (*problems, "its seal names no line of the ledger: it was not made by a run")
        )
    if gone := missing(lines, look):
        return Check(what, (*problems, gone))
    line = next((line for line in looks if line.number == look["line"]), None)
    if line is None:
        return Check(what, (*problems, f"line {look['line']} of the ledger is no look"))
    if line.look.result != result:
        problems.append(f"line {line.number} of the ledger has another result than the one stored")
    if line.look.trials != stored.context.get("trials"):
        problems.append(f"line {line.number} of the ledger says {line.look.trials} trials")
    number = look_number(looks[: looks.index(line) + 1], line.look.bars, line.look.result)
    if window == "test" and stored.context.get("looks") != number:
        problems.append(
            f"it says look {stored.context.get('looks')}, and on the ledger it is look {number}"
        )
    return Check(
        what, tuple(problems), f"{trials} trials, look {number} at these bars (line {line.number})"
    )


def _said(stored: StoredBacktest, trials: int) -> list[str]:
    said = {
        "context.json": stored.context.get("trials"),
        "verdict.json": trials if stored.verdict is None else stored.verdict.selection.trials,
    }
    return [
        f"{name} says {count} trials and there are {trials}: it was edited, or the run has gone on"
        " since"
        for name, count in said.items()
        if count != trials
    ]


def _lost(folder: RunFolder, manifest: Mapping[str, Any], looks: Sequence[Line]) -> Check:
    """Windows that the ledger knows a result of this run on, and that have none."""
    own = {line.look.window for line in looks if _made_by(line, manifest)}
    gone = sorted(own - {window for window, _ in _stored(folder)})
    problems = [
        f"the ledger has a look at the {window} window, and its backtest was deleted"
        for window in gone
    ]
    return Check("results on the ledger", tuple(problems), "each is stored")


def _made_by(line: Line, manifest: Mapping[str, Any]) -> bool:
    return (line.look.run, line.look.created) == (manifest.get("name"), manifest.get("created"))
