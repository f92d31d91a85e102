"""Bids, asks and stops at the venues: replaced without a share twice, through kills, lost answers
and races."""

import itertools
import random

import pytest

pytest.importorskip("alpaca", reason="alpaca-py is not installed")
pytest.importorskip("ccxt", reason="ccxt is not installed")

from fintrader.deploy.journal import Journal
from tests.engines.alpaca_loopback import TRANSIENT
from tests.engines.order_driver import Boundaries, Crash
from tests.engines.resting_driver import Venue, find_problems, trade

VENUES = ("alpaca", "binance")


def session_of(broker):
    client = broker._client
    return client._session if broker.kind == "alpaca" else client.session


def live(venue, folder, kill_at=0, **how):
    """One life, killed at a request's boundary (0: none); the boundaries it passed, or -1."""
    boundaries = Boundaries(kill_at, by_signal=False)
    with Journal(folder / "journal.sqlite", durable=False) as journal:
        broker = venue.connect(0.5)
        session = session_of(broker)
        session.request = boundaries.around(session.request)
        try:
            assert trade(venue, journal, broker, **how) == []
        except Crash:
            return -1
        finally:
            session.close()
        assert find_problems(venue, journal) == []
    return boundaries.passed


@pytest.mark.parametrize("name", VENUES)
def test_decisions_replace_what_rests(tmp_path, name):
    venue = Venue(name)
    with venue.server:
        live(venue, tmp_path)


def kill_at_each(name, root, step):
    """A life killed at every so-manyeth boundary of a request, and the next one to the end."""
    whole = root / "whole"
    whole.mkdir()
    venue = Venue(name)
    with venue.server:
        passed = live(venue, whole)
    for kill_at in range(1, passed + 1, step):
        folder = root / str(kill_at)
        folder.mkdir()
        venue = Venue(name)
        with venue.server:
            assert live(venue, folder, kill_at) == -1, kill_at
            live(venue, folder)


@pytest.mark.parametrize(("name", "step"), [("alpaca", 61), ("binance", 431)])
def test_a_kill_at_some_requests_trades_no_share_twice(tmp_path, name, step):
    kill_at_each(name, tmp_path, step)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "step"), [("alpaca", 1), ("binance", 3)])
def test_a_kill_at_each_request_trades_no_share_twice(tmp_path, name, step):
    kill_at_each(name, tmp_path, step)


FAULTS = [fault for fault in TRANSIENT if not fault.startswith("hang")]


@pytest.mark.parametrize(("name", "seed"), [*itertools.product(VENUES, range(2))])
def test_lost_answers_and_kills_in_the_middle_of_a_replacement_trade_no_share_twice(
    tmp_path, name, seed
):
    """A fifth of the requests fail, are put off (429), or arrive without an answer."""
    check_faults(tmp_path, name, seed)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed"), [*itertools.product(VENUES, range(2, 20))])
def test_many_lost_answers_and_kills_trade_no_share_twice(tmp_path, name, seed):
    check_faults(tmp_path, name, seed)


def check_faults(folder, name, seed):
    draw = random.Random(f"{name} {seed}")
    # Binance takes no request that is older than five seconds.
    kinds = [fault for fault in FAULTS if name == "alpaca" or fault != "reset_late"]
    plan = {number: draw.choice(kinds) for number in range(1, 4000) if draw.random() < 0.2}
    venue = Venue(name, faults=plan)
    with venue.server:
        for _ in range(60):
            kill_at = draw.randrange(1, 800) if draw.random() < 0.7 else 0
            if live(venue, folder, kill_at, times=3) >= 0:
                break
        else:
            raise AssertionError("it never ended")
    assert len(venue.server.fired) > 20
