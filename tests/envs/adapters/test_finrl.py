"""FinRL's environment on our accounts, against finrl's own where it is installed."""

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fintrader
from fintrader.envs.adapters.finrl import StockTradingEnv, df_to_array, to_market
from fintrader.errors import ConfigError, EnvError

TICS = ("AAPL", "MSFT", "XOM")
INDICATORS = ["macd", "rsi_30"]
DAYS = 40


def load(path):
    """Execute one file of finrl: its package imports every broker that it knows."""
    package = importlib.util.find_spec("finrl")
    if package is None:
        pytest.skip("finrl is not installed; `make test-adapters` runs this test")
    file = Path(package.submodule_search_locations[0]) / path
    spec = importlib.util.spec_from_file_location(f"finrl_{file.stem}", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table(days=DAYS, seed=0):
    """FinRL's table: sorted by date and tic, indexed by the number of the day."""
    rng = np.random.default_rng(seed)
    close = 50 * np.exp(np.cumsum(rng.normal(0, 0.02, (days, 3)), axis=0))
    dates = pd.bdate_range("2021-01-04", periods=days).strftime("%Y-%m-%d")
    turbulence = np.where(np.arange(days) % 13 == 12, 200.0, 5.0)
    rows = [
        {
            "date": date,
            "tic": tic,
            "open": close[day, k] * 0.99,
            "high": close[day, k] * 1.02,
            "low": close[day, k] * 0.98,
            "close": close[day, k],
            "volume": 1e6,
            "macd": rng.normal(),
            "rsi_30": 50 + rng.normal(),
            "turbulence": turbulence[day],
        }
        for day, date in enumerate(dates)
        for k, tic in enumerate(TICS)
    ]
    df = pd.DataFrame(rows)
    return df.set_index(df.groupby("date").ngroup())


def arguments(cost=0.001, **given):
    return {
        "stock_dim": 3,
        "hmax": 100,
        "initial_amount": 1_000_000,
        "num_stock_shares": [5, 0, 7],
        "buy_cost_pct": [cost] * 3,
        "sell_cost_pct": [cost] * 3,
        "reward_scaling": 1e-4,
        "state_space": 1 + 2 * 3 + 2 * 3,
        "action_space": 3,
        "tech_indicator_list": INDICATORS,
        "print_verbosity": 1000,
        **given,
    }


def play(env, seed=1, scale=1.0):
    """States, rewards and ends of an episode of random actions."""
    rng = np.random.default_rng(seed)
    state, _ = env.reset()
    states, rewards, ends = [list(state)], [], []  # FinRL writes to states that it has returned
    while not any(ends):
        action = (scale * rng.uniform(-1, 1, 3)).astype(np.float32)
        state, reward, terminated, truncated, _ = env.step(action)
        states.append(list(state))
        rewards.append(reward)
        ends.append(terminated or truncated)
    return np.array(states), np.array(rewards)


@pytest.mark.parametrize("given", [{}, {"turbulence_threshold": 100.0}, {"cost": 0.0}])
def test_accounts_are_finrls(given, tmp_path, monkeypatch):
    finrl = load("meta/env_stock_trading/env_stocktrading.py")
    monkeypatch.chdir(tmp_path)
    df = table()
    theirs = finrl.StockTradingEnv(df=df, **arguments(**given))
    ours = StockTradingEnv(df=df, **arguments(**given))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted, rewards = play(theirs)
    found, own_rewards = play(ours)
    assert len(found) == len(wanted)
    np.testing.assert_allclose(found, wanted, rtol=2e-6)
    # FinRL repeats the last reward in the step that only ends the episode; ours is 0.
    np.testing.assert_allclose(own_rewards[:-1], rewards[:-1], atol=2e-5)
    pd.testing.assert_frame_equal(
        ours.save_asset_memory(), theirs.save_asset_memory(), check_exact=False, rtol=1e-6
    )
    assert (ours.save_action_memory().to_numpy() == theirs.save_action_memory().to_numpy()).all()


def test_arrays_are_finrls():
    processor = load("meta/data_processors/processor_yahoofinance.py")
    df = table()
    theirs = processor.YahooFinanceProcessor.df_to_array(None, df, INDICATORS, False)
    for found, wanted in zip(df_to_array(df, INDICATORS, False), theirs, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_an_account_is_a_ledger_of_whole_shares():
    df = table()
    env = StockTradingEnv(df=df, **arguments())
    close = df.pivot(index="date", columns="tic", values="close").to_numpy()
    rng = np.random.default_rng(3)
    state, _ = env.reset()
    cash, shares = 1_000_000.0, np.array([5.0, 0, 7])
    for day in range(DAYS - 1):
        np.testing.assert_allclose(state[:7], [cash, *close[day], *shares], rtol=1e-6)
        action = rng.uniform(-1, 1, 3).astype(np.float32)
        for k, order in enumerate(np.trunc(action.astype(float) * 100)):
            traded = max(order, -shares[k])
            shares[k] += traded
            cash -= traded * close[day, k] + 0.001 * abs(traded) * close[day, k]
        state, reward, terminated, truncated, _ = env.step(action)
        assert not terminated
        assert not truncated
    memory = env.save_asset_memory()
    assert memory["account_value"].iloc[-1] == pytest.approx(cash + shares @ close[-1])
    assert reward == pytest.approx(memory["account_value"].diff().iloc[-1] * 1e-4)
    assert env.step(action)[1:4] == (0.0, False, True)
    assert len(env.save_action_memory()) == DAYS - 1


def test_an_account_goes_on_from_a_state_before():
    env = StockTradingEnv(
        df=table(), **arguments(initial=False, previous_state=[500.0, 1, 1, 1, 9, 8, 7])
    )
    state, _ = env.reset()
    assert state[0] == 500
    assert state[4:7].tolist() == [9, 8, 7]


def test_finrls_prediction_loop_runs():
    pytest.importorskip("stable_baselines3")
    env, _ = StockTradingEnv(df=table(), **arguments()).get_sb_env()
    for _ in range(DAYS - 1):
        dones = env.step(np.full((1, 3), 0.5, dtype=np.float32))[2]
    assert not dones[0]
    assert len(env.env_method("save_asset_memory")[0]) == DAYS
    assert env.step(np.zeros((1, 3), dtype=np.float32))[2][0]


def test_its_table_is_a_market_for_thousands_of_accounts():
    df = table()
    market = to_market(df, INDICATORS, ["turbulence"])
    assert market.symbols == TICS
    assert market.feature_names == tuple(INDICATORS)
    prices, indicators, turbulence = df_to_array(df, INDICATORS, False)
    np.testing.assert_allclose(market.close, prices, rtol=1e-6)
    np.testing.assert_allclose(market.features.reshape(DAYS, -1), indicators, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(market.context[:, 0], turbulence)
    assert str(market.timestamps()[0])[:10] == "2021-01-04"
    env = fintrader.TradingEnv(market, num_envs=1024)
    assert env.reset(seed=0)[0].shape[0] == 1024


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"state_space": 12}, "state_space 13"),
        ({"sell_cost_pct": [0.001, 0.001, 0.002]}, "one rate"),
        ({"hmaxx": 3}, "did you mean 'hmax'"),
        ({"tech_indicator_list": ["macd", "cci"]}, "no column cci"),
        ({"num_stock_shares": [5]}, "shares of 3 tics"),
        ({"initial": False, "previous_state": [1e6]}, "shares of 3 tics"),
        ({"hmax": 0}, "max_shares: input should be greater than 0"),
    ],
)
def test_what_it_cannot_do_is_refused(given, words):
    with pytest.raises((EnvError, ConfigError), match=words):
        StockTradingEnv(df=table(), **arguments(**given))


def test_it_steps_before_a_reset_as_finrls():
    first, second = (StockTradingEnv(df=table(), **arguments()) for _ in range(2))
    second.reset()
    action = np.full(3, 0.5, dtype=np.float32)
    for found, wanted in zip(first.step(action), second.step(action), strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda df: pd.concat([df, df.iloc[4:5]]), "MSFT has several rows on 2021-01-05; keep one"),
        (lambda df: df.assign(close="n/a"), "close must hold numbers"),
        (lambda df: df.iloc[:0], "with rows, not an empty one"),
        (lambda df: df.to_dict(), "must be a pandas.DataFrame with rows, not dict"),
    ],
)
def test_a_table_that_is_none_is_refused(change, words):
    for use in (to_market, lambda df: StockTradingEnv(df=df, **arguments())):
        with pytest.raises(EnvError, match=words):
            use(change(table()))
    doubled = pd.concat([table(), table()])
    assert len(to_market(doubled.drop_duplicates(["date", "tic"])).close) == DAYS


def test_a_date_without_a_symbol_is_named():
    df = table()
    with pytest.raises(EnvError, match="open is missing on 2021-01-05"):
        to_market(df[(df["date"] != "2021-01-05") | (df["tic"] != "XOM")])
