"""False alarms of drift: replays of a later window by the real runner, compared with the backtest
of the window before it.

    python -m benchmarks.drift [--replays 500] [--first 0] [--save]

Each replay has made-up bars of its own (half hours of four stocks, whose days are independent), an
untrained policy with weights of its own, and a backtest of 20 or 60 sessions. The next 60 sessions
are replayed through the runner, its limits off, and the drift is measured from the journal as
`fintrader status --drift` does. Nothing drifts: every alarm is false. As `worse`, the same accounts
earn 50 bps a day less than they did, which the alarm should find.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from benchmarks._bench import Values, finish, read_arguments
from fintrader.backtesting import simulate
from fintrader.deploy import drift
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.journal import Journal
from fintrader.deploy.recorder import Recorder
from fintrader.market.build import make_market
from fintrader.metrics import daily_returns
from tests.engines.deployments import FREE, frozen, replayed, settings

SHORT = 20
LONG = 60
"""Sessions of a backtest; the longer one is as long as the replay."""
WORSE = 0.005
"""Loss of a day, as a part of the account."""


def make_bars(seed: int) -> Values:
    """Half hours of four stocks; 40 sessions to train on, 60 for a backtest, 60 for the replay."""
    return {
        "bar_minutes": 30,
        "source": {"seed": seed, "num_symbols": 4, "num_sessions": 40 + 2 * LONG},
        "features": {"names": ["return_1", "return_13", "volatility_13"]},
        "windows": {"fractions": [0.25, 0.375, 0.375], "embargo_sessions": 0},
    }


def replay(seed: int) -> Values:
    """Replay one window; return its alarms, and the largest difference from the twin, USD."""
    data = settings(**make_bars(seed))
    with tempfile.TemporaryDirectory() as place:
        home = Path(place)
        bundle, market = frozen(home, data, seed=seed)
        before = make_market(data).split().validation
        tested = simulate(bundle.policy, before, bundle.env)
        expected = daily_returns(tested.equity, before.session.numpy()[: len(tested.equity)])
        record = replace(bundle.record, daily_returns=tuple(expected.tolist()))
        replayed(home, replace(bundle, record=record), market).close()
        with Journal(home / JOURNAL, reading=True) as journal:
            there = Recorder(bundle, journal).build_market()
            report = drift.measure(journal, replace(bundle, record=record), there, FREE)
    ours = np.array(report.daily.account_return)
    found: Values = {
        "sessions": report.sessions,
        "decisions": report.decisions,
        "difference_usd": report.equity.largest_difference_usd,
    }
    for name, days in {"alarm": ours, "worse": ours - WORSE}.items():
        for length in (SHORT, LONG):
            surprise = drift.measure_surprise(days, expected[-length:])
            found[f"{name}_{length}"] = surprise is not None and surprise.is_alarm
    return found


def main() -> None:
    """Replay as often as asked, and count."""
    options = read_arguments(__doc__, replays=500, first=0)
    torch.set_num_threads(1)
    found = [replay(seed) for seed in range(options.first, options.first + options.replays)]
    figures: Values = {"replays": len(found)}
    for name in ("sessions", "decisions", "difference_usd"):
        figures[name] = max(one[name] for one in found)
    for name in ("alarm", "worse"):
        for length in (SHORT, LONG):
            figures[f"{name}_{length}"] = float(np.mean([one[f"{name}_{length}"] for one in found]))
    finish("drift", figures, options)


if __name__ == "__main__":
    main()
