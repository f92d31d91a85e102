"""The orders, rules and agents that `benchmarks/executor.py` compares."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks._executor import (
    COMMISSION_BPS,
    HORIZON,
    IMPACT_BPS,
    MEMORY,
    SIZE,
    draw_orders,
    follow,
    measure_shortfall,
    place,
    plan_evenly,
)

HALF_SPREAD = 2.0


def make_minutes(close: np.ndarray, span: float = 0.05, days: int = MEMORY + 2) -> pd.DataFrame:
    """Minutes of two names; `close` `[390]` USD, highs and lows `span` USD away."""
    starts = pd.bdate_range("2024-01-02", periods=days, tz="America/New_York")
    parts = []
    for ticker in ("ONE", "TWO"):
        for day in starts:
            ts = day + pd.Timedelta(minutes=570) + pd.to_timedelta(np.arange(390), unit="min")
            bars = {"open": close, "high": close + span, "low": close - span, "close": close}
            parts.append(pd.DataFrame({"ts": ts, "ticker": ticker, **bars, "volume": 1e6}))
    return pd.concat(parts, ignore_index=True)


FLAT = np.full(390, 100.0)
RANDOM = 100.0 + np.cumsum(np.random.default_rng(1).normal(0.0, 0.05, 390))


def test_market_orders_cost_commission_half_spread_and_impact():
    orders = draw_orders(make_minutes(FLAT))
    for plan, share in ((plan_evenly(), SIZE), (np.zeros(HORIZON + 1), 0.1)):
        cost = COMMISSION_BPS + HALF_SPREAD + IMPACT_BPS * math.sqrt(share)
        shortfall = measure_shortfall(orders, follow(plan), HALF_SPREAD, 1.0)
        assert shortfall == pytest.approx(np.full(4, cost), abs=0.01)


def test_a_drift_is_in_no_result():
    rising = draw_orders(make_minutes(100.0 + 0.01 * np.arange(390)))
    flat = draw_orders(make_minutes(FLAT))
    even = follow(plan_evenly())
    found = measure_shortfall(rising, even, HALF_SPREAD, 1.0)
    assert found == pytest.approx(measure_shortfall(flat, even, HALF_SPREAD, 1.0), abs=0.1)


def test_a_limit_order_fills_beyond_its_margin_only():
    orders = draw_orders(make_minutes(FLAT, span=0.05))
    patient = follow(plan_evenly(), offset_bps=3.0, patience=59)
    filled = measure_shortfall(orders, patient, HALF_SPREAD, 1.0)
    assert filled == pytest.approx(np.full(4, COMMISSION_BPS - 3.0), abs=0.3)
    missed = measure_shortfall(orders, patient, HALF_SPREAD, 3.0)
    assert (missed > COMMISSION_BPS + HALF_SPREAD).all()


def test_an_agent_that_does_nothing_is_twap():
    orders = draw_orders(make_minutes(RANDOM))

    def rest(obs, env):
        return place(torch.zeros(env.num_envs, 2), env, "market")

    even = measure_shortfall(orders, follow(plan_evenly()), HALF_SPREAD, 1.0)
    assert measure_shortfall(orders, rest, HALF_SPREAD, 1.0) == pytest.approx(even, rel=1e-6)


def test_features_and_schedules_know_no_later_minute():
    table = make_minutes(RANDOM)
    orders = draw_orders(table)
    last = table["ts"].dt.normalize() == table["ts"].dt.normalize().max()
    minute = table["ts"].dt.hour * 60 + table["ts"].dt.minute - 570
    later = last & (minute > 200)
    prices = ["open", "high", "low", "close"]
    changed = table.copy()
    changed.loc[later, prices] *= 1.1
    changed.loc[later, "volume"] *= 3.0
    other = draw_orders(changed)
    is_known = (orders.features == other.features).all(axis=2)
    same = (orders.prices == other.prices).all(axis=2)
    assert not same.all()
    assert (is_known == same).all()
    assert (orders.expected == other.expected).all()


def test_half_days_and_halted_names_have_no_order():
    table = make_minutes(RANDOM)
    day = table["ts"].dt.normalize()
    minute = table["ts"].dt.hour * 60 + table["ts"].dt.minute - 570
    half = table[(day != day.max()) | (minute < 210)]
    assert len(draw_orders(table)) == 4
    assert len(draw_orders(half)) == 2
    halted = table[(table["ticker"] != "ONE") | (day != day.unique()[1]) | (minute < 10)]
    assert set(draw_orders(halted).name) == {"TWO"}


def test_ticks_are_those_of_prices_as_traded():
    table = make_minutes(FLAT).assign(split_factor=4.0)
    assert draw_orders(table).tick == pytest.approx(np.full(4, 0.0025))
