import itertools
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fintrader.backtesting import simulate
from fintrader.config import validate
from fintrader.envs import EnvSettings, ObservationLayout
from fintrader.errors import DataError
from fintrader.market.build import make_market
from fintrader.market.inspect import quality_report
from fintrader.market.planted import oracle_policy, planted_optimum
from fintrader.market.settings import DataSettings
from fintrader.market.synthetic import drift_states
from fintrader.pipeline.evaluation import _add_oracle
from fintrader.progress import SILENT
from fintrader.results.market_description import PlantedDrift
from tests.quick import slow_but


def synthetic(**source):
    return validate(
        DataSettings, {"bar_minutes": 5, "source": {"kind": "synthetic", **source}}, "test"
    )


def brute_force(num_assets, drift, switch, cost, num_bars):
    """The optimum by recursion over every joint state of all stocks and every position, one dollar
    in one place."""

    @cache
    def best(states, held, left):  # held: -1 is cash
        if left == 0:
            return 1.0
        worth = []
        for target in range(-1, num_assets):
            paid = 1.0
            if target != held:
                paid *= (1 - cost) if held >= 0 else 1.0
                paid /= (1 + cost) if target >= 0 else 1.0
            gain = np.exp(drift * states[target]) if target >= 0 else 1.0
            worth.append(paid * gain * ahead(states, target, left - 1))
        return max(worth)

    @cache
    def ahead(states, held, left):
        total = 0.0
        for flips in itertools.product((0, 1), repeat=num_assets):
            weight = np.prod([switch if flip else 1 - switch for flip in flips])
            total += weight * best(
                tuple(-s if f else s for s, f in zip(states, flips, strict=True)), held, left
            )
        return total

    starts = list(itertools.product((-1, 1), repeat=num_assets))
    return float(np.mean([best(states, -1, num_bars) for states in starts]))


@pytest.mark.parametrize(
    ("drift_bps", "switch", "cost_bps"),
    [(50.0, 0.1, 20.0), (50.0, 0.3, 100.0), (10.0, 0.05, 0.0), (5.0, 0.4, 50.0)],
)
def test_the_optimum_agrees_with_brute_force(drift_bps, switch, cost_bps):
    for num_assets, num_bars in ((1, 6), (2, 6), (3, 5)):
        planted = PlantedDrift("signal", drift_bps, switch, num_assets, bar_minutes=5)
        expected = brute_force(num_assets, drift_bps * 1e-4, switch, cost_bps * 1e-4, num_bars)
        optimum = planted_optimum(planted, cost_bps, num_bars)
        assert optimum.expected_multiple == pytest.approx(expected, rel=1e-12)
        assert optimum.growth_per_bar == pytest.approx(
            np.log(expected) / num_bars, rel=1e-9, abs=1e-15
        )


@pytest.mark.parametrize("seed", slow_but(0, every=range(3)))
def test_the_oracle_reaches_the_optimum(seed):
    calm = {"volatility_bps": 0.5, "num_sessions": 12}
    market = make_market(synthetic(seed=seed, num_symbols=5, **calm))
    policy = oracle_policy(market, ObservationLayout.of(market), 20.0)
    equity = simulate(policy, market, EnvSettings(fractional=True, cost_bps=20.0)).equity
    best = planted_optimum(
        market.provenance.planted_drift, 20.0, market.num_bars - 1
    ).expected_multiple
    # little noise: only the states' luck is left
    assert np.log(equity[-1] / equity[0]) / np.log(best) == pytest.approx(1.0, abs=0.2)


def test_who_lost_everything_has_no_share_of_the_oracles_growth():
    market = make_market(synthetic(num_symbols=5, volatility_bps=0.5, num_sessions=12))
    results = {
        name: SimpleNamespace(metrics=SimpleNamespace(cumulative_return=change))
        for name, change in (("ensemble", -1.0), ("best", 0.1))
    }
    assert _add_oracle(market, EnvSettings(fractional=True), results, SILENT).keys() == {"best"}


def test_the_signal_is_a_feature_just_as_it_is():
    settings = synthetic(seed=3)
    market = make_market(settings)
    assert market.feature_names[-1] == "signal"
    states = drift_states(settings.source, market.num_bars)
    np.testing.assert_array_equal(market.features[..., -1].numpy(), states)
    step = torch.log(market.close[1:] / market.close[:-1]).double().numpy()
    lift = (step * states[:-1]).mean() * 1e4
    assert lift == pytest.approx(8.0, abs=0.5)  # the state at t governs bar t + 1
    next_state = (step * states[1:]).mean() * 1e4
    assert next_state < lift
    np.testing.assert_allclose(market.open[1:], market.close[:-1])


def test_without_planting_nothing_tells_the_future():
    market = make_market(synthetic(planted=None))
    assert market.provenance.planted_drift is None
    assert "signal" not in market.feature_names
    with pytest.raises(DataError, match="no planted signal"):
        oracle_policy(market, ObservationLayout.of(market), 20.0)


def eventful(*, num_symbols=12, **events):
    source = {
        "kind": "synthetic",
        "num_symbols": num_symbols,
        "num_sessions": 24,
        "seed": 4,
        "events": events,
    }
    return validate(DataSettings, {"source": source}, "test")


@pytest.mark.parametrize("event", ["splits", "dividends"])
def test_corporate_actions_show_no_profit_or_loss(event):
    plain = make_market(eventful())
    market = make_market(eventful(**{event: 3}))
    returns = [
        torch.log(one.adjusted_close[1:] / one.adjusted_close[:-1]) for one in (plain, market)
    ]
    torch.testing.assert_close(returns[0], returns[1], rtol=0, atol=2e-6)
    torch.testing.assert_close(
        market.features, plain.features, rtol=1e-3, atol=0.05
    )  # volumes count from 1
    changed = (market.close[-1] / plain.close[-1] - 1).abs() > 1e-3
    assert int(changed.sum()) == len(market.events.bar) == 3


def test_listings_and_delistings_are_seen():
    settings = eventful(delistings=2, late_listings=3)
    report = quality_report(settings)
    assert report.kinds == {"ended": 2, "late_listing": 3}
    market = make_market(settings)
    assert list(market.provenance.ended) == sorted(
        fault.symbol for fault in report.faults if fault.kind == "ended"
    )
    nan = torch.isnan(market.close)
    assert int(nan[0].sum()) == 3
    assert int(nan[-1].sum()) == 2
    assert not market.provenance.survivorship.survivors_only


def test_halts_silence_everybody():
    settings = eventful(halts=2, halt_bars=14)
    assert quality_report(settings).kinds == {"market_hole": 2}
    market = make_market(settings)
    assert int((~market.tradable).all(dim=1).sum()) == 28
    assert not torch.isnan(market.close).any()


def test_more_events_than_stocks_are_refused():
    with pytest.raises(DataError, match="need as many stocks"):
        make_market(eventful(num_symbols=2, splits=3))
