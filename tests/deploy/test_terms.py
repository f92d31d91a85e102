"""A deployment goes on as it began, or not at all."""

import pytest

from fintrader.backtesting.limits import LimitSettings
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.deployment import _check_terms
from fintrader.deploy.entries import DeploymentStart
from fintrader.deploy.journal import Journal
from fintrader.deploy.settings import PaperSettings
from fintrader.errors import DeployError


def test_other_terms_need_another_name(tmp_path):
    began = PaperSettings()
    with Journal(tmp_path / JOURNAL) as journal:
        _check_terms(journal, PaperSettings(feed="alpaca"), tmp_path)  # nothing has begun
        journal.write(
            DeploymentStart(0, "0a1b2c3d", "replay", "simulated", began.limits, 1e6), at=1
        )
        _check_terms(journal, began, tmp_path)
        for other, term in (
            (PaperSettings(feed="alpaca"), "feed"),
            (PaperSettings(broker="alpaca"), "broker"),
            (PaperSettings(limits=LimitSettings(weight=0.5)), "limits"),
        ):
            with pytest.raises(DeployError, match=f"another {term}"):
                _check_terms(journal, other, tmp_path)
        _check_terms(journal, PaperSettings(broker="alpaca", role="challenger"), tmp_path)


def test_a_run_has_names_for_each_of_its_deployments():
    names = [
        PaperSettings(),
        PaperSettings(feed="alpaca"),
        PaperSettings(feed="alpaca", broker="alpaca"),
    ]
    assert [one.suffix for one in names] == ["", "-shadow", "-paper"]
