import pytest

from fintrader.files import write_text
from fintrader.pipeline import evaluation
from fintrader.pipeline.config import RunConfig
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


def leave_blank(patch):
    patch.setattr(evaluation, "write_report", lambda path, *_: write_text(path, "not drawn"))


@pytest.fixture
def blank_reports(monkeypatch):
    """Backtests leave a page without content: to draw the report takes longer than all else that a
    tiny run does."""
    leave_blank(monkeypatch)


@pytest.fixture(scope="module")
def no_reports():
    """`blank_reports` for all tests of a module and the run that they share."""
    with pytest.MonkeyPatch.context() as patch:
        leave_blank(patch)
        yield
