"""The rows of a live decision are those of a build of the bars received so far, bit for bit."""

from dataclasses import replace

import numpy as np
import pytest

from fintrader.bars.bars import concat
from fintrader.bars.calendar import session_grid
from fintrader.bars.corporate_actions import Action
from fintrader.deploy.feed import ReplayFeed
from fintrader.deploy.rows import RecentMarket
from fintrader.errors import DataError
from fintrader.market.build import make_market
from tests.engines.deployments import MINUTE, settings
from tests.quick import slow_but

EVENTS = {"splits": 2, "dividends": 3, "halts": 4}
FAULTY = {"missing": 0.15, "events": EVENTS, "num_symbols": 6, "num_sessions": 60}
EVERY = {
    "names": [
        *("return_1", "gap", "gap_3", "intraday", "intraday_2", "volatility_26", "volume_26"),
        *("relative_volume_3", "rsi_2", "cci_20", "dx_3", "macd", "bollinger_upper"),
        *("bollinger_lower", "sma_26", "age_30", "beta_40"),
    ],
    "context": ["time_of_day", "time_to_close", "turbulence_8", "index_return_5"],
}


class Live:
    """A live market of received bars, and the same built anew at each bar."""

    def __init__(self, folder, data, *, lookback=1):
        self.data = data
        market = make_market(data)
        self.symbols = market.symbols
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "market.safetensors"
        market.save(self.path)
        self.feed = ReplayFeed(data, market.symbols)
        days = market.timestamps()[[0, -1]].astype("datetime64[D]").tolist()
        self.grid = session_grid(data.calendar, *days, data.bar_minutes)
        self.lookback = lookback
        self.received = []
        # More than the prices hold: rows must be the same, whether or not they make sense.
        more = [
            Action(symbol=symbol, day=day, split=split, dividend_usd=paid)
            for symbol, day, split, paid in zip(
                market.symbols * 3,
                self.grid.dates[30::3].tolist(),
                [2, 1, 0.5] * 6,
                [0, 0.4, 1] * 6,
                strict=False,
            )
        ]
        self.actions = (*self.feed.actions(*days), *more)
        self.fast = self.open()
        self.slow = self.open(anew=True)
        self.since = 0

    def open(self, *, anew=False):
        found = RecentMarket(
            self.data,
            self.symbols,
            self.path,
            companies={},
            warm_up_sessions=None,
            lookback=self.lookback,
        )
        found.actions = self.actions
        found.level = self.feed.level(self.grid)
        found._is_plain &= not anew
        for bars in self.received:
            found.history.add(bars)
        return found

    def receive(self, bar, change=lambda bars: bars):
        """Receive the bars until the close of a bar of the grid."""
        stop = int(self.grid.minutes[bar]) + self.grid.bar_minutes * MINUTE
        bars = change(self.feed.history(self.since, stop))
        self.since = stop
        self.received.append(bars)
        self.fast.history.add(bars)
        self.slow.history.add(bars)

    def compare(self, bar, since=0):
        """Compare every array of the two, and the features of the bars that are shown."""
        mine, row = self.fast.at(self.grid, bar, since)
        theirs, at = self.slow.at(self.grid, bar)
        skipped = at - row
        rows = slice(skipped, skipped + mine.num_bars)
        shown = slice(max(row + 1 - self.lookback, 0), row + 1)
        expected = dict(theirs.arrays())
        for name, values in mine.arrays():
            wanted = expected[name][rows].numpy()
            found = values.numpy()
            if name in ("features", "context"):
                found = found[shown]
                wanted = wanted[shown]
            if name == "session":
                found = found - found[0]
                wanted = wanted - wanted[0]
            np.testing.assert_array_equal(found, wanted, f"{name} at bar {bar}")
        for mine_, theirs_ in zip(
            mine.events, theirs.events.within(rows.start, rows.stop), strict=True
        ):
            assert mine_.tolist() == theirs_.tolist()
        return mine, row


