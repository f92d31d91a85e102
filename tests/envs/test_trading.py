"""`TradingEnv` as a gymnasium vector environment: modes, keys, options, state, errors, and fills in
exact numbers."""

from dataclasses import replace

import pytest
import torch
from gymnasium.vector import AutoresetMode

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import ConfigError, EnvError
from tests.engines.strategies import random_actions
from tests.engines.twins import refused
from tests.factories import make_market, reprice


def plain_market(closes, opens=None):
    """A market of given prices without gaps."""
    close = torch.tensor(closes)
    base = make_market(20, close.shape[1], gaps=False).window(0, len(closes))
    tradable = ~close.isnan()
    return reprice(
        base, close=close, open=torch.tensor(opens) if opens else close.clone(), tradable=tradable
    )


# --- settings -------------------------------------------------------------------------------------


def test_keywords_are_put_over_the_settings():
    market = make_market(60, 4)
    rules = EnvSettings(num_envs=8, fill="close", randomise={"variants": 2})
    env = TradingEnv(market, rules, num_envs=64, cost_bps=5, randomise={"delay_bars": 1})
    changes = {"num_envs": 64, "cost_bps": 5.0, "fill": "close"}
    randomise = {"variants": 2, "delay_bars": 1}
    assert env.settings == EnvSettings(**changes, randomise=randomise)
    assert env.num_envs == 64
    assert TradingEnv(market, num_envs=3).settings.num_envs == 3
    assert repr(env).startswith("TradingEnv of engine fused: EnvSettings(num_envs=64, fill='close'")
    assert len(repr(env).splitlines()) == 6


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"costs_bps": 5}, "TradingEnv: costs_bps: unknown argument; did you mean 'cost_bps'"),
        ({"seeds": 5}, "did you mean 'seed'"),
        ({"cost_bps": "x"}, "TradingEnv: cost_bps: expected a number, got 'x'"),
        ({"reward": "profits"}, "TradingEnv: reward: expected one of profit"),
    ],
)
def test_a_wrong_keyword_is_a_setting_that_is_wrong(keywords, message):
    with pytest.raises(ConfigError, match=message):
        TradingEnv(make_market(60, 4), **keywords)


def test_a_call_without_a_market_shows_the_call():
    with pytest.raises(ConfigError, match=r"it is TradingEnv\(market, settings=None"):
        TradingEnv()


# --- exact numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fill", "shares", "equity"),
    [("next_open", 9, 1090), ("next_close", 8, 1000), ("close", 10, 1200)],
)
def test_fill_choices(fill, shares, equity):
    market = plain_market([[100.0], [120.0], [120.0]], opens=[[90.0], [110.0], [120.0]])
    settings = EnvSettings(fill=fill, cost_bps=0.0, initial_cash_usd=1000.0, start="first")
    env = TradingEnv(market, settings, num_envs=1, record=True)
    env.reset(seed=0)
    *_, info = env.step(torch.tensor([[1.0]]))
    assert env.account.shares.tolist() == [[shares]]
    assert float(env.equity) == equity
    assert int(info["decision_bar"]) == 0
    assert int(info["fill_bar"]) == (0 if fill == "close" else 1)


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
        start="first",
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


def test_margin_call_closes_everything_and_interest_is_charged():
    settings = EnvSettings(
        action="trade",
        max_shares=10.0,
        short=True,
        max_leverage=2.0,
        maintenance_margin=0.25,
        cost_bps=10.0,
        ruin_fraction=0.0,
        start="first",
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


def test_groups_begin_where_as_many_accounts_by_themselves_do():
    settings = EnvSettings(episode_bars=10, start_groups=40)
    few, many = (
        TradingEnv(make_market(300, 2), settings, num_envs=count, seed=5) for count in (40, 160)
    )
    for one in (few, many):
        one.reset()
    assert torch.equal(many.account.start_bar[::4], few.account.start_bar)


@pytest.mark.parametrize("engine", ["torch", "fused"])
@pytest.mark.parametrize("bars", [None, 3, 50])
def test_episodes_begin_and_end_with_sessions(engine, bars):
    sessions = [4, 1, 6, 5, 1, 3]  # those of one bar hold no episode
    numbers = torch.repeat_interleave(torch.arange(6), torch.tensor(sessions))
    market = replace(make_market(20, 2, gaps=False), session=numbers)
    env = TradingEnv(market, num_envs=64, start="session", episode_bars=bars, engine=engine, seed=5)
    env.reset()
    ends = {0: 3, 5: 10, 11: 15, 17: 19}
    seen = set()
    for _ in range(12):
        account = env.account
        for start, end in zip(account.start_bar.tolist(), account.end_bar.tolist(), strict=True):
            seen.add(start)
            assert end == min(ends[start], start + (bars or 99))
        env.step(torch.zeros(64, 2))
    assert seen == set(ends)


def test_a_start_of_ones_own_ends_with_the_session_of_its_first_fill():
    market = replace(make_market(20, 2, gaps=False), session=torch.arange(20) // 5)
    env = TradingEnv(market, num_envs=3, start="session")
    env.reset(options={"start": [2, 4, 18]})
    assert env.account.end_bar.tolist() == [4, 9, 19]


def test_daily_bars_have_no_session_for_an_episode():
    daily = replace(make_market(20, 2), session=torch.arange(20))
    with pytest.raises(
        EnvError, match=r"no session of the window has two bars.*set env.start to bar"
    ):
        TradingEnv(daily, start="session")
    assert TradingEnv(daily, start="bar").num_envs == 256


def test_groups_that_do_not_divide_are_refused():
    with pytest.raises(
        EnvError, match=r"env\.start_groups is 6, which does not divide 64 accounts; set it to 4"
    ):
        TradingEnv(make_market(30, 2), EnvSettings(start_groups=6), num_envs=64)
    one = EnvSettings(
        start_groups=6, start="first"
    )  # every account begins at the window's start anyway
    assert TradingEnv(make_market(30, 2), one, num_envs=64).num_envs == 64


def test_more_accounts_than_memory_are_refused():
    with pytest.raises(
        EnvError, match=r"100,000,000,000 accounts needs? .* GiB .*lower env\.num_envs"
    ):
        TradingEnv(make_market(30, 2), EnvSettings(), num_envs=10**11)


# --- errors ---------------------------------------------------------------------------------------


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
    with refused(env, message):
        env.reset(options=options)


def test_shares_alone_must_be_worth_something_wherever_an_episode_may_begin():
    # lists at bar 12
    market = make_market(60, 4)
    late = torch.tensor([0.0, 7.0, 0.0, 0.0])
    given = {"start": 20, "cash_usd": 0.0, "shares": late}
    env = TradingEnv(market, num_envs=2)
    env.reset(seed=0)
    with refused(env, "cash_usd"):
        env.reset(options=given)
    env.reset(options=given | {"shares": late + 1.0})
    env.reset(options=given | {"cash_usd": 1.0})
    TradingEnv(market, num_envs=2, autoreset_mode=AutoresetMode.DISABLED).reset(options=given)


def test_a_finished_account_does_not_step_on():
    env = TradingEnv(
        make_market(30, 3),
        num_envs=2,
        autoreset_mode=AutoresetMode.DISABLED,
        copy=False,
    )
    env.reset(options={"episode_bars": torch.tensor([1, 5])})
    obs, _, _, truncated, _ = env.step(torch.full((2, 3), 0.3))
    assert truncated.tolist() == [True, False]
    kept = obs.clone()
    with refused(env, "reset_mask"):
        env.step(torch.full((2, 3), 0.9))
    assert torch.equal(obs, kept)


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
