"""The drift report: what it finds in journals whose drift is known."""

from dataclasses import replace

import numpy as np
import pytest

from fintrader.backtesting.baselines import simulate_benchmark_portfolio
from fintrader.deploy import drift
from fintrader.deploy.broker import OrderReport
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.drift_page import find_heading, render_drift
from fintrader.deploy.drift_report import PSI_NOTABLE, read_account, read_report
from fintrader.deploy.entries import BarDecision, CapitalMove
from fintrader.deploy.journal import Journal
from fintrader.deploy.orders import order_id
from fintrader.deploy.recorder import Recorder
from fintrader.errors import DeployError
from fintrader.files import write_json
from fintrader.records import to_json
from tests.engines.deployments import FREE, MINUTE, frozen, replayed, settings

DATA = settings(
    features={"names": ["return_1", "volatility_26", "sma_26"]},
    windows={"fractions": [0.6, 0.25, 0.15]},
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A replay that has ended."""
    home = tmp_path_factory.mktemp("drift")
    bundle, market = frozen(home, DATA)
    replayed(home, bundle, market).close()
    return home, bundle, market


def measured(home, bundle):
    with Journal(home / JOURNAL, reading=True) as journal:
        return drift.measure(journal, bundle, Recorder(bundle, journal).build_market(), FREE)


@pytest.mark.slow
def test_a_replay_does_not_drift(made):
    home, bundle, market = made
    report = measured(home, bundle)
    assert report.equity.largest_difference_usd == 0.0
    assert report.equity.account_usd == report.equity.twin_usd != 1e6
    assert report.sessions == len(np.unique(market.session.numpy()))
    assert report.shortfall.bps["fees"] == pytest.approx(bundle.env.cost_bps, rel=1e-2)
    assert report.shortfall.fills == report.shortfall.orders > 50
    write_json(home / "drift.json", to_json(report))
    record = read_account(home)
    assert (record.strategy, record.benchmark_name) == (bundle.id, bundle.benchmark)
    assert record.returns.tolist() == [*report.daily.account_return]
    assert record.benchmark_returns.tolist() == [*report.daily.portfolio_return]
    assert report.daily.portfolio == bundle.benchmark
    assert len(report.daily.portfolio_return) == report.sessions
    assert max(row.psi for row in report.features) < 0.1
    assert find_heading(report)[1] == "good"
    page = render_drift(report)
    assert "to the last bit" in page
    assert render_drift(report) == page


def test_the_twin_begins_with_the_accounts_capital(made):
    """An account at a broker seldom holds the cash of the backtest."""
    home, bundle, _ = made
    env = {**bundle.record.env, "initial_cash_usd": 5e6}
    richer = replace(bundle, record=replace(bundle.record, env=env))
    assert richer.env.initial_cash_usd == 5e6
    report = measured(home, richer)
    assert report.equity.largest_difference_usd == 0.0


def test_an_emptied_account_is_compared_from_its_next_money_on(made, monkeypatch):
    home, bundle, _ = made
    read = Journal.read_curve

    def emptied(self):
        curve = read(self)
        place = len(curve) // 2
        nothing = range(place, place + len(curve) // 4)
        return [(bar, 0.0 if at in nothing else usd) for at, (bar, usd) in enumerate(curve)]

    monkeypatch.setattr(Journal, "read_curve", emptied)
    with Journal(home / JOURNAL, reading=True) as journal:
        curve = emptied(journal)
        bars = {bar for bar, _ in curve[len(curve) // 2 :]}
        entries = [one for one in journal.entries(BarDecision) if one.body.bar in bars]
        move = replace(entries[0], body=CapitalMove("a withdrawal", 0.0), seq=entries[0].seq - 1)
    known = Journal.entries
    monkeypatch.setattr(
        Journal,
        "entries",
        lambda self, kind, **how: [move] if kind is CapitalMove else known(self, kind, **how),
    )
    report = measured(home, bundle)
    assert report.equity.first_usd > 0.0
    assert np.isfinite(report.equity.difference_bps)
    assert min(report.daily.account_return) > -0.5
    assert report.equity.twin_usd == pytest.approx(
        report.equity.first_usd * (1 + report.equity.twin_return), rel=1e-9
    )


def test_the_recorded_market_is_the_one_that_was_built(made):
    home, bundle, market = made
    with Journal(home / JOURNAL, reading=True) as journal:
        recorded = Recorder(bundle, journal).build_market()
    terms = bundle.env.model_copy(update={"benchmark": "equal_weight"})
    assert simulate_benchmark_portfolio(recorded, terms).name == "equal_weight"
    assert recorded.num_bars == market.num_bars
    for name in ("minutes", "open", "high", "low", "close", "volume", "tradable", "features"):
        assert (getattr(recorded, name) == getattr(market, name)).all(), name


def test_parts_of_the_shortfall_are_what_was_written(tmp_path):
    bundle, market = frozen(tmp_path, DATA)
    bar = 3
    price = float(market.close[3, 0])
    opened = float(market.open[4, 0])
    closed = float(market.close[4, 0])
    decided = int(market.minutes[bar]) + 15 * MINUTE
    with Journal(tmp_path / JOURNAL) as journal:
        decision = BarDecision(
            bar=int(market.minutes[bar]),
            cash=1e6,
            equity=1e6,
            peak=1e6,
            first=1e6,
            shares={},
            orders={"S000": 100.0},
            prices={"S000": price},
            rounded={"S000": 0.4},
        )
        journal.write(decision, at=decided)
        report = OrderReport(
            order_id(bundle.id, decided, "S000"),
            "S000",
            "cancelled",
            100.0,
            80.0,
            opened + 0.05,
            cost_usd=3.0,
        )
        journal.write(report, at=decided)
        found = drift.measure_shortfall(journal, market, bundle)
    fee = min(0.002 * 80 * (opened + 0.05), 3.0)
    assert found.usd["delay"] == pytest.approx(80 * (opened - price))
    assert found.usd["spread_and_impact"] == pytest.approx(80 * 0.05 + 3.0 - fee)
    assert found.usd["fees"] == pytest.approx(fee)
    assert found.usd["unfilled"] == pytest.approx(20 * (closed - price))
    assert found.usd["rounding"] == pytest.approx(0.4 * (closed - price))
    assert found.ordered_usd == pytest.approx(100 * price)


def test_an_account_that_earns_less_is_found_and_an_equal_one_is_not():
    rng = np.random.default_rng(0)
    expected = rng.normal(0.002, 0.01, 250)
    false = sum(
        drift.measure_surprise(rng.choice(expected, 63), expected).is_alarm for _ in range(200)
    )
    assert false <= 0.05 * 200  # a quarter of sessions, no drift
    found = sum(
        drift.measure_surprise(rng.normal(-0.004, 0.01, 126), expected).is_alarm for _ in range(50)
    )
    assert found >= 40


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [20, 60])
def test_a_short_backtest_raises_no_false_alarm_over_a_year(sessions):
    """The mean of twenty days is off by more than most years are."""
    rng = np.random.default_rng(sessions)
    days = 0.0004 + 0.01 * rng.standard_t(4, size=(500, sessions + 250))
    alarms = [drift.measure_surprise(own[sessions:], own[:sessions]).is_alarm for own in days]
    assert np.mean(alarms) < 0.05 + 2 * (0.05 * 0.95 / 500) ** 0.5


def test_a_day_that_equals_all_others_is_no_surprise():
    flat = drift.measure_surprise(np.zeros(30), np.zeros(20))
    assert flat.path == pytest.approx(np.ones(30))


def test_the_band_holds_nine_of_ten_accounts():
    rng = np.random.default_rng(1)
    expected = rng.normal(0.0005, 0.01, 500)
    band = drift.simulate_fan(expected, 40, 1e6, seed=0)
    ends = 1e6 * np.prod(1 + rng.choice(expected, (4000, 40)), axis=1)
    inside = ((ends > band.low_usd[-1]) & (ends < band.high_usd[-1])).mean()
    assert 0.86 < inside < 0.94


def test_shifted_features_stand_out(made):
    _, bundle, market = made
    market.features[:, :, 1] += 2.0
    try:
        found = drift.measure_feature_drift(bundle, market, np.arange(0, market.num_bars, 5))
    finally:
        market.features[:, :, 1] -= 2.0
    assert found[0].name == "volatility_26"
    assert found[0].psi > PSI_NOTABLE > found[1].psi


def test_a_stored_report_is_read_back_or_refused(made, tmp_path):
    home, bundle, _ = made
    report = measured(home, bundle)
    path = tmp_path / "drift.json"
    assert read_report(path) is None
    write_json(path, to_json(report))
    assert read_report(path) == report
    write_json(path, to_json(report) | {"from": "2016-01-04"})
    with pytest.raises(DeployError, match=r"from is a field .* --drift` writes it anew"):
        read_report(path)
