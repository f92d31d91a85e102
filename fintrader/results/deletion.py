"""Deletion of a run: a rename hides it from every list, then its files go; its looks still
count.

    runs/.deleted-<name>-<ns>     a run that is being deleted

A deletion killed between the two steps leaves such a folder; no list shows it, and the next
deletion removes it. The ledger of looks is outside the run's folder and keeps its looks. Looks that
this ledger lacks, at results from another runs folder, are recorded first."""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress

from fintrader.errors import RunError
from fintrader.numerals import format_count
from fintrader.results.backtest_files import read_backtest
from fintrader.results.folders import Folder, RunsFolder, is_file_locked, is_locked
from fintrader.results.notes import check_writable
from fintrader.results.stored_looks import note_shown
from fintrader.runs import RunFolder
from fintrader.system import sync
from fintrader.verdict.looks import Ledger, LedgerError

TOMBSTONE = ".deleted-"
_MARKS = ("manifest.json", "config.yaml", "tournament.json")


def describe_loss(runs: RunsFolder, name: str) -> str:
    """State what deleting a run would lose, and what stays. Raises RunError when it cannot be
    deleted (see `delete_run`)."""
    folder = _check_deletable(runs, name)
    files = size = 0
    for above, _, names in os.walk(folder.root):
        files += len(names)
        for file in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(above, file)).st_size
    text = f"{format_count(files, 'file')} ({size / 1e6:,.1f} MB) go for good"
    pods = len(folder.folders("pods"))
    if pods:
        text += f", the networks, curves and results of {format_count(pods, 'pod')} among them"
    run = name, folder.json("manifest.json").get("created") if _has_manifest(folder) else None
    looks = sum(
        line.held_out and (line.look.run, line.look.created) == run for line in Ledger().looks()
    )
    theirs = f"its {format_count(looks, 'look')} on the ledger, which still count"
    return (
        f"{text}. These stay: {theirs if looks else 'the ledger of looks'}, built markets, and"
        " deployments that were made from it."
    )


def delete_run(runs: RunsFolder, name: str) -> None:
    """Delete a run for good, and finish earlier deletions.

    Raises UnsafePathError for a name that leads out of the runs folder or to a link, and RunError
    if it is not a run, is at work, is a copy from a store or read-only, or if the ledger is broken.
    """
    sweep(runs)
    folder = _check_deletable(runs, name)
    with RunFolder(folder.root).lock():
        _keep_looks(folder)
        grave = runs.root / f"{TOMBSTONE}{name}-{time.time_ns()}"
        try:
            os.rename(folder.root, grave)
        except OSError as error:
            raise RunError(
                f"{name} cannot be deleted ({error.strerror}); {runs.root} must be writable"
            ) from None
        with suppress(OSError):
            sync(runs.root)
        shutil.rmtree(grave, ignore_errors=True)  # another deletion may run too
        if grave.exists():
            raise RunError(
                f"the run is no longer listed, but {grave} could not be fully removed; remove it"
                " by hand"
            )


def sweep(runs: RunsFolder) -> None:
    """Finish deletions that were killed, as far as their files can be removed."""
    for name in runs.folders():
        if name.startswith(TOMBSTONE):
            shutil.rmtree(runs.path(name), ignore_errors=True)


def _check_deletable(runs: RunsFolder, name: str) -> Folder:
    folder = runs.run(name)
    if any(_has_manifest(Folder(above)) for above in (runs.root, *runs.root.parents[:2])):
        raise RunError(f"{folder.root} is part of a run; delete the whole run instead")
    # A run that has lost its manifest still has its lock and another file.
    is_run = folder.exists(".lock") and any(map(folder.exists, _MARKS))
    if not is_run and not _has_manifest(folder):
        raise RunError(f"{folder.root} does not look like a run's folder; remove it by hand")
    check_writable(folder)
    if is_locked(folder):
        raise RunError(f"{name} is at work; wait for its end or stop it first")
    orphans = [
        pod for pod in folder.folders("pods") if is_file_locked(folder, "pods", pod, ".lock")
    ]
    if orphans:
        raise RunError(
            f"{name} was killed, and pods still train: {', '.join(orphans)}; run its command again"
            " and stop it (Ctrl-C), or wait for `operations.patience_seconds`"
        )
    return folder


def _has_manifest(folder: Folder) -> bool:
    try:
        return str(folder.json("manifest.json").get("format")).startswith("fintrader-run-")
    except RunError:
        return False


def _keep_looks(folder: Folder) -> None:
    """Record looks at the stored results that the ledger lacks. Raises LedgerError for a broken
    ledger."""
    Ledger().lines()
    for inside in ((), ("validation",), ("train",)):
        try:
            home = folder.path("backtest", *inside)
            if (home / "metrics.json").is_file():
                note_shown(read_backtest(home), f"delete {folder.root.name}")
        except LedgerError:
            raise
        except RunError:
            continue  # a damaged result is not a look
