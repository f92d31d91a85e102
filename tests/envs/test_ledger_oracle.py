"""The vectorised environment against the one-account Python loop, over every option drawn at
random."""

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import EnvError
from tests.engines.strategies import env_settings, random_actions
from tests.factories import examples, make_market
from tests.oracles.ledger_oracle import LedgerOracle
from tests.oracles.limit_oracle import LimitOracle

NUM_ENVS = 4
NUM_ASSETS = 5
NUM_BARS = 70

MODES = st.sampled_from(list(AutoresetMode))
GIVEN = st.sets(st.sampled_from(["start", "cash_usd", "shares", "episode_bars"]))
"""Which options `reset` gets."""
SIGHT = st.fixed_dictionaries(
    {
        "observation": st.sampled_from(["flat", "factored"]),
        "start_groups": st.sampled_from(["auto", 1]),
        "lookback": st.sampled_from([1, 3]),
        "benchmark": st.sampled_from(["cash", "equal_weight", "buy_and_hold"]),
        "observation_dtype": st.sampled_from(["float32", "bfloat16"]),
    }
)
"""What accounts see must not change what they do."""


class Episodes:
    """The endowments an environment was given, and one oracle an account that begins where the
    account does."""

    def __init__(self, env, given, seed):
        self.env = env
        self.given = given
        self.rng = np.random.default_rng(seed)
        self.cash = np.full(env.num_envs, env.settings.initial_cash_usd)
        self.shares = np.zeros((env.num_envs, NUM_ASSETS))
        self.length = np.full(env.num_envs, env.settings.episode_bars or 0)
        env.reset(options=self.options())
        self.oracles = [self.oracle(i) for i in range(env.num_envs)]

    def options(self):
        """Random values of the options that are given, which `cash`, `shares` and `length` then
        hold."""
        env = self.env
        rng = self.rng
        options = {}
        count = env.num_envs
        config = env.settings
        if self.given & {"start", "shares"}:  # what is owned must be listed at the start
            options["start"] = rng.integers(0, NUM_BARS - 1, count)
        if "cash_usd" in self.given:
            self.cash = options["cash_usd"] = config.initial_cash_usd * rng.uniform(0.2, 2.0, count)
        if "shares" in self.given:
            start = torch.as_tensor(options["start"])
            mark = env.view.mark[start].double().numpy()
            there = np.array(
                [[self.listed(n, t) for n in range(NUM_ASSETS)] for t in start.tolist()]
            )
            most = config.initial_cash_usd / 300.0
            owned = there * rng.uniform(-most if config.short else 0.0, most, there.shape)
            owned = owned if config.fractional else np.trunc(owned)
            self.shares = options["shares"] = (
                owned * ((self.cash + (owned * mark).sum(1)) > 0)[:, None]
            )
        if "episode_bars" in self.given:
            self.length = options["episode_bars"] = rng.integers(1, 40, count)
        return options

    def listed(self, n, t):
        """Whether symbol n has a close at or before bar t, and one after it unless it is there at
        the data's end."""
        priced = (~self.env.market.close[:, n].isnan()).nonzero().flatten().tolist()
        return priced[0] <= t and (priced[-1] > t or priced[-1] == NUM_BARS - 1)

    def oracle(self, i):
        """Account i's, from the bar it stands at."""
        account = self.env.account
        start = int(account.bar[i])
        end = int(account.end_bar[i])
        last = NUM_BARS - 1
        if self.env.settings.start == "session":
            sessions = self.env.market.session.tolist()
            assert (
                self.given & {"start", "shares"}
                or start == 0
                or sessions[start] != sessions[start - 1]
            )
            while sessions[last] != sessions[start + 1]:
                last -= 1
        assert end == (min(start + self.length[i], last) if self.length[i] else last)
        kind = LimitOracle if self.env.settings.orders_rest else LedgerOracle
        return kind(
            self.env.market,
            self.env.settings,
            start=start,
            end=end,
            cash=float(self.cash[i]),
            shares=[float(owned) * self.listed(n, start) for n, owned in enumerate(self.shares[i])],
        )

    def restart(self, ended):
        """Begin anew what `ended` `[B]` says, under DISABLED with another cash; the other modes did
        so themselves."""
        if self.env.autoreset_mode is AutoresetMode.DISABLED and bool(ended.any()):
            options = {"reset_mask": ended.clone()}
            if "cash_usd" in self.given:
                cash = self.env.settings.initial_cash_usd * self.rng.uniform(
                    1.0, 2.0, self.env.num_envs
                )
                options["cash_usd"] = cash
                self.cash = np.where(ended.numpy(), cash, self.cash)
            try:
                self.env.reset(options=options)
            except EnvError:  # what it is short of has risen above all it has
                self.env.reset(options=options | {"shares": np.zeros(NUM_ASSETS)})
                self.shares[ended.numpy()] = 0.0
        for i in ended.nonzero().flatten().tolist():
            self.oracles[i] = self.oracle(i)


def check_resting(obs, i, env, slow):
    """Account i sees of its orders what the oracle knows of them."""
    layout = env.layout
    private = obs["private"] if isinstance(obs, dict) else obs[:, : layout.private_width]
    seen = private[i, layout.account_width + layout.num_assets :]
    seen = seen.unflatten(0, (layout.resting, -1)).double().numpy()
    precise = env.settings.observation_dtype == "float32"
    expected = np.array(slow.resting())
    assert expected.shape == seen.shape
    there = np.ones(seen.shape, dtype=bool)
    for order in range(0, 3 * env.settings.num_sides, 3):
        # Less may be what rounding leaves of a fraction.
        there[order : order + 3] = np.abs(expected[order]) > 1e-4
        assert not (seen[order] * ~there[order]).round(3).any()
    assert (seen * there) == pytest.approx(
        expected * there, rel=1e-4 if precise else 1e-2, abs=1e-4
    )


