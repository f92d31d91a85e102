"""A store that does not answer for a while. Times are those of a test; `operations.outage_seconds`
is an hour."""

import os
import threading
import time

import pytest

from fintrader.errors import StorageOfflineError
from fintrader.storage import lease, objects
from fintrader.storage.mirror import find_mirror
from fintrader.storage.objects import ObjectStore
from fintrader.storage.outages import allow_outages
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.pod import run_pod
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.settings import OperationsSettings
from tests.engines import emptied, outages, stubs
from tests.engines.chaos import events_of, everything
from tests.quick import slow_but


@pytest.fixture
def away(tmp_path, monkeypatch):
    """While this file is there, no store answers. By default one would be given up at once."""
    path = tmp_path / "away"
    monkeypatch.setenv(outages.VARIABLE, str(path))
    monkeypatch.setattr(objects, "PATIENCE_SECONDS", 0.2)
    for name, seconds in {"BEAT_SECONDS": 0.1, "LEASE_SECONDS": 0.3, "LAPSE_SECONDS": 1.0}.items():
        monkeypatch.setattr(lease, name, seconds)
    outages.install()
    yield path
    outages.remove()


class Outage:
    """Begins once so many results are there, and ends after some seconds."""

    def __init__(self, away, results, seconds):
        self.away = away
        self.results = results
        self.seconds = seconds
        self.begun = False

    def __call__(self, orchestrator):
        if not self.begun and len(orchestrator.leaderboard.applied) >= self.results:
            self.begun = True
            self.away.touch()
            ends = threading.Timer(self.seconds, lambda: self.away.unlink(missing_ok=True))
            ends.daemon = True
            ends.start()


@pytest.mark.parametrize("processes", slow_but(0, every=[False, True]))
def test_pods_train_on_and_their_results_are_delivered(race, away, processes, stored_run, url):
    """Ten times as long as a store is waited for by default, and longer than a pod may be
    silent."""
    whole = everything(race("plain", pods=6).folder)
    outage = Outage(away, results=2, seconds=4.0 if processes else 2.0)
    how = {"watch": outage}
    if processes:
        how["body"] = "tests.engines.outages:body"
    race("run", pods=6, processes=processes, how=how, outage_seconds=120.0, patience_seconds=2.5)
    assert outage.begun
    assert everything(stored_run) == whole
    assert not events_of(stored_run, "lost")
    assert len(emptied.results_in(url)) == 6


@pytest.mark.skipif("FINTRADER_OUTAGE_SECONDS" not in os.environ, reason="takes an hour")
@pytest.mark.timeout(7200)
def test_pods_outlast_a_store_that_is_away_for_an_hour(race, monkeypatch, stored_run, tmp_path):
    """With the settings and waits of a real run; FINTRADER_OUTAGE_SECONDS=3500 before a release."""
    away = tmp_path / "away"
    monkeypatch.setenv(outages.VARIABLE, str(away))
    outages.install()
    try:
        whole = everything(race("plain", pods=6).folder)
        outage = Outage(away, results=2, seconds=float(os.environ["FINTRADER_OUTAGE_SECONDS"]))
        defaults = OperationsSettings()
        own = {name: getattr(defaults, name) for name in ("outage_seconds", "patience_seconds")}
        how = {"watch": outage, "body": "tests.engines.outages:body"}
        begun = time.monotonic()
        race("run", pods=6, processes=True, how=how, **own)
    finally:
        outages.remove()
    assert outage.begun
    assert time.monotonic() - begun > outage.seconds
    assert everything(stored_run) == whole
    assert not events_of(stored_run, "lost")


def test_one_that_lasts_too_long_is_one_line_and_nothing_is_lost(race, away, stored_run):
    outage = Outage(away, results=2, seconds=600.0)
    with pytest.raises(StorageOfflineError, match="does not answer") as raised:
        race("run", pods=6, how={"watch": outage}, outage_seconds=0.5)
    assert "\n" not in str(raised.value)
    away.unlink(missing_ok=True)
    assert race("run", pods=6).trials == 6
    assert everything(stored_run) == everything(race("plain", pods=6).folder)


def test_a_result_that_could_not_be_stored_is_not_trained_again(tmp_path, away, stored_run, url):
    """Its process is ended during the outage; the next attempt on that disk only delivers."""
    mirror = find_mirror(stored_run.root)
    spec = stubs.spec(0)
    trained = []

    def body(one, context):
        trained.append(one.pod)
        learned = stubs.body(one, context)
        away.touch()
        return learned

    with pytest.raises(StorageOfflineError):
        run_pod(spec, PodContext(stored_run, stubs.market(tmp_path), mirror), body)
    assert not open_store(stored_run, None).has_result("p0000")
    away.unlink()
    result = run_pod(spec, PodContext(stored_run, stubs.market(tmp_path), mirror), body)
    assert trained == ["p0000"]
    assert ObjectStore(url).exists("pods/p0000/result.json")
    assert open_store(stored_run, mirror).read_result("p0000") == result


def test_whoever_leaves_waits_no_longer(away, tmp_path):
    store = ObjectStore(f"file://{tmp_path}/store")
    problems = []
    away.touch()

    def ask():
        try:
            store.list_names()
        except StorageOfflineError as error:
            problems.append(str(error))

    asking = threading.Thread(target=ask)
    with allow_outages(3600.0):
        asking.start()
        time.sleep(0.5)
        assert asking.is_alive()
    asking.join()
    assert len(problems) == 1
