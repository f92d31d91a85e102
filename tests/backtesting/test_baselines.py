"""Baselines do what their notes say, through the policy's own ledger."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fintrader.backtesting import simulate_baselines
from fintrader.backtesting.baselines import (
    TowardsWeights,
    buy_and_hold,
    hold_benchmark,
    long_only_minimum_variance,
    make_volatility_rule,
    simulate_rule,
    simulate_weights,
    usual_volatility,
)
from fintrader.backtesting.result import measured_against
from fintrader.envs import EnvSettings
from fintrader.errors import BacktestError
from tests.factories import joined, make_market, reprice


def test_buy_and_hold_buys_once_in_equal_dollars():
    market = make_market(60, 5, gaps=False)
    result = simulate_baselines(
        market, EnvSettings(cost_bps=20, action="trade", decision_interval=9)
    )["buy_and_hold"]
    assert (result.trades["fill_bar"] == 1).all()
    assert len(result.trades) == 5
    spent = result.trades["notional_usd"].to_numpy()
    assert spent == pytest.approx(
        np.full(5, 200_000), rel=0.02
    )  # next open's price, costs, whole shares
    assert (result.shares[1:] == result.shares[1]).all()
    assert result.cash.min() >= 0
    assert result.costs_usd.sum() == pytest.approx(0.002 * spent.sum(), rel=1e-9)


def test_buy_and_hold_asks_again_for_what_did_not_trade():
    market = make_market(60, 4, gaps=False, session_bars=20)
    open_ = market.open.clone()
    close = market.close.clone()
    tradable = market.tradable.clone()
    tradable[1:4, 0] = False  # nothing trades where its order would have been filled
    for prices in (
        open_,
        close,
    ):  # no price at all before bar 6; a listing after the first session is no member yet
        prices[:6, 1] = prices[:30, 2] = float("nan")
    tradable[:6, 1] = tradable[:30, 2] = False
    halted = reprice(market, open=open_, close=close, tradable=tradable)
    result = simulate_baselines(halted, EnvSettings(cost_bps=20))["buy_and_hold"]
    assert dict(zip(result.trades["symbol"], result.trades["fill_bar"], strict=True)) == {
        "S000": 4,
        "S001": 7,
        "S003": 1,
    }
    assert result.trades["notional_usd"].to_numpy() == pytest.approx(np.full(3, 1e6 / 3), rel=0.05)
    assert 0 <= result.cash[-1] < 0.01 * result.equity[-1]


def test_a_sale_of_a_stock_that_left_goes_on_until_all_is_sold(monkeypatch):
    """Too few shares trade for one bar, and nobody may buy any."""
    market = make_market(60, 2, gaps=False)
    volume = market.volume.clone()
    volume[20:, 1] = 20_000.0
    member = market.member.clone()
    member[20:, 1] = False
    market = replace(market, volume=volume, member=member)
    settings = EnvSettings(participation=0.1)

    def weights(bar):
        return torch.tensor([0.3, 0.5]) if bar < 20 else torch.tensor([0.3, 0.0])

    def hold():
        return simulate_weights(weights, frozenset({0, 20}), market, settings, name="sold", note="")

    slept = hold()
    monkeypatch.setattr(TowardsWeights, "next_due", lambda self, bar: bar + 1)
    assert (slept.shares == hold().shares).all()
    sold = np.flatnonzero(np.diff(slept.shares[:, 1]) < 0)
    assert len(sold) > 2
    assert slept.shares[40, 1] == 0


def test_equal_weight_is_equal_after_each_rebalance_and_pays_for_it():
    market = make_market(80, 4, gaps=False, session_bars=20)
    result = hold_benchmark("equal_weight", market, EnvSettings(cost_bps=20))
    assert set(result.trades["fill_bar"]) <= {1, 21, 41, 61}
    for bar in (1, 21, 41, 61):
        assert result.weights()[bar] == pytest.approx(np.full(4, 0.25), abs=0.01)
    free = hold_benchmark("equal_weight", market, EnvSettings(cost_bps=0))
    assert free.equity[-1] > result.equity[-1]


def test_benchmark_is_the_scaled_index():
    market = make_market(390, 3, session_bars=6)
    result = simulate_baselines(market, EnvSettings(initial_cash_usd=500))["benchmark"]
    level = market.benchmark.numpy()
    assert result.equity == pytest.approx(500 * level / level[0], rel=1e-12)
    assert result.metrics["cost_usd"] == 0
    assert result.metrics["beta"] == pytest.approx(1)
    assert result.metrics["index_tracking_error"] == pytest.approx(0, abs=1e-12)
    assert result.metrics["index_information_ratio"] is None  # nothing active: not 0/0 of rounding
    assert result.metrics["batting_average"] == 0
    assert result.metrics["invested_share"] is None


def test_every_baseline_trades_only_on_its_days_and_knows_only_the_past():
    market = make_market(400, 5, session_bars=20)
    other = make_market(400, 5, session_bars=20, seed=9)
    cut = 290
    results = simulate_baselines(market, EnvSettings(), every=True)
    changed = simulate_baselines(joined(market, other, cut), EnvSettings(), every=True)
    assert list(results) == [
        *(
            "buy_and_hold",
            "equal_weight",
            "inverse_volatility",
            "minimum_variance",
            "momentum",
            "vol_targeted",
        ),
        *("benchmark", "cash"),
    ]
    for name, result in results.items():
        assert (result.equity[:cut] == changed[name].equity[:cut]).all(), name
        orders = result.trades[result.trades["kind"] == "order"]
        late = orders[
            orders["fill_bar"] % 20 != 1
        ]  # what did not trade on the day is asked for again
        for bar, symbol in zip(late["fill_bar"], late["symbol"], strict=True):
            assert not market.tradable[bar - (bar - 1) % 20, market.symbols.index(symbol)], name
        assert result.cash.min() >= -1e-6, name
    assert (results["cash"].equity == 1e6).all()
    weekly = results["inverse_volatility"].trades
    assert {(bar - 1) // 20 % 5 for bar in weekly[weekly["kind"] == "order"]["fill_bar"]} == {0}


def test_inverse_volatility_prefers_the_calm():
    market = make_market(400, 2, gaps=False, session_bars=20, volatility=0.001)
    wild = market.close.clone()
    wild[:, 1] *= torch.exp(0.2 * torch.sin(torch.arange(400.0)))
    market = reprice(market, close=wild, open=wild)
    weights = simulate_baselines(market, EnvSettings(), every=True)["inverse_volatility"].weights()
    assert weights[101, 0] > 0.8
    assert weights[101].sum() > 0.9


def test_minimum_variance_is_the_minimum():
    rng = np.random.default_rng(0)
    for _ in range(5):
        factors = rng.normal(size=(6, 9))
        covariance = factors @ factors.T / 1e4
        ours = long_only_minimum_variance(covariance)
        assert ours.sum() == pytest.approx(1)
        assert (ours >= 0).all()
        tried = rng.dirichlet(np.full(6, 0.5), size=20000)
        best = np.einsum("ki,ij,kj->k", tried, covariance, tried).min()
        assert ours @ covariance @ ours <= best
    assert long_only_minimum_variance(np.diag([1.0, 4.0])) == pytest.approx([0.8, 0.2])


def test_momentum_is_in_cash_when_everything_falls():
    market = make_market(400, 3, gaps=False, session_bars=20, volatility=1e-4)
    falling = market.close * torch.exp(-0.001 * torch.arange(400.0)).unsqueeze(1)
    result = simulate_baselines(
        reprice(market, close=falling, open=falling), EnvSettings(), every=True
    )["momentum"]
    assert (result.shares[-1] == 0).all()
    rising = market.close * torch.exp(0.001 * torch.arange(400.0)).unsqueeze(1)
    result = simulate_baselines(
        reprice(market, close=rising, open=rising), EnvSettings(), every=True
    )["momentum"]
    assert (result.shares[-1] > 0).all()


def target_and_simulate(market, target):
    return simulate_rule(
        make_volatility_rule(target, market.sessions_a_year), market, EnvSettings()
    )


def test_vol_targeted_steps_back_as_far_as_the_target_says():
    market = make_market(800, 4, gaps=False, session_bars=20, volatility=0.01)
    usual = usual_volatility(market)
    ends = np.arange(19, 800, 20)
    close = market.close.double().numpy()[ends]
    daily = (close[1:] / close[:-1] - 1).mean(axis=1)
    rolling = [daily[k : k + 20].std(ddof=1) * 252**0.5 for k in range(len(daily) - 19)]
    assert usual == pytest.approx(np.median(rolling))
    half = target_and_simulate(market, 0.5 * rolling[4])
    bar = (
        25 * 20 + 1
    )  # after 25 sessions, at a rebalancing: 20 returns, the last four of the first 24 are skipped
    assert half.weights()[bar].sum() == pytest.approx(0.5, abs=0.01)
    full = target_and_simulate(market, 1e3)
    assert full.weights()[bar].sum() > 0.99
    assert "15.0%" in target_and_simulate(market, None).note
    assert usual_volatility(market.window(0, 400)) is None


def test_active_figures_are_those_of_hand_made_numbers():
    bars = 20 * 66
    market = make_market(bars, 2, gaps=False, session_bars=20)
    held = buy_and_hold(market, EnvSettings(cost_bps=0))
    equity, other = (
        100.0 * np.repeat(np.cumprod([1.0, *steps * 22]), [19, *[20] * 65, 1])
        for steps in ([1.02, 1.01, 0.99], [1.01, 1.01, 1.01])
    )
    shares = np.zeros((bars, 2))
    mark = np.ones((bars, 2))
    shares[1:, 0] = 50.0
    shares[31:, 1] = 25.0
    ours = replace(held, equity=equity, shares=shares, mark=mark)
    portfolio = replace(held, equity=other, name="equal_weight")
    found = measured_against({"ours": ours, "equal_weight": portfolio}, portfolio)
    active = np.tile([0.01, 0.0, -0.02], 22)
    numbers = found["ours"].metrics
    assert numbers["active_return"] == pytest.approx(252 * active.mean())
    assert numbers["tracking_error"] == pytest.approx(active.std(ddof=1) * 252**0.5)
    assert numbers["information_ratio"] == pytest.approx(
        active.mean() / active.std(ddof=1) * 252**0.5
    )
    assert numbers["invested_share"] == pytest.approx(
        ((50 + 25 * (np.arange(bars) >= 31)) / equity)[1:].sum() / bars
    )
    itself = found["equal_weight"].metrics
    assert (itself["active_return"], itself["tracking_error"], itself["information_ratio"]) == (
        0,
        0,
        None,
    )
    assert ours.metrics["active_return"] is None  # nobody said against what
    with pytest.raises(BacktestError, match="different bars"):
        measured_against({"ours": ours}, replace(portfolio, minutes=portfolio.minutes + 1))
