"""The synthetic market, and its best achievable result against brute force and simulation."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from fintrader.config import validate
from fintrader.data.build import make_market
from fintrader.data.settings import DataSettings
from fintrader.data.sources.planted import oracle_policy, planted_optimum
from fintrader.data.sources.synthetic import SyntheticSettings, drift_states
from fintrader.errors import DataError


def synthetic(**source: Any) -> DataSettings:
    return validate(DataSettings, {"bar_minutes": 5, "source": {"kind": "synthetic", **source}}, "test")


def brute_force(num_assets: int, drift: float, switch: float, cost: float, num_bars: int) -> float:
    """The optimum by recursion over every joint state of all stocks and every position, one dollar in one place."""

    @cache
    def best(states: tuple[int, ...], held: int, left: int) -> float:  # held: -1 is cash
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
    def ahead(states: tuple[int, ...], held: int, left: int) -> float:
        total = 0.0
        for flips in itertools.product((0, 1), repeat=num_assets):
            weight = np.prod([switch if flip else 1 - switch for flip in flips])
            total += weight * best(tuple(-s if f else s for s, f in zip(states, flips, strict=True)), held, left)
        return total

    starts = list(itertools.product((-1, 1), repeat=num_assets))
    return float(np.mean([best(states, -1, num_bars) for states in starts]))


@pytest.mark.parametrize(
    ("drift_bps", "switch", "cost_bps"), [(50.0, 0.1, 20.0), (50.0, 0.3, 100.0), (10.0, 0.05, 0.0), (5.0, 0.4, 50.0)]
)
def test_the_optimum_agrees_with_brute_force(drift_bps: float, switch: float, cost_bps: float) -> None:
    for num_assets, num_bars in ((1, 6), (2, 6), (3, 5)):
        planted = {"num_assets": num_assets, "drift_bps": drift_bps, "switch": switch}
        expected = brute_force(num_assets, drift_bps * 1e-4, switch, cost_bps * 1e-4, num_bars)
        optimum = planted_optimum(planted, cost_bps, num_bars)
        assert optimum.expected_multiple == pytest.approx(expected, rel=1e-12)
        assert optimum.growth_per_bar == pytest.approx(np.log(expected) / num_bars, rel=1e-9, abs=1e-15)


def test_too_dear_to_trade_means_cash() -> None:
    optimum = planted_optimum({"num_assets": 3, "drift_bps": 1.0, "switch": 0.3}, 500.0, 50)
    assert optimum.expected_multiple == pytest.approx(1.0, abs=1e-12)
    assert planted_optimum({"num_assets": 3, "drift_bps": 9.0, "switch": 0.1}, 20.0, 50).expected_multiple > 1.0


class Layout:
    """Holdings, then features: all that the oracle reads."""

    def __init__(self, num_assets: int, num_features: int) -> None:
        self.n, self.f = num_assets, num_features

    def split(self, obs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"holdings": obs[:, : self.n], "features": obs[:, self.n :].reshape(-1, self.n, self.f)}


def run(settings: DataSettings, cost_bps: float) -> tuple[float, float]:
    """Wealth multiple of the oracle over the whole market by a plain fractional-share loop, and the optimum."""
    market, _ = make_market(settings)
    policy = oracle_policy(market, Layout(market.num_assets, market.num_features), cost_bps)
    cost, cash = cost_bps * 1e-4, 1.0
    shares = np.zeros(market.num_assets)
    open_, close = market.open.double().numpy(), market.close.double().numpy()
    for t in range(market.num_bars - 1):
        equity = cash + float(shares @ close[t])
        holdings = torch.tensor(shares * close[t] / equity, dtype=torch.float32)
        obs = torch.cat([holdings, market.features[t].flatten()]).unsqueeze(0)
        weights = policy(obs)[0].double().numpy()
        assert weights.min() >= 0
        assert weights.sum() <= 1 + 1e-6
        price = open_[t + 1]
        wealth = cash + float(shares @ price)
        target = np.where(np.abs(weights - holdings.numpy()) < 1e-6, shares, weights * wealth / price)
        sold = np.maximum(shares - target, 0)
        cash += float(sold @ price) * (1 - cost)
        shares -= sold
        wanted = np.maximum(target - shares, 0)
        spend = float(wanted @ price) * (1 + cost)
        scale = min(1.0, cash / spend) if spend > 0 else 0.0
        cash -= scale * spend
        shares += scale * wanted
    multiple = cash + float(shares @ close[-1])
    return multiple, planted_optimum(market.meta["planted"], cost_bps, market.num_bars - 1).expected_multiple


def test_the_oracle_reaches_the_optimum_on_average() -> None:
    ratios = []
    for seed in range(12):
        calm = {"volatility_bps": 0.5, "index_volatility_bps": 0.5, "num_sessions": 12}
        multiple, best = run(synthetic(seed=seed, num_symbols=5, **calm), 20.0)
        ratios.append(np.log(multiple) / np.log(best))
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.03)  # little noise: only the states' luck is left


def test_the_default_market_pays_at_twenty_basis_points() -> None:
    market, _ = make_market(synthetic())
    start, stop = market.windows.test
    optimum = planted_optimum(market.meta["planted"], 20.0, stop - start - 1)
    assert 1.3 < optimum.expected_multiple < 2.0


def test_the_signal_is_a_feature_just_as_it_is() -> None:
    settings = synthetic(seed=3)
    market, _ = make_market(settings)
    assert market.feature_names[-1] == "signal"
    assert isinstance(settings.source, SyntheticSettings)
    states = drift_states(settings.source, market.num_bars)
    np.testing.assert_array_equal(market.features[..., -1].numpy(), states)
    step = torch.log(market.close[1:] / market.close[:-1]).double().numpy()
    lift = (step * states[:-1]).mean() * 1e4
    assert lift == pytest.approx(8.0, abs=0.5)  # the state at t governs bar t + 1
    next_state = (step * states[1:]).mean() * 1e4
    assert next_state < lift
    np.testing.assert_allclose(market.open[1:], market.close[:-1])


def test_without_planting_nothing_tells_the_future() -> None:
    market, _ = make_market(synthetic(planted={"enabled": False}))
    assert market.meta["planted"] is None
    assert "signal" not in market.feature_names
    with pytest.raises(DataError, match="no planted signal"):
        oracle_policy(market, Layout(market.num_assets, market.num_features), 20.0)


def test_same_seed_same_market_and_another_differs() -> None:
    first, _ = make_market(synthetic(num_sessions=10))
    again, _ = make_market(synthetic(num_sessions=10))
    other, _ = make_market(synthetic(num_sessions=10, seed=1))
    assert first.content_hash() == again.content_hash()
    assert first.content_hash() != other.content_hash()


def test_missing_bars_are_not_tradable() -> None:
    market, _ = make_market(synthetic(missing=0.2, num_sessions=10))
    assert float((~market.tradable).float().mean()) == pytest.approx(0.2, abs=0.02)
    assert not torch.isnan(market.close).any()


def test_the_day_is_u_shaped_and_the_index_moves_the_stocks() -> None:
    market, _ = make_market(synthetic(planted={"enabled": False}, num_sessions=60, regime_switch=0.01))
    step = torch.log(market.close[1:] / market.close[:-1]).double().numpy()
    bar = np.arange(market.num_bars) % 78
    size = np.array([np.abs(step[bar[1:] == k]).mean() for k in range(78)])
    assert size[[0, 1, 2, -3, -2, -1]].mean() > 1.5 * size[30:48].mean()
    index = np.diff(np.log(market.benchmark.numpy()))
    correlation = np.corrcoef(index, step.mean(axis=1))[0, 1]
    assert correlation > 0.8
    assert market.benchmark_name == "synthetic index"
