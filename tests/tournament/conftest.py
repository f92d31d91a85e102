from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fintrader.runs import RunFolder
from fintrader.storage.mirror import mirror_of
from fintrader.tournament.run import TournamentResult, run_tournament
from fintrader.tournament.search_space import Range
from fintrader.tournament.settings import TournamentSettings
from tests.engines.thread_launcher import ThreadLauncher
from tests.tournament import stubs

Race = Callable[..., TournamentResult]
ORDER = TournamentSettings().order
SEARCH = {"learning_rate": Range(low=1e-5, high=1e-1, log=True), "width": Range(choices=(4, 8, 16), structural=True)}


def settings(**changes: Any) -> TournamentSettings:
    """Small, and the same on every run; tests of the default order ask for it (`order=ORDER`)."""
    values: dict[str, Any] = {"pods": 8, "search": SEARCH, "devices": ("cpu",), "founders": 2, "order": "submission"}
    return TournamentSettings(**{**values, **changes})


@pytest.fixture
def race(tmp_path: Path) -> Race:
    """A tournament of stub pods: in threads of this process, or (`processes=True`) in spawned ones."""

    def run(
        name: str = "run",
        *,
        seed: int = 1,
        processes: bool = False,
        workers: int = 2,
        body: Any = stubs.body,
        how: dict[str, Any] | None = None,
        **changes: Any,
    ) -> TournamentResult:
        folder = RunFolder(tmp_path / name)
        how = dict(how or {})
        launcher = None if processes else ThreadLauncher(folder, tmp_path, body, workers=workers)
        launcher = how.pop("launcher", launcher)
        return run_tournament(
            settings(workers=workers, **changes),
            folder=folder,
            mirror=mirror_of(folder.root),
            market=stubs.market(tmp_path),
            agent=stubs.StubAgent(),
            seed=seed,
            body="tests.tournament.stubs:body",
            launcher=launcher,
            ensemble=stubs.ensemble,
            **how,
        )

    return run
