import math
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from fintrader.agents import APG, PPO, Budget, NetworkSettings, make_agent, train
from fintrader.agents.checkpoint import read_tensors
from fintrader.envs import EnvSettings, RandomisedEnv, TradingEnv
from fintrader.envs.randomised import draw_bars
from fintrader.envs.settings import RandomiseSettings
from fintrader.errors import CheckpointError, ConfigError, EnvError
from fintrader.seeding import create_generator
from tests.engines.twins import assert_same
from tests.factories import make_market
from tests.quick import slow_but

SESSION = 20
MARKET = make_market(10 * SESSION, 4, events=True, session_bars=SESSION, seed=3)
ALL = {"variants": 2, "costs": (0.5, 4.0), "delay_bars": 3, "block_sessions": 2}


def randomised(
    market=MARKET,
    *,
    num_envs=8,
    seed=5,
    asked=ALL,
    **settings,
):
    common = {
        "fractional": True,
        "benchmark": "equal_weight",
        "observation": "factored",
    }
    given = EnvSettings(**{**common, "randomise": asked, **settings})
    return RandomisedEnv(TradingEnv(market, given, num_envs=num_envs), seed=seed)


def growths(market):
    """What a dollar in a symbol at one close is worth at the next one, dividends included, bar by
    bar: 1 without two prices. In plain Python, from prices as traded."""
    events = {
        (b, a): (s, d)
        for b, a, s, d in zip(*(part.tolist() for part in market.events), strict=True)
    }
    close = market.close.tolist()
    grown = [[1.0] * market.num_assets]
    for t in range(1, market.num_bars):
        row = []
        for n in range(market.num_assets):
            split, dividend = events.get((t, n), (1.0, 0.0))
            before = close[t - 1][n]
            now = close[t][n]
            row.append(
                1.0 if math.isnan(before) or math.isnan(now) else (split * now + dividend) / before
            )
        grown.append(row)
    return grown


def worth_of_a_share(env, symbol):
    """One share of a symbol at the close of each bar of a variant, splits and dividends collected
    as shares, from what its ledger reads."""
    view = env.view
    shares = 1.0
    worth = []
    for t in range(env.market.num_bars):
        row = int(view.event_row[t])
        mark = float(view.mark[t, symbol])
        if t and row:
            split = float(view.splits[row, symbol])
            paid = float(view.dividends[row, symbol])
            shares *= split + paid / mark
        worth.append(shares * mark)
    return worth


