"""Market years of the real runner in an independent world, every kind of event beside every
other."""

import itertools
import os
from collections import Counter
from dataclasses import replace

import pytest

from fintrader.backtesting.limits import Clipped
from fintrader.deploy.broker import OrderReport
from fintrader.deploy.entries import Halt, Resumption
from fintrader.deploy.journal import Journal
from tests.engines import market_life_events as events
from tests.engines.market_life import HOUR, MINUTE, MONTH, SECOND, YEAR
from tests.engines.market_life_run import Life, freeze_life
from tests.engines.resting_life import RestingLife, freeze_resting_life
from tests.quick import slow_but

KINDS = [*events.KINDS]
SESSIONS = int(os.environ.get("FINTRADER_LIFE_SESSIONS", "3000"))
"""Sessions of the long run; 40,000 in `make test-all`, which then holds each pair ten times."""
MINUTE_SESSIONS = int(os.environ.get("FINTRADER_LIFE_MINUTE_SESSIONS", "20"))
"""Sessions of minutes through HTTP; 500 in `make test-all`."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    return freeze_life(tmp_path_factory.mktemp("life"))


def test_market_years_with_every_kind_of_event(bundle, tmp_path):
    years = events.live_years(range(40, 46), tmp_path, bundle, KINDS)
    assert years.sessions == 6 * YEAR == 1_500
    # A year holds at most one stock that goes.
    assert set(KINDS) - {"symbol_change", "delisting"} <= set(years.events)


@pytest.mark.slow
def test_months_in_which_one_stock_goes_and_another_gets_a_new_name(bundle, tmp_path):
    gone = set()
    for seed in range(3):
        month = {"events": events.draw_month(seed), "sessions": MONTH, "most_gone": 2}
        life = Life(seed, tmp_path / str(seed), bundle, **month).run()
        assert life.problems == []
        gone |= {name for _, name in life.happened}
    assert {"delisting", "symbol_change"} <= gone


@pytest.mark.slow
def test_long_lives_hold_each_pair_of_events(bundle, tmp_path):
    years = events.live_years(range(100, 100 + SESSIONS // YEAR), tmp_path, bundle, KINDS)
    # Of those whose stock goes a year holds one: see `draw_month`.
    kinds = sorted({*KINDS, *events.OF_THE_CALENDAR} - {"symbol_change", "delisting"})
    least = 10 if years.sessions >= 40_000 else 1
    rare = {
        pair: years.pairs[pair]
        for pair in itertools.combinations(kinds, 2)
        if years.pairs[pair] < least
    }
    assert rare == {} or years.sessions < 40_000
    # The first years import, compile and fill caches; then less than a MiB a year.
    grown = years.memory_mib[-1] - years.memory_mib[min(4, len(years.memory_mib) - 1)]
    assert grown < 60 + len(years.memory_mib)


@pytest.mark.slow
def test_a_seed_lives_the_same_year_again(bundle, tmp_path):
    lives = []
    for place in ("one", "other"):
        life = events.live_year(1, tmp_path / place / "life", bundle, KINDS, 25)
        tickets = [(t.symbol, t.sent, t.filled, t.paid) for t in life.world.tickets.values()]
        lives.append((life.happened, tickets, life.heard, life.world.ledger))
    assert lives[0] == lives[1]


# --- the simulator finds what is wrong ------------------------------------------------------------


def doubled(runner):
    """Every tenth order leaves twice."""
    submit = runner.broker.submit
    numbers = itertools.count(1)

    def twice(order):
        if next(numbers) % 10 == 0:
            submit(replace(order, id=f"{order.id}2"))
        return submit(order)

    runner.broker.submit = twice


def unjournalled(runner):
    """Fills of one symbol are not written down."""
    write = runner.journal.write

    def forgetful(*records, at):
        is_fill = [isinstance(record, OrderReport) and record.filled for record in records]
        kept = [
            record
            for record, is_filled in zip(records, is_fill, strict=True)
            if not (is_filled and record.symbol == "S003")
        ]
        write(*kept, at=at)

    runner.journal.write = forgetful


def in_old_shares(runner):
    """Orders of the evening leave in the shares of before a split."""
    begin = runner._open_execution

    def begin_unscaled():
        execution = begin()
        execution.rescale = lambda *args, **named: None
        return execution

    runner._open_execution = begin_unscaled


def unlimited(runner):
    """No limit holds."""
    runner.limits.clip = lambda orders, *rest: Clipped(orders, ())


def deaf(runner):
    """A halt is written down, and nobody hears of it."""
    runner.alerts.send = lambda alert: True


@pytest.mark.parametrize(
    ("plant", "kinds", "problem"),
    slow_but(
        0,
        1,
        3,
        5,
        every=[
            (doubled, [], "are explained"),
            (unjournalled, [], "false halt"),
            (in_old_shares, ["reverse_split"], "are explained"),
            (in_old_shares, ["split"], "are due"),
            (unlimited, [], "are explained"),
            (deaf, ["operator_halt"], "nobody heard of the halt"),
        ],
    ),
)
def test_a_planted_fault_is_found(bundle, tmp_path, plant, kinds, problem):
    drawn = events.draw_events(3, kinds, 0.5)
    # The unwritten fills of more sessions cost minutes.
    sessions = 3 if plant is unjournalled else 12
    terms = {"sessions": sessions, "begin_minutes": 180, "enough": 1}
    life = Life(3, tmp_path, bundle, events=drawn, change=plant, **terms).run()
    assert any(problem in line for line in life.problems), life.problems


# --- one fault each -------------------------------------------------------------------------------


def ask_in_turn(*requests):
    """An event: a person asks so, ten seconds apart, an hour after the open."""

    def event(life, session):
        for number, request in enumerate(requests):
            moment = session.open + HOUR + 10 * number * SECOND
            life.world.at(moment, lambda request=request: life.ask(request))

    return event


def test_a_halt_in_the_words_of_the_last_one_is_told_again(bundle, tmp_path):
    asked = [(day, "operator_halt", ask_in_turn("halt")) for day in (1, 4)]
    life = Life(5, tmp_path, bundle, sessions=7, events=asked)
    assert life.run().problems == []


def test_a_halt_within_a_minute_of_another_is_told(bundle, tmp_path):
    asked = [(2, "two_operators", ask_in_turn("halt", "resume", "flatten"))]
    life = Life(5, tmp_path, bundle, sessions=6, events=asked)
    assert life.run().problems == []


@pytest.mark.slow
def test_a_flatten_that_cannot_end_says_so_every_minute(bundle, tmp_path):
    def halt_trading(life, session):
        for stock in life.world.stocks.values():
            stock.halts.append((session.open + HOUR, session.close))
        ask_in_turn("flatten")(life, session)

    life = Life(5, tmp_path, bundle, sessions=5, events=[(3, "flatten", halt_trading)]).run()
    session = life.traded[3]
    told = [at for at, alert in life.heard if alert.kind == "flatten"]
    inside = [at for at in told if session.open + HOUR <= at < session.close]
    assert len(inside) >= (session.close - session.open - HOUR) // MINUTE - 2


def test_a_stock_that_is_halted_for_days_fills_the_limit_on_all_positions(bundle, tmp_path):
    """Its last price counts: of this seed's year the first days hold such a halt."""
    assert events.live_year(109, tmp_path, bundle, KINDS, 18).problems == []


