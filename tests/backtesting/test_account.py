"""The compiled ledger against the environment's, over random markets, settings and actions."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fintrader.agents import ActionHeadSettings, NetworkSettings
from fintrader.agents.policy import ActorPolicy, EnsemblePolicy
from fintrader.backtesting import simulate, simulate_baselines
from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.null_models import random_portfolios
from fintrader.backtesting.policy_strategy import PolicyStrategy
from fintrader.backtesting.sensitivity import simulate_without_each
from fintrader.backtesting.simulation import trade
from fintrader.envs import EnvSettings, ObservationLayout
from fintrader.errors import BacktestError
from fintrader.progress import Progress
from tests.engines.policies import crashing_market, noisy_policy
from tests.engines.strategies import env_settings
from tests.factories import examples, make_market, reprice
from tests.oracles.env_account import EnvAccount, simulate_in_environment
from tests.oracles.trade_list import trade_list_profit
from tests.quick import slow_but

ENDS_AND_IS_CALLED_IN = EnvSettings(
    action="trade",
    max_shares=3.0,
    dead_band=0.0,
    participation="none",
    cost_bps=0.0,
    impact_bps=9000.0,
    short=True,
    initial_cash_usd=900.0,
    ruin_fraction=0.0,
    max_leverage=2.5,
    maintenance_margin=0.37,
    start="first",
)
"""With seed 387 one symbol ends at the bar of a margin call."""


def both(chosen, seed):
    volume = (1e9, 400.0)[seed % 2]
    events = seed % 3 > 0
    market = make_market(70, 5, seed=seed, volatility=0.03, volume=volume, events=events)
    policy = noisy_policy(5, seed)
    account = BacktestAccount(market, chosen)
    return trade(
        PolicyStrategy(policy, account, "kernel"), account, name="kernel"
    ), simulate_in_environment(policy, market, chosen)


@settings(max_examples=examples(80, quick=10))
@example(chosen=ENDS_AND_IS_CALLED_IN, seed=387)
@given(chosen=env_settings(), seed=st.integers(0, 10**6))
def test_every_setting_is_bit_for_bit_the_environments(chosen, seed):
    fast, slow = both(chosen, seed)
    assert (fast.equity == slow.equity).all()
    assert (fast.income_usd == slow.income_usd).all()
    assert fast.shares == pytest.approx(
        slow.shares, rel=1e-9, abs=1e-9
    )  # the other's are added up from changes
    # What ends and what is called in at one bar are closed in either order.
    mine, theirs = (
        one.trades.sort_values(["fill_bar", "kind", "symbol"], kind="stable")
        for one in (fast, slow)
    )
    exact = [
        "decision_bar",
        "fill_bar",
        "symbol",
        "price_usd",
        "kind",
        "decision_time",
        "fill_time",
    ]
    pd.testing.assert_frame_equal(
        mine[exact].reset_index(drop=True), theirs[exact].reset_index(drop=True)
    )
    assert mine["shares"].to_numpy() == pytest.approx(
        theirs["shares"].to_numpy(), rel=1e-9, abs=1e-9
    )
    # Proportional costs are taken of the sum, those of a line in the list are rounded to a unit of
    # money.
    assert mine["cost_usd"].to_numpy() == pytest.approx(theirs["cost_usd"].to_numpy(), abs=1e-5)
    assert fast.costs_usd == pytest.approx(slow.costs_usd, abs=1e-5)
    assert fast.turnover_usd == pytest.approx(slow.turnover_usd, abs=1e-5)
    assert fast.ruined == slow.ruined
    if chosen.option is None:  # which no list of trades holds
        assert trade_list_profit(fast) == pytest.approx(
            fast.equity[-1] - fast.equity[0], abs=1e-6 * fast.equity[0] + 0.01
        )


def networks(num_assets, members):
    """Members that trade: weights far from where training begins."""
    torch.manual_seed(0)
    layout = ObservationLayout(num_assets, 2, 2)
    policy = EnsemblePolicy(
        [ActorPolicy(layout, NetworkSettings(), ActionHeadSettings()) for _ in range(members)]
    ).eval()
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.3)
    return policy.requires_grad_(False)


@pytest.mark.parametrize("interval", slow_but(1, every=[1, 3]))
def test_a_bound_ensemble_trades_what_its_networks_would(interval):
    """Every action is the networks' own to float32 rounding, and the same actions give the same
    equities."""
    market = make_market(150, 5, session_bars=30)
    chosen = EnvSettings(decision_interval=interval)
    policy = networks(5, 4)
    fast = BacktestAccount(market, chosen)
    slow = EnvAccount(market, chosen)
    decide = PolicyStrategy(policy, fast, "bound")
    over = False
    moved = 0.0
    while not over:
        action = decide(fast)
        seen = fast.observe()
        assert isinstance(action, np.ndarray)
        assert torch.equal(seen, slow.observe())
        own = policy(seen)[0].numpy()
        assert action == pytest.approx(own, abs=2e-6)
        moved = max(moved, float(np.abs(own).max()))
        given = action.copy()
        over = fast.act(given)
        assert over == slow.act(given)
        assert fast.equity == slow.equity
    assert moved > 0.15
    assert (fast.trade_log.equity == slow.trade_log.equity).all()
    assert (fast.trade_log.shares == slow.trade_log.shares).all()
    whole = simulate(policy, market, chosen)
    exact = simulate_in_environment(policy, market, chosen)
    assert (whole.equity == fast.trade_log.equity).all()
    assert whole.equity == pytest.approx(
        exact.equity, rel=1e-4
    )  # a share more or less, where rounding decides


KINDS = {
    "blind": {},
    "account": {"private": ("account", "holdings")},
    "per_asset": {"kind": "per_asset"},
    "mlp": {"kind": "mlp", "hidden": (9,)},
    "past": {"encoder": "gru"},
}


@pytest.mark.parametrize("kind", slow_but(*range(0, len(KINDS), 2), every=KINDS))
@pytest.mark.parametrize(
    ("benchmark", "mode"), slow_but(1, every=[("cash", "vote"), ("equal_weight", "mean")])
)
def test_a_stretch_in_one_call_is_bit_for_bit_its_decisions_one_by_one(kind, benchmark, mode):
    """A simulation that is watched asks at each bar, another one trades on in compiled code. The
    market has splits, dividends and ends of symbols."""
    market = make_market(230, 5, session_bars=30, events=True, seed=1, volatility=0.02)
    chosen = EnvSettings(
        decision_interval=3, benchmark=benchmark, lookback=4 if kind == "past" else 1
    )
    torch.manual_seed(0)
    account = BacktestAccount(market, chosen)
    network = NetworkSettings(**KINDS[kind])
    policy = EnsemblePolicy(
        [ActorPolicy(account.layout, network, ActionHeadSettings()) for _ in range(3)], mode=mode
    ).eval()
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.4)
    policy.requires_grad_(False)
    bars = []
    watched = simulate(policy, market, chosen, watch=lambda account: bars.append(account.bar))
    whole = simulate(policy, market, chosen)
    assert bars == list(range(0, 229, 3))
    assert (whole.equity == watched.equity).all()
    assert (whole.shares == watched.shares).all()
    assert whole.orders == watched.orders
    pd.testing.assert_frame_equal(whole.trades, watched.trades)
    assert len(whole.trades) > 100
    asked = simulate(lambda obs: policy(obs), market, chosen)
    # Where rounding decides, a share more or less.
    assert whole.equity == pytest.approx(asked.equity, rel=1e-3)


def test_a_stretch_reports_and_ends_where_single_decisions_do():
    class Seen(Progress):
        def changed(self, task):
            done.append(task.done)

    def run(**more):
        done.clear()
        result = simulate(policy, market, chosen, progress=Seen(), **more)
        return result, list(done)

    done = []
    market = crashing_market()
    chosen = EnvSettings(decision_interval=7, cost_bps=20, start="first")
    layout = ObservationLayout.of(market)
    head = ActionHeadSettings(kind="direct")
    policy = ActorPolicy(layout, NetworkSettings(kind="market_once"), head)
    torch.nn.init.constant_(policy.actor.head.bias, 0.5)
    policy.eval().requires_grad_(False)
    whole, reports = run()
    watched, expected = run(watch=lambda account: None)
    assert whole.ruined
    assert (whole.equity == watched.equity).all()
    assert reports == expected
    market = make_market(440, 2, session_bars=40)
    assert run()[1] == run(watch=lambda account: None)[1]
    assert len(done) > 4


def test_a_diverged_network_is_named_however_it_is_asked():
    market = make_market(40, 5)
    policy = networks(5, 2)
    next(policy.parameters()).fill_(float("nan"))
    with pytest.raises(BacktestError, match="NaN or infinity"):
        simulate(policy, market, EnvSettings())
    decide = PolicyStrategy(networks(5, 2), BacktestAccount(market, EnvSettings()), "x")
    broken = replace(market, features=torch.full_like(market.features, 1e38))
    assert np.isfinite(decide(BacktestAccount(market, EnvSettings()))).all()
    assert (
        simulate(networks(5, 2), broken, EnvSettings()).equity.min() > 0
    )  # clipped, as training clips it


def test_ruin_as_in_the_environment():
    for interval in (1, 7):
        chosen = EnvSettings(
            decision_interval=interval, cost_bps=20, min_commission_usd=1, start="first"
        )
        account = BacktestAccount(crashing_market(), chosen)
        fast = trade(lambda account: torch.full((1, 2), 0.5), account, name="kernel")
        slow = simulate_in_environment(
            lambda obs: torch.full((1, 2), 0.5), crashing_market(), chosen
        )
        assert fast.ruined
        assert (fast.equity == slow.equity).all()
        assert (fast.shares == slow.shares).all()


def test_waiting_longer_than_the_interval_still_sees_ruin_and_endings():
    def once_at_first(market, share):
        account = BacktestAccount(market, EnvSettings(start="first"))
        action = torch.full((1, market.num_assets), share)
        return trade(lambda account: action, account, name="once", due=lambda bar: market.num_bars)

    result = once_at_first(crashing_market(), 0.5)
    assert result.ruined
    assert np.flatnonzero(np.diff(result.equity == result.equity[-1]))[0] == 19
    once = once_at_first(make_market(60, 5), 0.2)
    forced = once.trades[once.trades["kind"] == "forced"]
    assert list(forced["symbol"]) == ["S002"]
    assert trade_list_profit(once) == pytest.approx(once.equity[-1] - once.equity[0])


def test_nothing_is_sold_after_ruin_when_a_symbol_ends_later():
    market = crashing_market()
    gone = torch.arange(market.num_bars) > 30
    close = market.close.clone()
    open_ = market.open.clone()
    close[gone, 1] = open_[gone, 1] = float("nan")
    tradable = market.tradable.clone()
    tradable[gone, 1] = False
    ending = reprice(market, close=close, open=open_, tradable=tradable)
    account = BacktestAccount(ending, EnvSettings(start="first"))
    result = trade(
        lambda account: torch.full((1, 2), 0.5),
        account,
        name="once",
        due=lambda bar: market.num_bars,
    )
    assert result.ruined
    assert list(result.trades["kind"]) == ["order", "order", "ruin", "ruin"]
    assert trade_list_profit(result) == pytest.approx(result.equity[-1] - result.equity[0])


@settings(max_examples=examples(40, quick=8))
@example(chosen=EnvSettings(action="limit", stop_offset_bps=300.0), seed=0)
@given(chosen=env_settings(), seed=st.integers(0, 10**6))
def test_an_account_that_enters_another_market_trades_there_as_a_new_one(chosen, seed):
    """Also after ruin, and with orders and stops that still rest."""
    usual = make_market(40, 3, seed=seed, volatility=0.03, events=True)
    moved = BacktestAccount(crashing_market(40, 3) if seed % 2 else usual, chosen)
    rng = np.random.default_rng(seed)
    width = moved.layout.num_actions
    for _ in range(rng.integers(9, 40)):
        if moved.act(rng.uniform(-1, 1, width).astype(np.float32)):
            break
    market = make_market(50, 3, seed=seed + 1, volatility=0.03, events=True)
    moved.enter(market)
    new = BacktestAccount(market, chosen)
    for account in (moved, new):
        account.set_books(
            bar=5, cash=7e4, equity=9e4, capital=(1e5, 8e4), shares=np.array([30.0, 0.0, 7.0])
        )
    over = False
    while not over:
        action = rng.uniform(-1, 1, width).astype(np.float32)
        assert (moved.private() == new.private()).all()
        assert (moved.holdings(action) == new.holdings(action)).all()
        over = new.act(action)
        assert moved.act(action) == over
        assert (moved.resting == new.resting).all()
    for mine, theirs in zip(moved.list_trades(), new.list_trades(), strict=True):
        assert (mine == theirs).all()
    assert (moved.trade_log.equity[5:] == new.trade_log.equity[5:]).all()
    assert moved.trade_log.ruined == new.trade_log.ruined


@pytest.mark.gpu
def test_a_market_and_a_policy_on_the_gpu_give_the_same_backtest():
    market = make_market(120, 5, session_bars=20)
    chosen = EnvSettings(decision_interval=3)
    weight = torch.randn(26, 5, generator=torch.Generator().manual_seed(0))
    placed = weight.cuda()
    here = simulate(lambda obs: torch.tanh(obs @ weight[: obs.shape[1]]), market, chosen)
    there = simulate(
        lambda obs: torch.tanh(obs @ placed[: obs.shape[1]]), market.to("cuda"), chosen
    )
    exact = simulate_in_environment(
        lambda obs: torch.tanh(obs @ placed[: obs.shape[1]]), market.to("cuda"), chosen
    )
    assert there.equity == pytest.approx(here.equity, rel=1e-4)  # matrix products round differently
    assert exact.equity == pytest.approx(there.equity, rel=1e-12)
    for name, result in simulate_baselines(market.to("cuda"), chosen, every=True).items():
        assert (
            result.equity == simulate_baselines(market, chosen, every=True)[name].equity
        ).all(), name
    assert random_portfolios(market.to("cuda"), chosen, seed=0, count=50).sharpe.shape == (50,)
    assert (
        len(
            simulate_without_each(
                lambda obs: torch.tanh(obs @ placed[: obs.shape[1]]), market.to("cuda"), chosen
            )
        )
        == 5
    )
