"""The live loop over bars with every fault that bars can have, with a clock that passes by
itself."""

import datetime as dt
import itertools

import numpy as np
import pytest

from fintrader.backtesting import simulate
from fintrader.backtesting.limits import LimitSettings
from fintrader.deploy import control
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.entries import BarDecision, Halt, LateBars, Mark
from fintrader.deploy.journal import Journal
from fintrader.errors import DeployError
from tests.engines.deployments import (
    MINUTE,
    alerts,
    equities,
    frozen,
    run_live,
    settings,
)
from tests.quick import slow_but


@pytest.fixture
def deployed(tmp_path):
    """A deployment that has not begun."""
    return tmp_path, *frozen(tmp_path)


def backtested(bundle, market, journal):
    """Decisions before the first whose equity is not the backtest's to the last bit."""
    equity = simulate(bundle.policy, market, bundle.env).equity
    minutes = market.minutes.numpy()
    for number, (bar, known) in enumerate(equities(journal).items()):
        if known != equity[np.searchsorted(minutes, bar)]:
            return number
    return len(equities(journal))


def test_a_live_account_is_the_backtests(deployed):
    _home, bundle, market = deployed
    journal = run_live(*deployed)
    assert backtested(bundle, market, journal) == len(equities(journal)) == 80 // 5 + 1
    assert not alerts(journal)
    # At a session's close, between two decisions, too.
    equity = simulate(bundle.policy, market, bundle.env).equity
    marks = [entry.body for entry in journal.entries(Mark)]
    assert len(marks) >= 2
    assert {mark.bar for mark in marks}.isdisjoint(equities(journal))
    bars = np.searchsorted(market.minutes.numpy(), [mark.bar for mark in marks])
    assert [mark.equity for mark in marks] == equity[bars].tolist()


def doubled(feed, clock):
    feed.doubled = True


def shuffled(feed, clock):
    feed.shuffled = True


@pytest.mark.parametrize("change", slow_but(0, every=[doubled, shuffled]))
def test_bars_that_come_twice_or_in_no_order_change_nothing(deployed, change):
    _home, bundle, market = deployed
    journal = run_live(*deployed, change=change)
    assert backtested(bundle, market, journal) == len(equities(journal))
    assert not alerts(journal)


def test_a_bar_that_is_late_is_kept_and_not_acted_on(deployed):
    _home, bundle, market = deployed
    bar = int(market.minutes[20])

    def late(feed, clock):
        feed.delay[market.symbols[0], bar] = 90 * 1_000_000_000
        feed.delay[market.symbols[0], int(market.minutes[21])] = 90 * 1_000_000_000

    journal = run_live(*deployed, change=late)
    decided = journal.entries(BarDecision)
    assert len(decided) == 17
    assert backtested(bundle, market, journal) >= 4  # everything before it
    late = [entry.body for entry in journal.entries(LateBars)]
    assert [(one.bars, one.symbols) for one in late] == 2 * [(1, market.symbols[:1])]
    stored = {(row[0], row[1]) for row in journal.bars(bar, bar + 1)}
    assert (bar, market.symbols[0]) in stored  # and it came into the books, for whoever looks back


@pytest.mark.parametrize("interval", [1, 5])
def test_a_feed_that_takes_a_bar_to_answer_hides_no_shares(tmp_path, interval):
    bundle, market = frozen(tmp_path, decision_interval=interval)

    def slow(feed, clock):
        poll = feed.poll
        calls = itertools.count()

        def answer(since, now):
            bars = poll(since, now)
            if next(calls) == 8:  # its answer comes after the next bar's close
                clock._now += 15 * MINUTE
            return bars

        feed.poll = answer

    journal = run_live(tmp_path, bundle, market, bars=30, change=slow)
    undisturbed = simulate(bundle.policy, market, bundle.env)
    rows = {int(minute): row for row, minute in enumerate(market.minutes)}
    first, *later = [entry.body for entry in journal.entries(BarDecision)]
    assert not first.shares
    assert all(any(body.shares.values()) for body in later)
    early = [body for body in later if rows[body.bar] < 8]
    assert early
    assert [body.equity for body in early] == undisturbed.equity[
        [rows[body.bar] for body in early]
    ].tolist()


def test_a_correction_is_journalled_and_changes_no_row(deployed):
    _home, bundle, market = deployed
    bar = int(market.minutes[12])

    def corrected(feed, clock):
        feed.corrected[market.symbols[1], bar] = (int(market.minutes[14]), 1.1)

    journal = run_live(*deployed, change=corrected)
    assert backtested(bundle, market, journal) == len(equities(journal))
    close = next(row[5] for row in journal.bars(bar, bar + 1) if row[1] == market.symbols[1])
    assert close == pytest.approx(float(market.close[12, 1]), rel=1e-6)


def test_a_symbol_without_bars_is_carried(deployed):
    _home, _bundle, market = deployed

    def silent(feed, clock):
        feed.dropped |= {(market.symbols[2], int(ts)) for ts in market.minutes[30:60]}

    journal = run_live(*deployed, change=silent)
    assert len(equities(journal)) == 17
    held = {
        e.body.bar: e.body.shares.get(market.symbols[2], 0.0) for e in journal.entries(BarDecision)
    }
    during = {held[bar] for bar in held if int(market.minutes[32]) < bar <= int(market.minutes[59])}
    assert len(during) == 1  # what has no bars is neither bought nor sold


