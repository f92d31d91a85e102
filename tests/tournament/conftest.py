from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fintrader.runs import RunFolder
from fintrader.storage.mirror import mirror_of
from fintrader.tournament.run import TournamentResult, run_tournament
from tests.engines import stubs
from tests.engines.races import settings
from tests.engines.thread_launcher import ThreadLauncher

Race = Callable[..., TournamentResult]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a worker: sums over several threads would run in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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
            body="tests.engines.stubs:body",
            launcher=launcher,
            ensemble=stubs.ensemble,
            **how,
        )

    return run