def test_whole_blocks_of_sessions_follow_each_other_in_their_own_order():
    session = MARKET.session
    firsts = set()
    for seed in range(20):
        bars = draw_bars(session, 3, create_generator(seed, "test"))
        assert len(bars) == len(session)
        for block in bars[: len(bars) // (3 * SESSION) * 3 * SESSION].split(3 * SESSION):
            assert int(block[0]) % SESSION == 0
            assert block.diff().eq(1).all()
            firsts.add(int(session[block[0]]))
    assert firsts == set(range(1, 8)), "any block of three sessions but those with the first"


def test_sessions_that_are_drawn_bound_episodes():
    env = randomised(start="session", asked={**ALL, "block_sessions": 1})
    bars = torch.arange(MARKET.num_bars)
    drawn = set()
    for one in env.variants:
        starts, stops = one.view.starts, one.view.stops
        assert (starts % SESSION == 0).all()
        assert len(starts) == MARKET.num_bars // SESSION
        # One after the other, also where a session follows itself.
        assert torch.equal(stops[:-1], (bars[1:] // SESSION + 1) * SESSION - 1)
        drawn |= set(map(tuple, [one.source[starts].tolist()]))
    assert len(drawn) > 1


def test_prices_are_chained_by_the_returns_that_were():
    grown = growths(MARKET)
    for env in randomised().variants:
        assert (env.source.diff() != 1).any(), "nothing was reordered"
        for n in range(MARKET.num_assets):
            worth = worth_of_a_share(env, n)
            for t in range(1, MARKET.num_bars):
                if worth[t - 1] > 0:
                    expected = grown[int(env.source[t])][n]
                    assert worth[t] / worth[t - 1] == pytest.approx(expected, rel=2e-6), (t, n)


def test_what_is_shown_is_a_row_of_the_original_so_many_bars_ago():
    env = randomised(asked={**ALL, "variants": 4})
    delays = [variant.delay for variant in env.variants]
    assert len(set(delays)) > 1
    obs, _ = env.reset(seed=1)
    for _ in range(30):
        for variant, clock in zip(env.variants, obs["clock"].split(2), strict=True):
            bar = variant.source[variant.account.bar]
            assert torch.equal(clock, (bar - variant.delay).clamp(min=0))
            # What trades now is what traded then.
            trades = MARKET.tradable[bar]
            assert torch.equal(variant.view.fill[variant.account.bar] > 0, trades)
        obs, *_ = env.step(torch.rand(8, 4))


def test_a_copy_trades_the_same_prices():
    env = randomised()
    env.reset(seed=1)
    twin = deepcopy(env)
    for one, two in zip(env.variants, twin.variants, strict=True):
        assert (one.source.diff() != 1).any()
        tensors = ("quotes", "benchmark", "splits", "dividends", "event_row", "last_bar")
        for name in tensors:
            assert torch.equal(getattr(one.view, name), getattr(two.view, name)), name


def test_the_benchmark_earns_what_it_earned_on_that_bar():
    env = randomised()
    original = TradingEnv(MARKET, env.settings).view.benchmark.diff().tolist()
    for variant in env.variants:
        grown = variant.view.benchmark.diff().tolist()
        for t in range(1, MARKET.num_bars):
            assert grown[t - 1] == pytest.approx(original[int(variant.source[t]) - 1], abs=1e-12)


def test_dollars_of_volume_stay_and_an_order_takes_its_part_of_them():
    env = randomised(participation=0.25)
    for variant in env.variants:
        assert variant.source is not None
        view = variant.view
        bar = variant.source
        dollars = torch.nan_to_num(MARKET.open * MARKET.volume * MARKET.tradable)[bar] * 0.25
        assert torch.allclose(view.order_limit * view.fill, dollars, rtol=1e-5)


def test_a_symbol_that_ends_is_sold_after_the_last_session_of_its_life():
    ended = int(MARKET.last_bar[2])
    assert ended < MARKET.num_bars - 1
    seen = 0
    for seed in range(6):
        env = randomised(
            seed=seed, start="first", participation="none", asked={**ALL, "costs": (1.0, 1.0)}
        )
        for variant in env.variants:
            alive = [t for t in range(MARKET.num_bars) if int(variant.source[t]) <= ended]
            if not alive or alive[-1] == MARKET.num_bars - 1:
                continue
            seen += 1
            variant.reset(seed=1)
            action = torch.zeros(4, 4)
            action[:, 2] = 1.0
            for t in range(1, MARKET.num_bars - 1):
                variant.step(action)
                held = variant.account.shares[:, 2]
                if t >= alive[-1]:
                    assert (held == 0).all(), t
                elif variant.view.fill[1 : t + 1, 2].any():
                    assert (held > 0).all(), t
    assert seen


def test_costs_lie_between_the_bounds_and_reach_the_ledger():
    env = randomised(
        num_envs=64,
        asked={"variants": 32, "costs": (0.5, 8.0)},
        cost_bps=20.0,
        half_spread_bps={"S001": 8.0, "others": 4.0},
        impact_bps=10.0,
        start="first",
    )
    times = [variant.settings.cost_bps / 20 for variant in env.variants]
    assert 0.5 <= min(times) < 1 < 4 < max(times) <= 8.0
    # Uniform is the logarithm: as many below 2 as above.
    assert 8 <= sum(time < 2 for time in times) <= 24
    for variant, time in zip(env.variants, times, strict=True):
        assert variant.source is None
        assert variant.settings.impact_bps == pytest.approx(10 * time)
        assert variant.view.spread.tolist() == pytest.approx(
            [4e-4 * time, 8e-4 * time, 4e-4 * time, 4e-4 * time]
        )
    env.reset(seed=1)
    env.step(torch.full((64, 4), 0.25))
    paid = torch.stack([1 - variant.account.equity.mean() / 1e6 for variant in env.variants])
    assert torch.corrcoef(torch.stack([paid, torch.tensor(times)]))[0, 1] > 0.9


def test_the_seed_says_which_variants():
    one = randomised()
    same = randomised()
    other = randomised(seed=6)
    for a, b in zip(one.variants, same.variants, strict=True):
        assert torch.equal(a.view.mark, b.view.mark)
        assert (a.delay, a.settings.cost_bps) == (b.delay, b.settings.cost_bps)
    assert not torch.equal(one.variants[0].view.mark, one.variants[1].view.mark)
    assert not torch.equal(one.variants[0].view.mark, other.variants[0].view.mark)


def test_gradients_go_through_it():
    """The slope of all that is earned, as finite differences find it."""
    given = EnvSettings(
        fractional=True,
        observation="factored",
        randomise=ALL,
        cost_bps=50.0,
        benchmark="equal_weight",
    )
    env = RandomisedEnv(TradingEnv(MARKET, given, num_envs=4), seed=2)

    def earned(action):
        env.reset(seed=3)
        total = torch.zeros((), dtype=torch.float64)
        for _ in range(3):
            _, reward, *_ = env.step(action)
            total = total + reward.double().sum()
        return total

    action = torch.full((4, 4), 0.15, dtype=torch.float64, requires_grad=True)
    earned(action).backward()
    assert (action.grad.abs().sum(1) > 0).all(), "an account without a slope"
    for b in range(4):
        step = torch.zeros(4, 4, dtype=torch.float64)
        step[b] = 1e-3
        with torch.no_grad():
            slope = (earned(action + step) - earned(action - step)) / 2e-3
        assert float(slope) == pytest.approx(float(action.grad[b].sum()), abs=2e-3)


NETWORK = NetworkSettings(hidden=(8,))
AGENTS = [
    PPO(num_steps=4, num_minibatches=2, update_epochs=1, network=NETWORK),
    APG(num_steps=4, network=NETWORK),
]


@pytest.mark.parametrize("settings", slow_but(0, every=AGENTS), ids=lambda settings: settings.algo)
def test_training_in_variants_resumes_bit_exactly_and_is_judged_without_them(settings, tmp_path):
    given = EnvSettings(fractional=True, episode_bars=15, randomise=ALL, benchmark="equal_weight")

    def go(folder, steps):
        env = TradingEnv(MARKET, given, num_envs=8)
        train(make_agent(settings, env.layout, seed=7), env, Budget(env_steps=steps), folder=folder)
        return read_tensors(folder / "state.safetensors", "fintrader-training-1")[0], env

    whole, env = go(tmp_path / "whole", 4 * 4 * 8)
    go(tmp_path / "parts", 2 * 4 * 8)
    parts, _ = go(tmp_path / "parts", 4 * 4 * 8)
    assert any(name.startswith("env.1.") for name in whole)
    assert_same(whole, parts)
    judged = TradingEnv.evaluation(MARKET, given)
    assert torch.equal(
        judged.view.mark, TradingEnv(MARKET, EnvSettings(benchmark="equal_weight")).view.mark
    )
    assert isinstance(make_agent(settings, env.layout).prepare_env(env), RandomisedEnv)


def test_what_makes_no_sense_is_refused_in_a_sentence():
    with pytest.raises(
        EnvError, match=r"num_envs is 9; make it a multiple of env.randomise.variants, 2"
    ):
        randomised(num_envs=9)
    with pytest.raises(
        EnvError,
        match=r"block_sessions is 30, but the window has only 9 sessions.*set it to at most 9",
    ):
        randomised(asked={"variants": 2, "block_sessions": 30})
    one_day = replace(MARKET, session=torch.zeros_like(MARKET.session))
    with pytest.raises(EnvError, match=r"only 0 sessions.*train on more sessions"):
        randomised(one_day, asked={"variants": 2, "block_sessions": 1})
    with pytest.raises(
        ConfigError, match="the first, the smallest factor, must not exceed the second"
    ):
        RandomiseSettings(costs=(2.0, 1.0))
    with pytest.raises(ConfigError, match="must stay below 10,000"):
        EnvSettings(cost_bps=2000.0, randomise={"costs": (1.0, 6.0)})
    with pytest.raises(EnvError, match=r"shape \(8, 4\)"):
        randomised().step(torch.zeros(2, 4))
    env = randomised()
    env.reset(seed=1)
    with pytest.raises(CheckpointError, match=r"no state of 2 environments side by side: 2\."):
        env.load_state_dict({**env.state_dict(), "2.key": torch.zeros(4, dtype=torch.int64)})