def test_no_bars_at_all_and_nothing_is_ordered(deployed):
    _home, _bundle, market = deployed

    def dark(feed, clock):
        feed.dropped |= {(name, int(ts)) for name in market.symbols for ts in market.minutes[36:48]}

    journal = run_live(*deployed, change=dark, limits=LimitSettings())
    dark_bars = {int(ts) for ts in market.minutes[36:48]}
    decided = [e.body for e in journal.entries(BarDecision) if e.body.bar in dark_bars]
    assert decided
    assert all(not body.orders and "members have bars" in body.why for body in decided)
    assert "held" in alerts(journal)


def test_two_hours_asleep_and_what_was_missed_is_skipped(deployed):
    _home, bundle, market = deployed

    def asleep(feed, clock):
        clock.jumps.append((int(market.minutes[27]), 120 * MINUTE))

    journal = run_live(*deployed, change=asleep)
    decided = sorted(equities(journal))
    assert len(decided) < 17
    assert "missed" in alerts(journal)
    gaps = np.diff(np.searchsorted(market.minutes.numpy(), decided))
    assert set(gaps.tolist()) <= {5, 10, 15}  # it never decides late, only less often
    assert backtested(bundle, market, journal) >= 5


def test_requests_act_and_outlive_the_process(deployed):
    home, _bundle, market = deployed
    run_live(*deployed, bars=30).close()
    control.ask(home, "halt")
    journal = run_live(*deployed, bars=45)
    later = [e.body for e in journal.entries(BarDecision) if e.body.bar > int(market.minutes[30])]
    assert later
    assert all(not body.orders for body in later)
    held = later[-1].shares
    assert held
    journal.close()
    journal = run_live(*deployed, bars=50)  # still halted
    assert not journal.entries(BarDecision)[-1].body.orders
    journal.close()
    control.ask(home, "resume")
    journal = run_live(*deployed, bars=80)
    assert any(
        e.body.orders for e in journal.entries(BarDecision) if e.body.bar > int(market.minutes[50])
    )
    kinds = [entry.kind for entry in reversed(journal.tail(10_000))]
    assert [kind for kind in kinds if kind in ("halt", "resume")] == ["halt", "resume"]


def test_a_loss_halts_it_for_good(tmp_path):
    source = {
        "kind": "synthetic",
        "seed": 3,
        "num_symbols": 5,
        "num_sessions": 60,
        "volatility_bps": 300.0,
    }
    bundle, market = frozen(tmp_path, settings(source=source), trade_rate=1.0)
    journal = run_live(
        tmp_path, bundle, market, limits=LimitSettings(day_loss=0.004, drawdown=0.005)
    )
    halted = journal.last(Halt)
    assert "limit is" in halted.body.why
    after = [e.body for e in journal.entries(BarDecision) if e.seq > halted.seq]
    assert all(not body.orders for body in after)
    assert alerts(journal).count("halt") == 1


@pytest.mark.parametrize(
    ("start", "what"),
    [
        (dt.date(2019, 10, 14), "the end of daylight saving time, and a half day"),
        pytest.param(
            dt.date(2020, 1, 6), "the beginning of daylight saving time", marks=pytest.mark.slow
        ),
    ],
)
def test_clock_changes_and_half_days(tmp_path, start, what):
    source = {"kind": "synthetic", "seed": 3, "num_symbols": 4, "num_sessions": 60}
    bundle, market = frozen(tmp_path, settings(source=source, start=start), decision_interval=7)
    lengths = set(np.bincount(market.session.numpy()).tolist())
    hours = {
        int(ts // (60 * MINUTE)) % 24
        for ts in market.minutes[np.flatnonzero(np.diff(market.session, prepend=-1))]
    }
    assert len(lengths) > 1 or len(hours) > 1, what  # the window holds what this is about
    journal = run_live(tmp_path, bundle, market, bars=market.num_bars - 2)
    assert (
        backtested(bundle, market, journal)
        == len(equities(journal))
        == -(-(market.num_bars - 1) // 7)
    )


@pytest.mark.slow
def test_a_split_over_night(tmp_path):
    source = {
        "kind": "synthetic",
        "seed": 8,
        "num_symbols": 6,
        "num_sessions": 60,
        "events": {"splits": 6},
    }
    bundle, market = frozen(
        tmp_path, settings(source=source, windows={"fractions": [0.3, 0.2, 0.5]})
    )
    inside = market.events.bar[(market.events.bar > 5) & (market.events.bar < market.num_bars - 5)]
    first = int(inside.min())
    journal = run_live(tmp_path, bundle, market, bars=first + 30)
    assert max(equities(journal)) > int(market.minutes[first])
    assert backtested(bundle, market, journal) == len(equities(journal))


def test_a_full_disk_is_one_sentence(deployed):
    home, bundle, market = deployed
    run_live(*deployed, bars=10).close()
    journal = Journal(home / JOURNAL, durable=False)
    journal._base.execute("PRAGMA max_page_count = 1")  # what SQLite says of a disk that is full
    with pytest.raises(DeployError, match="free space"):
        run_live(*deployed, journal=journal)
    journal.close()
    again = run_live(*deployed)
    assert backtested(bundle, market, again) >= 3


def test_the_drift_is_told_after_each_session(deployed):
    _home, bundle, market = deployed
    told = []

    def report():
        told.append(len(told))
        if len(told) == 2:
            raise DeployError("no room")
        return "drift: an alarm" if len(told) == 3 else None

    journal = run_live(*deployed, daily=report)
    assert len(told) == 3  # one of the three ends with a decision
    assert alerts(journal) == ["report", "drift"]  # and it traded on
    assert backtested(bundle, market, journal) == 17