def compare(config, seed, steps, count=NUM_ENVS, mode=AutoresetMode.SAME_STEP, given=frozenset()):
    """Step environment and oracles side by side; returns the number of account steps compared."""
    volume = (1e9, 400.0)[seed % 2]
    events = seed % 3 > 0
    market = make_market(
        NUM_BARS, NUM_ASSETS, seed=seed % 7, volatility=0.03, volume=volume, events=events
    )
    env = TradingEnv(market, config, num_envs=count, seed=seed, autoreset_mode=mode, record=True)
    episodes = Episodes(env, set(given), seed)
    cheapest = float(market.close[market.close > 0].min())
    compared = 0
    begins = torch.zeros(count, dtype=torch.bool)  # NEXT_STEP: this step only begins the episode
    for action in random_actions(seed, steps, count, env.layout.num_actions):
        obs, reward, terminated, truncated, info = env.step(action)
        for i, slow in enumerate(episodes.oracles):
            if begins[i]:
                assert float(reward[i]) == 0.0
                assert not bool(terminated[i] | truncated[i])
                continue
            before = slow.equity()
            expected = slow.step(action[i].double().tolist())
            compared += 1
            tolerance = max(
                1e-6 * slow.first, 5e-5
            )  # amounts are rounded to 1e-6 USD, five of them a bar
            change = expected.bar_equity[-1] - before
            assert change == pytest.approx(
                expected.pnl + expected.income - expected.cost, abs=tolerance
            )
            assert float(info["income"][i].sum()) == pytest.approx(expected.income, abs=tolerance)
            if abs(expected.bar_equity[-1] - config.ruin_fraction * slow.first) < tolerance:
                return compared  # ruin to the last bit is decided by rounding
            if abs(expected.bar_equity[-1]) < 1e-3 * slow.first:
                return compared  # what a penniless account still does is all rounding
            assert bool(terminated[i]) == expected.terminated
            assert bool(truncated[i]) == expected.truncated
            assert info["bar_equity"][i].tolist() == pytest.approx(
                expected.bar_equity, abs=tolerance
            )
            assert float(info["cost"][i]) == pytest.approx(expected.cost, abs=tolerance)
            assert float(info["turnover"][i]) == pytest.approx(expected.turnover, abs=tolerance)
            assert float(reward[i]) == pytest.approx(
                expected.reward, rel=1e-4, abs=1e-5 * config.reward_scale
            )
            traded = info["fill_shares"][i].tolist()
            # A fraction is rounded like the whole equity, however little is traded.
            rounding = max(1e-5, 1e-7 * slow.first / cheapest)
            if config.fractional:
                assert traded == pytest.approx(expected.traded, rel=1e-5, abs=rounding)
            else:
                assert traded == expected.traded
            if not (expected.terminated or expected.truncated):
                shares = env.account.shares[i].tolist()
                assert float(env.account.cash[i]) == pytest.approx(slow.cash, abs=tolerance)
                assert shares == (
                    pytest.approx(slow.shares, rel=1e-5, abs=rounding)
                    if config.fractional
                    else slow.shares
                )
                if config.orders_rest:
                    check_resting(obs, i, env, slow)
        ended = terminated | truncated
        episodes.restart(begins if mode is AutoresetMode.NEXT_STEP else ended)
        begins = ended if mode is AutoresetMode.NEXT_STEP else begins
        if any(slow.first <= 0 for slow in episodes.oracles):
            return compared  # sold short what has risen since: there is nothing to measure against
    return compared


@settings(max_examples=examples(100, quick=12))
@given(config=env_settings(), sight=SIGHT, seed=st.integers(0, 10_000), mode=MODES, given=GIVEN)
def test_the_environment_agrees_with_the_oracle(config, sight, seed, mode, given):
    config = config.model_copy(update=sight)
    assert compare(config, seed, 40, mode=mode, given=given) > 0


def test_every_option_is_drawn():
    """An option added to the settings must be added to what the tests draw."""
    drawn = {name: set() for name in EnvSettings.model_fields}

    @settings(
        max_examples=120, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(config=env_settings() | env_settings(limit=True), sight=SIGHT)
    def draw(config, sight):
        for name, value in config.model_copy(update=sight):
            drawn[name].add(str(value))

    draw()
    # One kind exists, the number of accounts is an argument of every test, `reset` gives shares in
    # place of the settings', orders are worked in backtests alone, and the others are for agents
    # that learn.
    assert {name for name, values in drawn.items() if len(values) < 2} == {
        "execution",
        "initial_shares",
        "kind",
        "num_envs",
        "randomise",
    }


@pytest.mark.slow
def test_a_hundred_thousand_steps_agree():
    """Positions exactly (whole shares), cash to 1e-6 of the first equity, every option drawn at
    random."""
    total = 0

    @settings(
        max_examples=125, database=None, derandomize=True, suppress_health_check=list(HealthCheck)
    )
    @given(config=env_settings(), sight=SIGHT, seed=st.integers(0, 10**9), mode=MODES, given=GIVEN)
    def agree(config, sight, seed, mode, given):
        nonlocal total
        total += compare(
            config.model_copy(update=sight), seed, 60, count=16, mode=mode, given=given
        )

    agree()
    assert total >= 100_000
