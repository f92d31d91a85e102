import pytest

from fintrader.pipeline import RunConfig
from fintrader.tournament.pod_training import train_and_evaluate
from tests.engines.thread_launcher import ThreadLauncher


@pytest.fixture(scope="module")
def in_this_process():
    """Tournaments of a run train their pods, one after the other, in a thread of this process."""

    def threads(settings, access):
        return ThreadLauncher(
            access.run, access.market, train_and_evaluate, workers=1, token=access.token
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunConfig, "make_launcher", lambda self: threads)
        yield
