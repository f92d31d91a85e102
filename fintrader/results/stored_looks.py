"""Looks at stored backtests, and their lines on the ledger (`verdict.looks`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from fintrader.errors import RunError
from fintrader.results.backtest_files import StoredBacktest, read_seal
from fintrader.results.folders import Folder, RunsFolder
from fintrader.verdict.looks import Ledger, Look, Window, explain_missing, result_hash

CHOSEN = ("ensemble", "best")
"""Strategies that the search chose; a look is at their results. The others are baselines."""


def hash_stored_result(stored: StoredBacktest) -> str:
    """Compute `result_hash` of a stored backtest's chosen strategies (if it has none, of its first
    strategy)."""
    daily = stored.daily_returns()
    names = [name for name in CHOSEN if name in daily] or stored.strategies[:1]
    return result_hash({name: daily[name].to_numpy() for name in names})


def find_missing_looks(runs_dir: Path | str) -> tuple[list[str], list[str]]:
    """List the backtests of a runs folder whose looks the ledger lacks, a sentence each.

    Returns two lists: backtests whose lines were deleted here, and backtests on another ledger,
    such as runs made by another user. Raises LedgerError for a broken ledger.
    """
    runs = RunsFolder.at(runs_dir)
    lines = Ledger().lines()
    deleted = list[str]()
    foreign = list[str]()
    for name in runs.names():
        for window in ("test", "validation", "train"):
            inside = ["backtest"] if window == "test" else ["backtest", window]
            try:
                look = read_seal(Folder(runs.run(name).path(*inside))).get("look")
            except RunError:
                continue  # no backtest, or one that `verify` reports
            if isinstance(look, dict) and (problem := explain_missing(lines, look)):
                begun_here = not lines or lines[0]["sha256"] == look.get("ledger")
                (deleted if begun_here else foreign).append(f"{name}, {window} window: {problem}")
    return deleted, foreign


def count_looks(runs: Mapping[str, StoredBacktest]) -> tuple[int, int]:
    """Count the trials and looks behind results that are shown together: the trials of all
    searches, each search counted once, and the different results on their windows, including those
    on the ledger. Raises LedgerError for a broken ledger."""
    searches: dict[Any, int] = {}
    results = set()
    lines = [line for line in Ledger().looks() if line.held_out]
    for name, stored in runs.items():
        context = stored.context
        known = (context.config_hash, context.data_hash, context.seed)
        search = known if context.config_hash else name
        searches[search] = max(searches.get(search, 0), context.trials or 0)
        results.add(hash_stored_result(stored))
        key = context.window_key
        own = next((line.look.bars for line in lines if line.look.bars.key == key), None)
        if own is not None:
            overlaps = cache(own.overlaps)
            results |= {line.look.result for line in lines if overlaps(line.look.bars)}
    return sum(searches.values()), len(results)


def note_shown(stored: StoredBacktest, command: str) -> None:
    """Record a look at a stored backtest that is shown with others, unless the user's ledger has
    its result, as it has for the user's own runs. Raises LedgerError for a broken ledger."""
    ledger = Ledger()
    known = stored.context
    result = hash_stored_result(stored)
    key = known.window_key
    if stored.folder is None or key is None:
        return
    inside = stored.folder.resolve()
    above = (folder for folder in (inside, *inside.parents[:3]))
    home = next((folder for folder in above if (folder / "manifest.json").is_file()), None)
    if home is None:
        return
    if any(line.look.result == result and line.look.bars.key == key for line in ledger.looks()):
        return
    closes = stored.prices.pivot_table(index="session", columns="symbol", values="close_usd")
    minutes = stored.minutes[stored.ends].as_unit("ns").asi8
    bars = Window.of(
        [*map(str, closes)], minutes, closes.to_numpy(float), known.market.is_synthetic
    )
    look = Look(
        kind="compare",
        run=str(known.run),
        created=None,
        folder=home.name,
        seed=known.seed,
        window=known.window if known.window in ("train", "validation") else "test",
        bars=replace(bars, key=key),
        strategies=tuple(name for name in CHOSEN if name in stored.strategies),
        result=result,
        trials=known.trials,
        command=command,
    )
    ledger.record(look)
