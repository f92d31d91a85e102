"""Orders mean what they say: holding orders nothing, and bands look at the target."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fintrader.backtesting.account import BacktestAccount
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import ConfigError, EnvError
from fintrader.market.tensors import Events
from tests.factories import make_market, reprice


def split_market(bars=1100):
    """Wild prices, and two that fall to a tenth between two bars: one split, at the other nobody
    knows why."""
    market = make_market(bars, 7, gaps=False, volatility=0.02)
    scale = torch.ones(bars, 7)
    scale[bars // 2 :, 3] = scale[bars // 3 :, 1] = 0.1
    events = Events.of([(bars // 3, 1, 10.0, 0.0), (bars // 4, 0, 1.0, 0.5)])
    return reprice(market, open=market.open * scale, close=market.close * scale, events=events)


@pytest.mark.parametrize(
    "options",
    [{}, {"fractional": True}, {"short": True, "max_leverage": 2.0}, {"decision_interval": 3}],
    ids=str,
)
def test_hundreds_of_decisions_to_hold_order_nothing(options):
    market = split_market(450 * options.get("decision_interval", 1))
    env = TradingEnv(market, EnvSettings(start="first", **options), num_envs=2)
    env.reset(options={"cash_usd": torch.tensor([1e6, 3e7])})
    obs, *_ = env.step(
        torch.tensor([[0.1, 0.2, 0.0, 0.3, 0.05, 0.0, 0.1], [0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1]])
    )
    held = env.account.shares.clone()
    cash = env.account.cash.clone()
    assert float(held.sum()) > 0
    for _ in range(400):
        obs, *_ = env.step(obs[:, 4:11])  # the weights held
    dividend = 0.5 * held[:, 0]
    held[:, 1] *= 10.0
    assert torch.equal(env.account.shares, held)
    torch.testing.assert_close(env.account.cash, cash + dividend, rtol=1e-9, atol=1e-5)


def test_holding_orders_nothing_in_a_backtest():
    account = BacktestAccount(split_market(), EnvSettings())
    account.act(torch.full((1, 7), 0.1))
    held = account.held.copy()
    for _ in range(1000):
        account.act(account.observe()[:, 4:11])
        split = np.where(np.arange(7) == 1, 10.0 if account.bar >= 1100 // 3 else 1.0, 1.0)
        assert (account.held == held * split).all()
    assert account.trade_log.result("hold", "").trades.kind.tolist() == []
    assert len(account.trade_log.equity) == 1100


def test_the_band_compares_with_the_target_and_small_steps_towards_it_arrive():
    market = make_market(300, 5, gaps=False, volatility=1e-4)
    env = TradingEnv(market, EnvSettings(dead_band=0.02, start="first"), num_envs=1)
    env.reset()
    target = torch.full((1, 5), 0.18)
    env.step(target)
    weights = env.account.shares * env.view.mark[env.account.bar] / env.equity.unsqueeze(1)
    assert weights[0].numpy() == pytest.approx(np.full(5, 0.18), abs=0.001)
    held = env.account.shares.clone()
    env.step(target + 0.015)  # inside the band
    assert torch.equal(env.account.shares, held)
    env.step(target - 0.03)  # beyond it: all the way, not to its edge
    weights = env.account.shares * env.view.mark[env.account.bar] / env.equity.unsqueeze(1)
    assert weights[0].numpy() == pytest.approx(np.full(5, 0.15), abs=0.001)


@pytest.mark.parametrize(("rate", "band"), [(0.2, 0.001), (0.05, 0.001), (0.2, 0.0)])
def test_small_steps_reach_their_target_whatever_the_band(rate, band):
    """Steps smaller than the band, and than a share, are still steps towards a target further
    away."""
    market = make_market(300, 20, gaps=False, volatility=1e-5)
    scale = 700.0 / market.close[0]  # 68 shares make a twentieth
    market = reprice(market, open=market.open * scale, close=market.close * scale)
    config = EnvSettings(trade_rate=rate, dead_band=band, start="first", cost_bps=0.0)
    env = TradingEnv(market, config, num_envs=1)
    env.reset()
    target = torch.full((1, 20), 0.048)
    invested = []
    for _ in range(200):
        env.step(target)
        invested.append(1.0 - float(env.account.cash / env.equity))
    assert invested[0] == pytest.approx(0.96 * rate, abs=0.02)
    assert np.diff(invested).min() > -1e-4  # prices move a little
    assert invested[-1] > 0.96 - 20 * max(band, 700e-6) - 0.001


@pytest.mark.parametrize(
    ("action", "most", "ordered"),
    [(0.2, 100, 20), (0.29, 100, 29), (0.5, 7, 3), (1.0, 2**24, 2**24)],
)
def test_an_action_orders_its_share_of_the_most(action, most, ordered):
    market = make_market(10, 2, gaps=False)
    config = EnvSettings(action="trade", max_shares=most, initial_cash_usd=4e9, start="first")
    env = TradingEnv(market, config, num_envs=1)
    env.reset()
    env.step(torch.tensor([[action, 0.0]]))
    assert env.account.shares.tolist() == [[ordered, 0.0]]


def test_an_order_takes_its_share_of_the_volume_and_no_more():
    market = make_market(40, 3, gaps=False, volatility=1e-4, volume=300.0)
    config = EnvSettings(start="first", participation=0.25, cost_bps=0.0)
    env = TradingEnv(market, config, num_envs=1)
    env.reset()
    held = torch.zeros(3, dtype=torch.float64)
    for bar in range(1, 20):
        env.step(torch.full((1, 3), 0.3 if bar < 12 else 0.0))
        traded = env.account.shares[0] - held
        most = torch.floor(market.volume[bar] * 0.25).to(torch.float64)
        held = env.account.shares[0].clone()
        if bar < 12:  # a target far away: all that may be taken is
            assert torch.equal(traded, most)
        else:
            assert torch.equal(traded, -torch.minimum(most, held - traded))
    record = TradingEnv(market, config, num_envs=1, record=True)
    record.reset()
    info = record.step(torch.full((1, 3), 0.3))[4]
    assert bool((info["ordered"] > info["fill_shares"]).all())


def test_impact_grows_with_the_root_of_the_share_of_the_volume_and_a_symbol_has_its_own_spread():
    market = make_market(10, 2, gaps=False, volatility=1e-5)
    market = replace(market, volume=torch.full_like(market.volume, 4e4))
    config = EnvSettings(
        cost_bps=0.0, participation=None, action="trade", max_shares=1e4, start="first"
    )

    def paid(shares, **costs):
        env = TradingEnv(market, config.model_copy(update=costs), num_envs=1, record=True)
        env.reset()
        info = env.step(torch.tensor([[shares / 1e4, 0.0]]))[4]
        assert float(info["fill_shares"][0, 0]) == shares
        return float(info["cost"][0]) / float(info["turnover"][0]) * 1e4

    assert paid(10_000, impact_bps=40.0) == pytest.approx(
        20.0
    )  # a quarter of the volume: half the basis points
    assert paid(2_500, impact_bps=40.0) == pytest.approx(10.0)
    assert paid(2_500, half_spread_bps={"S000": 7.0, "others": 3.0}) == pytest.approx(7.0)
    assert paid(2_500, half_spread_bps={"S001": 7.0, "others": 3.0}) == pytest.approx(3.0)


def test_what_no_order_can_mean_is_refused():
    for wrong in ({"participation": 0.0}, {"participation": 1.1}, {"impact_bps": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            EnvSettings(**wrong)
    market = make_market(10, 2)
    with pytest.raises(EnvError, match=r"the market has no S9; remove"):
        TradingEnv(market, EnvSettings(half_spread_bps={"S9": 1.0}))
    empty = replace(market, volume=torch.zeros_like(market.volume))
    with pytest.raises(EnvError, match=r"hold no volume.*participation to none"):
        TradingEnv(empty, EnvSettings())
    for no_limit in (None, "none"):
        TradingEnv(empty, EnvSettings(participation=no_limit))


def test_more_money_than_is_added_up_exactly_is_refused_at_the_door():
    with pytest.raises(ConfigError, match="initial_cash_usd"):
        EnvSettings(initial_cash_usd=1e10)
    with pytest.raises(EnvError, match="at most"):
        TradingEnv(make_market(10, 2), num_envs=1).reset(options={"cash_usd": 1e10})


def test_a_hundred_million_in_a_stock_of_thirty_cents_is_bought():
    market = make_market(10, 2, gaps=False, volatility=1e-5)
    scale = 0.3 / market.close[0]
    market = reprice(market, open=market.open * scale, close=market.close * scale)
    config = EnvSettings(dead_band=0.05, initial_cash_usd=1e8, participation=None, start="first")
    env = TradingEnv(market, config, num_envs=1)
    env.reset()
    env.step(torch.tensor([[0.5, 0.0]]))
    assert float(env.account.shares[0, 0]) == pytest.approx(0.5e8 / 0.3, rel=1e-3)
