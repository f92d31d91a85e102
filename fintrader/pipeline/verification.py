"""Verification of a run: recount its tournaments and results, mend them, or race it again."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from fintrader import reproducible
from fintrader.errors import ConfigError, RunError
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline.classic_stages import ENVIRONMENT, hash_market
from fintrader.pipeline.config import load_config, load_config_of_run
from fintrader.pipeline.run_stages import POD_STAGES, search
from fintrader.results.verify import Check, check_run, find_searches
from fintrader.runs import Manifest, RunFolder
from fintrader.tournament.recount import check_tournament, find_tournaments
from fintrader.tournament.repair import repair
from fintrader.tournament.run_tournament import replay
from fintrader.tournament.settings import LauncherSettings, TournamentSettings
from fintrader.tournament.status import compare


def verify_run(home: RunFolder, *, reopen: bool) -> Iterator[Check]:
    """Make the checks of each tournament of a run and, once they have finished, of its results.

    `reopen`: where a tournament fails, let the run's own command go on with it.
    """
    settings, problem = _read_settings(home)
    if problem:
        yield problem
    manifest, problem = _read_manifest(home)
    if problem:
        yield problem
    is_finished = bool(manifest.get("stages", {}).get("tournament", {}).get("done"))
    searches = {run.root for run in find_searches(home)}
    trials = {}
    has_failed = False
    for run in find_tournaments(home):
        recount = check_tournament(
            run, settings, must_be_finished=is_finished and run.root in searches
        )
        trials[run.root] = recount.trials
        has_failed = has_failed or bool(recount.problems)
        place = "" if run.root == home.root else f" of {run.root.relative_to(home.root)}"
        for check in recount.checks:
            yield replace(check, name=f"{check.name}{place}")
    if has_failed and reopen:
        if manifest:
            Manifest.load(home.manifest).reopen(*POD_STAGES)
        return
    if is_finished:
        yield from check_run(
            home,
            manifest,
            trials,
            lambda path: (
                hash_market(path)
                if path.name == ENVIRONMENT
                else MarketTensors.load(path).content_hash()
            ),
        )


def _read_settings(home: RunFolder) -> tuple[TournamentSettings | None, Check | None]:
    """Read the settings of a tournament's run, or of the run that it is a fold or null model of."""
    folders = (home.root, *home.root.absolute().parents[:3])
    holders = (
        folder / "config.yaml"
        for folder in folders
        if all(os.path.lexists(folder / name) for name in ("config.yaml", "manifest.json"))
    )
    path = next(holders, home.config)
    if not os.path.lexists(path):
        return None, None
    try:
        return load_config(path).tournament, None
    except ConfigError as error:
        compares = f"{path} with the settings of this version"
        made_by, _ = _read_manifest(RunFolder(path.parent))
        remedy = (
            f"use the version of fintrader that made the run (commit {made_by.get('commit')}), or"
            " restore the file from a backup if it was edited"
        )
        return None, Check("settings of the run", compares, (str(error),), remedy=remedy)


def _read_manifest(home: RunFolder) -> tuple[Mapping[str, Any], Check | None]:
    if not os.path.lexists(home.manifest):
        return {}, None
    try:
        return Manifest.load(home.manifest).values, None
    except RunError as error:
        remedy = "restore the file from a backup"
        return {}, Check("manifest", "manifest.json with its form", (str(error),), remedy=remedy)


def repair_run(home: RunFolder) -> Iterator[str]:
    """Repair each tournament of a run; yield a sentence on each repair."""
    settings, _ = _read_settings(home)
    for run in find_tournaments(home):
        place = "" if run.root == home.root else f" ({run.root.relative_to(home.root)})"
        for sentence in repair(run, settings):
            yield f"{sentence}{place}"


def check_replay(folder: Path, name: str | None) -> Check:
    """Race a finished run again, with the results that each pod saw then, and compare byte by byte.

    The new run is `name`, or the old name with `-replay`. Raises TournamentError when the run is
    unfinished or lost a pod for good, RunError when the market has changed.
    """
    source = RunFolder(folder.resolve())
    config = load_config_of_run(source.root)
    reproducible.require(config.reproducible)
    manifest = Manifest.load(source.manifest)
    market = Path(manifest.values["market"])
    if not market.is_file() or hash_market(market) != manifest.values["data_hash"]:
        raise RunError(
            f"{market} is not the market this run was made from; run `fintrader data build"
            f" {source.config}`"
        )
    target = RunFolder.named(name or f"{source.root.name}-replay", source.root.parent)
    here = config.model_copy(update={"launcher": LauncherSettings()})
    with target.lock():
        search(here, target, market, race=partial(replay, source))
    return Check(
        "replay",
        f"specs, results and leaderboard with those of the same race run again in {target.root}",
        compare(source, target),
        "equal, byte for byte",
        "wall-clock budgets and GPUs do not repeat themselves; where the run has neither, code,"
        " packages or processor have changed since",
    )