CASES = {
    "every feature": ({"source": FAULTY, "features": EVERY}, {}),
    "lookback": ({"source": FAULTY, "features": EVERY}, {"lookback": 40}),
    "across members": ({"source": FAULTY, "features": {**EVERY, "scaling": "rank"}}, {}),
    "half days": (
        {"source": FAULTY | {"seed": 9}, "start": "2019-10-01", "features": EVERY},
        {},
    ),
    "a column of the bars": (
        {"source": FAULTY | {"planted": {"drift_bps": 5}}, "features": EVERY},
        {},
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_rows_are_those_of_a_build(tmp_path, case):
    data, changes = CASES[case]
    live = Live(tmp_path, settings(**data), **changes)
    first = 26 * (live.fast.history_sessions + 2)
    events = 0
    for bar in [*range(first, first + 40), *range(first + 40, 26 * 45, 17)]:
        live.receive(bar)
        market, _ = live.compare(bar)
        events += len(market.events.bar)
    assert live.fast._recent.is_whole
    assert events > 5


def test_late_and_lost_bars_leave_the_rows_of_a_build(tmp_path):
    live = Live(tmp_path, settings(source=FAULTY, features=EVERY))
    random = np.random.default_rng(0)
    held = []
    first = 26 * (live.fast.history_sessions + 2)

    def delay(bars):
        """Lose some bars, and give some a bar or a night later."""
        lost = random.random(len(bars)) < 0.05
        late = ~lost & (random.random(len(bars)) < 0.2)
        held.append(bars.take(late))
        parts = [bars.take(~lost & ~late)]
        if random.random() < 0.7:
            parts += held[:-1]
            del held[:-1]
        return concat([part for part in parts if len(part)] or parts[:1])

    live.receive(first - 1)
    rewritten = 0
    for bar in range(first, first + 30):  # a night among them
        live.receive(bar, delay)
        live.compare(bar)
        rewritten += live.fast._recent.changed < live.fast._recent.size - 1
    assert rewritten > 5


def test_bars_next_to_a_wrong_one_are_not_lost(tmp_path):
    live = Live(tmp_path, settings(source=FAULTY, features=EVERY))
    first = 26 * (live.fast.history_sessions + 2)
    live.receive(first)
    live.compare(first)

    def spoil(bars):
        low = bars.low.copy()
        low[0] = -1.0
        return replace(bars, low=low)

    live.receive(first + 1, spoil)
    for bar in (first + 1, first + 2):
        with pytest.raises(DataError, match=r"-1\.0 is no price"):
            live.fast.at(live.grid, bar)
        live.receive(bar + 1)


def test_a_restart_and_missed_decisions_change_no_row(tmp_path):
    live = Live(tmp_path, settings(source=FAULTY, features=EVERY))
    for bar in (26 * 25 + 3, 26 * 25 + 4, 26 * 27 + 25, 26 * 28, 26 * 40, 26 * 40 + 9, 26 * 58):
        live.receive(bar)
        live.compare(bar)
        live.fast = live.open()
        market, row = live.compare(bar, since=int(live.grid.minutes[bar - 60]))
        assert row == 60
        assert int(market.minutes[row]) == int(live.grid.minutes[bar])
        if bar == 26 * 28:  # an earlier bar again, as where a process begins with one
            live.fast.at(live.grid, bar - 5)
            live.compare(bar)


@pytest.mark.slow
def test_a_symbol_that_stops_trading_and_begins_again(tmp_path):
    live = Live(tmp_path, settings(source=FAULTY, features=EVERY))
    name = live.symbols[2]
    first = 26 * (live.fast.history_sessions + 2)
    gone = range(first + 10, first + 10 + 26 * 3)

    def stop(bars):
        return bars.take(np.array(bars.symbols)[bars.symbol] != name)

    ended = 0
    live.receive(first - 1)
    for bar in range(first, gone.stop + 40):
        live.receive(bar, stop if bar in gone else lambda bars: bars)
        if bar % 3 == 0:
            market, _ = live.compare(bar)
            ended += bool(market.close[-1, 2].isnan())
    assert ended > 5
    assert not market.close[-1, 2].isnan()


@pytest.mark.parametrize(
    ("bar_minutes", "lookback"), slow_but(2, every=[(78, 1), (195, 20), (390, 1)])
)
def test_turbulence_is_known_at_the_opening_of_a_session(tmp_path, bar_minutes, lookback):
    """Symbols are silent for days, return in the middle of one, and decisions are missed."""
    features = {"names": ["return_1"], "context": ["turbulence_8"]}
    source = {**FAULTY, "num_symbols": 3, "events": {"halts": 3}}
    data = settings(bar_minutes=bar_minutes, source=source, features=features)
    live = Live(tmp_path, data, lookback=lookback)
    random = np.random.default_rng(1)
    length = 390 // bar_minutes
    first = length * (live.fast.history_sessions + 2) + lookback
    silent = random.random((first + 200, 3)) < 0.3

    def drop(bars):
        at = live.grid.locate(bars.ts)
        day = live.grid.session[at]
        begins = at - live.grid.first_bar[day] >= random.integers(length, size=len(bars))
        return bars.take(~silent[day, bars.symbol] | (begins & (random.random(len(bars)) < 0.2)))

    bar = first
    while bar < live.grid.num_bars - 1:
        live.receive(bar, drop)
        if random.random() < 0.3:
            live.fast = live.open()
        live.compare(bar)
        bar += int(random.choice([1, length - 1, length, 3 * length]))


@pytest.mark.slow
def test_a_symbol_that_is_listed_later_waits_for_its_history(tmp_path):
    source = FAULTY | {"events": {"late_listings": 1}}
    live = Live(tmp_path, settings(source=source, features=EVERY))
    listed = np.isfinite(make_market(live.data).close.numpy()).all(axis=1).argmax()
    live.receive(26 * 25)
    with pytest.raises(DataError, match="no bars of"):
        live.fast.at(live.grid, 26 * 25)
    whole = []
    for bar in range(max(int(listed), 26 * 24), 26 * 59, 19):
        live.receive(bar)
        live.compare(bar)
        whole.append(live.fast._recent.is_whole)
    assert not whole[0]
    assert whole[-1]


@pytest.mark.slow
def test_minutes_of_a_day_of_a_faulty_market(tmp_path):
    source = {**FAULTY, "num_sessions": 26}
    names = ["return_30", "gap_2", "volatility_390", "relative_volume_30", "beta_60", "rsi_5"]
    data = settings(bar_minutes=1, source=source, features={"names": names})
    live = Live(tmp_path, data)
    first = 390 * 20 + 380
    live.receive(first)
    for bar in (*range(first, first + 25), first + 200, first + 389, first + 391):
        live.receive(bar)
        live.compare(bar)


def test_the_sessions_kept_do_not_grow(tmp_path):
    live = Live(tmp_path, settings(source=FAULTY, features=EVERY))
    sizes = set()
    for bar in range(26 * 25, 26 * 58, 26):
        live.receive(bar)
        live.fast.at(live.grid, bar)
        sizes.add(live.fast._recent._columns["close"].shape[1])
        rooms = {len(rows.ts) for rows in live.fast.history._rows.values()}
        assert max(rooms) < 4 * 26 * live.fast.history_sessions
    assert len(sizes) == 1


def test_an_old_bar_lengthens_the_window(tmp_path):
    """A shadow whose last decision is older than what the features read."""
    live = Live(tmp_path, settings(source=FAULTY, features=EVERY))
    begin = 26 * (live.fast.history_sessions + 1)
    live.receive(begin)
    since = int(live.grid.minutes[begin])
    for bar in range(begin, begin + 26 * (live.fast.sessions + 4), 26):
        if bar > begin:
            live.receive(bar)
        market, row = live.fast.at(live.grid, bar, since)
        assert int(market.minutes[row - (bar - begin)]) == since
        live.fast.find_faults(live.grid, bar)
