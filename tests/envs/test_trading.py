"""`TradingEnv` as a gymnasium vector environment: modes, keys, options, state, errors, and fills in
exact numbers."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import EnvError
from tests.engines.strategies import random_actions
from tests.factories import make_market


def plain_market(closes, opens=None):
    """A market of given prices without gaps."""
    close = torch.tensor(closes)
    base = make_market(20, close.shape[1], gaps=False).window(0, len(closes))
    tradable = ~close.isnan()
    return replace(
        base, close=close, open=torch.tensor(opens) if opens else close.clone(), tradable=tradable
    )


# --- exact numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fill", "shares", "equity"),
    [("next_open", 9, 1090), ("next_close", 8, 1000), ("close", 10, 1200)],
)
def test_fill_choices(fill, shares, equity):
    market = plain_market([[100.0], [120.0], [120.0]], opens=[[90.0], [110.0], [120.0]])
    settings = EnvSettings(fill=fill, cost_bps=0.0, initial_cash_usd=1000.0, random_start=False)
    env = TradingEnv(market, settings, num_envs=1, record=True)
    env.reset(seed=0)
    *_, info = env.step(torch.tensor([[1.0]]))
    assert env.account.shares.tolist() == [[shares]]
    assert float(env.equity) == equity
    assert int(info["decision_bar"]) == 0
    assert int(info["fill_bar"]) == (0 if fill == "close" else 1)


def test_sales_pay_for_purchases_and_buys_share_one_factor():
    market = plain_market([[10.0, 20.0, 50.0]] * 3)
    settings = EnvSettings(
        action="trade", max_shares=100.0, cost_bps=0.0, fractional=True, random_start=False
    )
    env = TradingEnv(market, settings, num_envs=1)
    env.reset(options={"cash_usd": 0.0, "shares": torch.tensor([60.0, 0.0, 0.0])})
    env.step(torch.tensor([[-1.0, 1.0, 0.5]]))  # sell 60 for 600 USD; wanted: 2000 + 2500 USD
    factor = 600 / 4500
    assert env.account.shares[0].tolist() == pytest.approx([0.0, 100 * factor, 50 * factor])
    assert 0.0 <= float(env.account.cash) < 1e-5


def test_costs_add_up():
    market = plain_market([[100.0]] * 3)
    market = replace(market, volume=torch.full_like(market.volume, 10_000.0))
    settings = EnvSettings(
        action="trade",
        max_shares=100.0,
        cost_bps=10.0,
        half_spread_bps=5.0,
        impact_bps=20.0,
        participation=1.0,
        random_start=False,
    )
    env = TradingEnv(market, settings, num_envs=1, record=True)
    env.reset(seed=0)
    *_, info = env.step(torch.tensor([[1.0]]))
    # 10,000 USD: 10 USD fee, 5 USD spread, and 20 bp times the root of a hundredth of the volume: 2
    # USD
    assert float(info["cost"]) == pytest.approx(17.0)
    assert info["fill_cost"].tolist() == [[pytest.approx(17.0)]]
    assert float(info["turnover"]) == 10_000.0
    assert float(env.account.cash) == pytest.approx(1e6 - 10_000 - 17)


def test_an_ended_symbol_is_sold_at_its_last_close_with_costs():
    market = plain_market(
        [[100.0, 50.0], [100.0, 60.0], [100.0, float("nan")], [100.0, float("nan")]]
    )
    env = TradingEnv(
        market,
        EnvSettings(cost_bps=100.0, action="trade", random_start=False),
        num_envs=1,
        record=True,
    )
    env.reset(options={"cash_usd": 0.0, "shares": torch.tensor([0.0, 10.0])})
    *_, info = env.step(torch.zeros(1, 2))
    assert env.account.shares.tolist() == [[0.0, 0.0]]
    assert float(env.account.cash) == pytest.approx(10 * 60 * 0.99)
    assert info["closed_shares"].tolist() == [[[0.0, -10.0]]]
    assert info["closed_cost"][0, 0].tolist() == pytest.approx([0.0, 6.0])


def test_margin_call_closes_everything_and_interest_is_charged():
    settings = EnvSettings(
        action="trade",
        max_shares=10.0,
        short=True,
        max_leverage=2.0,
        maintenance_margin=0.25,
        cost_bps=10.0,
        ruin_fraction=0.0,
        random_start=False,
        borrow_bps_per_year=1000.0,
        initial_cash_usd=1000.0,
    )
    env = TradingEnv(
        plain_market([[100.0], [100.0], [170.0], [170.0]]), settings, num_envs=1, record=True
    )
    env.reset(seed=0)
    *_, info = env.step(-torch.ones(1, 1))
    assert env.account.shares.tolist() == [[-10.0]]
    interest = 1000.0 * 0.1 / (365 * 1440)  # one minute on the short notional
    assert info["interest"].item() == pytest.approx(interest)
    *_, info = env.step(torch.zeros(1, 1))
    # equity 1000 - 1 - 700 = 299 < 0.25 * 1700: bought back at 170 for 0.1 % of 1700
    assert info["closed_shares"].item() == 10.0
    assert info["closed_cost"].item() == pytest.approx(1.7)
    assert env.account.shares.tolist() == [[0.0]]
    assert env.equity.item() == pytest.approx(1000 - 1 - 700 - 1.7 - 2 * interest)


def test_short_sales_respect_the_leverage_limit():
    settings = EnvSettings(
        action="trade",
        max_shares=100.0,
        short=True,
        max_leverage=2.0,
        cost_bps=100.0,
        fractional=True,
        random_start=False,
        initial_cash_usd=1000.0,
    )
    env = TradingEnv(plain_market([[100.0, 50.0]] * 3), settings, num_envs=1)
    env.reset(seed=0)
    env.step(
        torch.tensor([[-1.0, 1.0]])
    )  # 10,000 short and 5,000 long: s X = 2 (1000 - 0.01 s X), s X = 2000 / 1.02
    gross = 2000 / 1.02
    assert env.account.shares[0].tolist() == pytest.approx([-gross * 2 / 3 / 100, gross / 3 / 50])
    assert env.equity.item() == pytest.approx(gross / 2)


# --- gymnasium ------------------------------------------------------------------------------------


def test_the_step_that_begins_an_episode_records_no_trades():
    env = TradingEnv(
        make_market(30, 3),
        EnvSettings(episode_bars=2),
        num_envs=2,
        autoreset_mode=AutoresetMode.NEXT_STEP,
        record=True,
    )
    env.reset(options={"episode_bars": torch.tensor([1, 2])})
    env.step(torch.full((2, 3), 0.3))
    *_, info = env.step(torch.full((2, 3), 0.6))
    assert info["cost"][0] == 0.0
    assert info["cost"][1] > 0.0
    assert not bool(info["fill_shares"][0].any())
    assert bool(info["fill_shares"][1].any())


@pytest.mark.parametrize("engine", ["torch", "auto"])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_a_later_episode_begins_without_the_shares_of_what_is_not_listed_there(engine, mode):
    """Nobody is given shares before they exist, or ones that nobody will ever buy back."""
    market = make_market(60, 4, gaps=True)  # symbol 1 lists at bar 12, symbol 2 ends at bar 47
    settings = EnvSettings(random_start=False, action="trade")
    env = TradingEnv(market, settings, num_envs=1, autoreset_mode=mode, engine=engine)
    env.reset(
        options={"start": 30, "shares": torch.full((4,), 7.0), "episode_bars": 2, "cash_usd": 500.0}
    )
    assert env.account.shares.tolist() == [[7.0] * 4]
    for _ in range(3):
        *_, truncated, _ = env.step(torch.zeros(1, 4))
        if mode is AutoresetMode.DISABLED and bool(truncated):
            env.reset(options={"reset_mask": truncated.clone()})
        if int(env.account.bar) < 30:
            break
    assert int(env.account.start_bar) == 0
    assert env.account.shares.tolist() == [[7.0, 0.0, 7.0, 7.0]]
    env.reset(options={"start": 50, "cash_usd": 500.0})
    assert env.account.shares.tolist() == [[0.0] * 4]


def test_starts_differ_between_accounts_episodes_and_seeds():
    market = make_market(300, 2)
    env = TradingEnv(market, EnvSettings(episode_bars=10, start_groups=400), num_envs=400)
    env.reset(seed=5)
    starts = env.account.start_bar
    assert 0 <= int(starts.min()) < 20
    assert 270 < int(starts.max()) <= 289
    counts = torch.bincount(starts // 29, minlength=10)
    assert int(counts.min()) > 15  # 40 expected in each tenth
    env.reset()
    assert not torch.equal(env.account.start_bar, starts)
    env.reset(seed=5)
    assert torch.equal(env.account.start_bar, starts)
    env.reset(seed=6)
    assert not torch.equal(env.account.start_bar, starts)


@pytest.mark.parametrize(
    ("asked", "accounts", "groups"), [("auto", 48, 16), ("auto", 5, 5), (8, 48, 8), (1, 6, 1)]
)
def test_accounts_of_a_group_begin_on_the_same_bars(asked, accounts, groups):
    market = make_market(3000, 2)
    env = TradingEnv(market, EnvSettings(episode_bars=3, start_groups=asked), num_envs=accounts)
    env.reset(seed=5)
    seen = []
    for _ in range(4):
        starts = env.account.start_bar.view(groups, -1)
        assert bool((starts == starts[:, :1]).all())
        assert len(starts[:, 0].unique()) > 0.7 * groups
        seen.append(starts[:, 0])
        for _ in range(3):
            env.step(random_actions(0, 1, accounts, 2)[0])
    assert len(torch.stack(seen).unique()) > 2 * groups
    # A list seeds every account by itself.
    env.reset(seed=list(range(accounts)))
    assert len(env.account.start_bar.unique()) > 0.7 * accounts


def test_groups_begin_wherever_accounts_by_themselves_do():
    market = make_market(300, 2)

    def starts(groups):
        env = TradingEnv(market, EnvSettings(episode_bars=10, start_groups=groups), num_envs=groups)
        grouped = TradingEnv(
            market, EnvSettings(episode_bars=10, start_groups=groups), num_envs=4 * groups
        )
        for one in (env, grouped):
            one.reset(seed=5)
        assert torch.equal(grouped.account.start_bar[::4], env.account.start_bar)
        return grouped.account.start_bar

    counts = torch.bincount(starts(1000) // 29, minlength=10)
    assert int(counts.min()) > 4 * 60  # 100 expected in each tenth


def test_groups_that_do_not_divide_are_refused():
    with pytest.raises(
        EnvError, match=r"env\.start_groups is 6, which does not divide 64 accounts; set it to 4"
    ):
        TradingEnv(make_market(30, 2), EnvSettings(start_groups=6), num_envs=64)
    one = EnvSettings(
        start_groups=6, random_start=False
    )  # every account begins at the window's start anyway
    assert TradingEnv(make_market(30, 2), one, num_envs=64).num_envs == 64


def test_more_accounts_than_memory_are_refused():
    with pytest.raises(
        EnvError, match=r"100,000,000,000 accounts needs? .* GiB .*lower env\.num_envs"
    ):
        TradingEnv(make_market(30, 2), EnvSettings(), num_envs=10**11)


def test_state_dict_continues_bit_exactly():
    market = make_market(40, 3)
    settings = EnvSettings(episode_bars=6, reward="differential_sharpe")
    first = TradingEnv(market, settings, num_envs=4, seed=1)
    first.reset(options={"cash_usd": torch.tensor([1e5, 2e5, 3e5, 4e5])})
    actions = random_actions(0, 30, 4, 3)
    for action in actions[:10]:
        first.step(action)
    second = TradingEnv(market, settings, num_envs=4, seed=99)
    second.load_state_dict(first.state_dict())
    for action in actions[10:]:
        a = first.step(action)
        b = second.step(action)
        assert all(torch.equal(x, y) for x, y in zip(a[:4], b[:4], strict=True))


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (torch.full((2, 3), float("nan")), "NaN"),
        (torch.full((2, 3), float("inf")), "NaN"),
        (torch.ones(3, 2), "shape"),
        (torch.ones(2, 3, dtype=torch.int64), "floating"),
        (np.ones((2, 3), dtype=np.int32), "floating"),
        ([[0.0] * 3] * 2, "tensor"),
        (torch.ones(2, 3, device="meta"), "lie on meta"),
    ],
)
def test_bad_actions_leave_the_state_alone(action, message):
    env = TradingEnv(make_market(30, 3), num_envs=2, copy=False)
    env.reset(seed=0)
    obs, *_ = env.step(torch.full((2, 3), 0.2))
    kept = obs.clone()
    before = env.state_dict()
    with pytest.raises(EnvError, match=message):
        env.step(action)
    assert torch.equal(obs, kept)
    assert all(torch.equal(value, before[name]) for name, value in env.state_dict().items())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stat": 3}, "unknown"),
        ({"start": 29}, "start"),
        ({"start": [1, 2, 3]}, "start"),
        ({"cash_usd": -1.0}, "cash"),
        ({"shares": torch.tensor([-1.0, 0.0, 0.0])}, "negative"),
        ({"shares": torch.tensor([0.5, 0.0, 0.0])}, "whole"),
        ({"shares": torch.ones(4)}, "shape"),
        ({"cash_usd": 0.0}, "equity"),
        ({"episode_bars": 0}, "episode_bars"),
        ({"reset_mask": torch.zeros(2, dtype=torch.bool)}, "no account"),
        ({"reset_mask": torch.ones(2)}, "booleans"),
        ({"start": "a"}, r"options\['start'\] must be numbers, got 'a'"),
        ({"start": 3.7}, "whole numbers"),
        ({"episode_bars": None}, "must be numbers"),
        ({"shares": [[1.0], [1.0, 2.0]]}, "must be numbers"),
    ],
)
def test_bad_options_leave_the_state_alone(options, message):
    env = TradingEnv(make_market(30, 3), num_envs=2)
    env.reset(seed=0)
    before = env.state_dict()
    with pytest.raises(EnvError, match=message):
        env.reset(options=options)
    assert all(torch.equal(value, before[name]) for name, value in env.state_dict().items())


def test_shares_alone_must_be_worth_something_wherever_an_episode_may_begin():
    # lists at bar 12
    market = make_market(60, 4)
    late = torch.tensor([0.0, 7.0, 0.0, 0.0])
    given = {"start": 20, "cash_usd": 0.0, "shares": late}
    env = TradingEnv(market, num_envs=2)
    env.reset(seed=0)
    before = env.state_dict()
    with pytest.raises(EnvError, match="cash_usd"):
        env.reset(options=given)
    assert all(torch.equal(value, before[name]) for name, value in env.state_dict().items())
    env.reset(options=given | {"shares": late + 1.0})
    env.reset(options=given | {"cash_usd": 1.0})
    TradingEnv(market, num_envs=2, autoreset_mode=AutoresetMode.DISABLED).reset(options=given)


@pytest.mark.parametrize("engine", ["torch", "auto"])
def test_a_finished_account_does_not_step_on(engine):
    env = TradingEnv(
        make_market(30, 3),
        num_envs=2,
        autoreset_mode=AutoresetMode.DISABLED,
        engine=engine,
        copy=engine == "torch",
    )
    env.reset(options={"episode_bars": torch.tensor([1, 5])})
    obs, _, _, truncated, _ = env.step(torch.full((2, 3), 0.3))
    assert truncated.tolist() == [True, False]
    kept = obs.clone()
    before = env.state_dict()
    with pytest.raises(EnvError, match="reset_mask"):
        env.step(torch.full((2, 3), 0.9))
    assert torch.equal(obs, kept)
    assert all(torch.equal(value, before[name]) for name, value in env.state_dict().items())


def test_other_misuse():
    market = make_market(30, 3)
    env = TradingEnv(market, num_envs=2)
    with pytest.raises(EnvError, match="reset"):
        env.step(torch.ones(2, 3))
    with pytest.raises(EnvError, match="at least two"):
        TradingEnv(market.window(3, 4))
    with pytest.raises(EnvError, match=r"env\.turbulence: no context column 'vix'"):
        TradingEnv(market, EnvSettings(turbulence={"vix": 3.0}))
    with pytest.raises(EnvError, match="num_envs"):
        TradingEnv(market, num_envs=0)
    with pytest.raises(EnvError, match="seeds"):
        env.reset(seed=[1, 2, 3])
    with pytest.raises(EnvError, match="not listed"):
        TradingEnv(make_market(60, 4), num_envs=1).reset(
            options={"shares": torch.ones(4), "start": 0}
        )
