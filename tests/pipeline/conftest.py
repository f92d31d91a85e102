from __future__ import annotations

from collections.abc import Iterator

import pytest

from fintrader.pipeline import RunConfig
from fintrader.tournament.pod_training import train_and_evaluate
from fintrader.tournament.settings import TournamentSettings
from fintrader.tournament.spec import PodContext
from tests.engines.thread_launcher import ThreadLauncher


@pytest.fixture(scope="module")
def in_this_process() -> Iterator[None]:
    """Tournaments of a run train their pods, one after the other, in a thread of this process."""

    def threads(settings: TournamentSettings, access: PodContext) -> ThreadLauncher:
        return ThreadLauncher(
            access.run, access.market, train_and_evaluate, workers=1, token=access.token
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunConfig, "make_launcher", lambda self: threads)
        yield