@pytest.mark.parametrize("drift", [-250, -1200])
def test_the_close_of_a_session_counts_among_the_losses(bundle, tmp_path, drift):
    """Prices fall in all bars of a day: a small fall halts at the close, after the day's decision;
    after a large one the losses to the close are no losses of the next day."""

    def fall(life, session):
        life.world.at(session.open - HOUR, lambda: setattr(life.world, "drift", drift))
        life.world.at(session.close + HOUR, lambda: setattr(life.world, "drift", 0))

    crash = [(6, "crash", fall)]
    life = Life(5, tmp_path, bundle, sessions=10, events=crash, begin_minutes=60).run()
    assert life.problems == []
    with Journal(tmp_path / "journal.sqlite", reading=True) as journal:
        (halt,) = journal.entries(Halt)
        assert "since the session before" in halt.body.why
        assert journal.last(Resumption) is not None


# --- through HTTP ---------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("minutes", "interval", "sessions", "seed"),
    [(130, 3, 12, 1), *((1, 195, 20, seed) for seed in range(1, 1 + MINUTE_SESSIONS // 20))],
)
def test_lives_through_alpaca_py(tmp_path, minutes, interval, sessions, seed):
    pytest.importorskip("alpaca", reason="alpaca-py is missing: pip install 'fintrader[alpaca]'")
    from tests.engines.market_life_http import live_over_http

    bundle = freeze_life(tmp_path / "bundle", bar_minutes=minutes, interval=interval)
    drawn = events.draw_events(seed, KINDS, 0.4)
    life = Life(seed, tmp_path / "life", bundle, sessions=sessions, events=drawn)
    assert live_over_http(life).problems == []
    assert len(life.world.tickets) > sessions


# --- orders that rest -----------------------------------------------------------------------------


def live_resting(folder, seeds, sessions, run=RestingLife.run):
    bundle = freeze_resting_life(folder / "bundle")
    seen = Counter()
    for seed in seeds:
        drawn = events.draw_events(seed, KINDS, 0.4)
        life = RestingLife(seed, folder / str(seed), bundle, sessions=sessions, events=drawn)
        assert run(life).problems == []
        seen += life.covered
    assert {"limit accepted", "stop accepted", "whole"} <= set(seen)


@pytest.mark.slow
def test_weeks_of_bids_asks_and_stops_with_every_kind_of_event(tmp_path):
    live_resting(tmp_path, [2], 15)


@pytest.mark.slow
def test_months_of_bids_asks_and_stops_with_every_kind_of_event(tmp_path):
    live_resting(tmp_path, range(5, 9), 60)


@pytest.mark.slow
def test_weeks_of_bids_asks_and_stops_through_alpaca_py(tmp_path):
    pytest.importorskip("alpaca", reason="alpaca-py is missing: pip install 'fintrader[alpaca]'")
    from tests.engines.market_life_http import live_over_http

    live_resting(tmp_path, [2, 3], 15, live_over_http)
