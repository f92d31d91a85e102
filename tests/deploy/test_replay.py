"""A replay is the backtest again, to the last bit, whatever happens to the process."""

import json
import os

import numpy as np
import pytest
from numpy.random import default_rng

from fintrader.backtesting import simulate
from fintrader.backtesting.limits import LimitSettings
from fintrader.backtesting.shadow import shadow_backtest
from fintrader.bars.bars import concat
from fintrader.deploy import received_bars
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.entries import BarDecision, Mark
from fintrader.deploy.feed import ReplayFeed
from fintrader.deploy.journal import Journal
from tests.bars.tables import as_bars, minute_table
from tests.engines.deployments import MINUTE, equities, frozen, replayed, settings
from tests.quick import slow_but


def same(journal, market, equity):
    """Decisions whose equity is the backtest's to the last bit; fails at the first that is not."""
    minutes = market.minutes.numpy()
    for bar, known in equities(journal).items():
        assert known == equity[np.searchsorted(minutes, bar)], f"bar {bar}"
    for entry in journal.entries(Mark):
        assert entry.body.equity == equity[np.searchsorted(minutes, entry.body.bar)]
    return len(equities(journal))


SHORT = {"windows": {"fractions": [0.7, 0.25, 0.05]}}
TWO_WEEKS = {"windows": {"fractions": [0.6, 0.23, 0.17]}}
EVENTFUL = {
    "source": {
        "kind": "synthetic",
        "seed": 6,
        "num_symbols": 9,
        "num_sessions": 32,
        "volatility_bps": 40.0,
        "missing": 0.1,
        "events": {"splits": 3, "dividends": 4, "halts": 4},
    },
    "windows": {"fractions": [0.45, 0.2, 0.35]},
}
"""The test window has a split and a dividend."""


@pytest.mark.parametrize(
    ("data", "env"),
    slow_but(
        2,
        every=[
            (SHORT, {}),
            (
                SHORT,
                {
                    "decision_interval": 1,
                    "cost_bps": 5,
                    "half_spread_bps": 2,
                    "impact_bps": 50,
                    "min_commission_usd": 1,
                },
            ),
            (EVENTFUL, {"decision_interval": 9}),
            (
                {**SHORT, "features": {"scaling": "zscore"}},
                {"benchmark": "equal_weight", "fractional": True},
            ),
            (
                {
                    **SHORT,
                    "features": {
                        "context": ["time_of_day", "turbulence_8", "index_return_5"],
                    },
                },
                {},
            ),
        ],
    ),
)
def test_a_replay_is_the_backtest(tmp_path, data, env):
    bundle, market = frozen(tmp_path, settings(**data), **env)
    journal = replayed(tmp_path, bundle, market)
    expected = simulate(bundle.policy, market, bundle.env)
    assert same(journal, market, expected.equity) == -(
        -(market.num_bars - 1) // bundle.env.decision_interval
    )
    assert np.ptp(expected.equity) > 100  # it traded
    filled = sum(report.filled != 0 for report in journal.orders().values())
    assert filled == (expected.trades["kind"] == "order").sum()


def test_limits_bind_the_replay_and_its_twin_alike(tmp_path):
    bundle, market = frozen(tmp_path, settings(**TWO_WEEKS))
    limits = LimitSettings(weight=0.12, order=0.05, turnover=0.3)
    journal = replayed(tmp_path, bundle, market, limits)
    expected, noted = shadow_backtest(bundle.policy, market, bundle.env, limits)
    same(journal, market, expected.equity)
    assert {"weight", "order"} <= set(noted.counts)
    assert (expected.equity != simulate(bundle.policy, market, bundle.env).equity).any()


def test_bars_are_journalled_with_their_further_columns(tmp_path):
    bundle, market = frozen(tmp_path, settings(source={"planted": {"drift_bps": 5}}))
    bars = ReplayFeed(bundle.data, bundle.symbols).history(0, int(market.minutes[-1]))
    signal = bars.extras["signal"].tolist()
    expected = {
        (ts, bars.symbols[code]): (close, json.dumps({"signal": value}))
        for ts, code, close, value in zip(
            bars.ts.tolist(), bars.symbol, bars.close, signal, strict=True
        )
    }
    rows = replayed(tmp_path, bundle, market).bars(until=int(market.minutes[-1]))
    assert len(rows) > market.num_bars
    for ts, symbol, *_, close, _, extras, _ in rows:
        assert (close, extras) == expected[ts, symbol]


def test_a_history_gives_the_rows_of_one_table_and_copies_few_of_them(monkeypatch):
    bars = as_bars(minute_table(1, 2))
    copied = []
    monkeypatch.setattr(
        received_bars, "concat", lambda parts: copied.append(sum(map(len, parts))) or concat(parts)
    )
    history = received_bars.ReceivedBars(["AAA"], [])
    assert len(history.between("AAA", 0, MINUTE)) == 0
    rng = default_rng(0)
    start = 0
    while start < len(bars):
        stop = start + int(rng.integers(1, 4))
        history.add(bars.take(slice(start, stop)))
        first = int(bars.ts[max(start - int(rng.integers(9)), 0)]) + int(rng.choice([0, 1]))
        end = first + int(rng.integers(1, 12)) * MINUTE
        inside = np.flatnonzero(
            (bars.ts >= first) & (bars.ts < end) & (bars.ts <= bars.ts[:stop].max())
        )
        found = history.between("AAA", first, end)
        carried = bars.ts[0] < first not in bars.ts
        assert found.ts.tolist() == [first] * carried + bars.ts[inside].tolist()
        close = bars.close[np.searchsorted(bars.ts, found.ts, side="right") - 1]
        assert found.close.tolist() == close.tolist()
        start = stop
    assert sum(copied) < 60 * len(bars)


class _Killed(Exception):
    """Instead of the process's end."""


class _Mortal(Journal):
    """A journal whose writer dies before, or right after, one of its entries."""

    def __init__(self, path, at, after):
        super().__init__(path, durable=False)
        self.left = at
        self.after = after

    def write(self, *records, at):
        self.left -= len(records)
        if self.left <= 0 and not self.after:
            raise _Killed
        super().write(*records, at=at)
        if self.left <= 0:
            raise _Killed


def replay_through_kills(folder, bundle, market, *, longest):
    """Replay, killed after at most so many entries at a time; the journal at the end."""
    rng = default_rng(0)
    lives = 0
    for _ in range(60 if os.environ.get("FINTRADER_SLOW") else 12):
        journal = _Mortal(folder / JOURNAL, int(rng.integers(1, longest)), bool(rng.integers(2)))
        try:
            replayed(folder, bundle, market, journal=journal)
        except _Killed:
            journal.close()
            lives += 1
            continue
        break
    assert lives > 2
    return replayed(folder, bundle, market)


def test_whoever_is_killed_anywhere_goes_on_to_the_same_bits(tmp_path):
    bundle, market = frozen(tmp_path, decision_interval=9)
    expected = simulate(bundle.policy, market, bundle.env).equity
    journal = replay_through_kills(tmp_path, bundle, market, longest=120)
    assert same(journal, market, expected) == -(-(market.num_bars - 1) // 9)
    assert len({entry.body.bar for entry in journal.entries(BarDecision)}) == len(
        journal.entries(BarDecision)
    )
