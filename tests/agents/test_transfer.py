"""Policies on symbols they were not trained on: what they see, what is refused, and what they earn
there."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fintrader
from fintrader.agents import (
    PPO,
    EnsemblePolicy,
    NetworkSettings,
    load_policy,
    make_agent,
    save_policy,
)
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import BacktestError, CheckpointError, ConfigError
from fintrader.results.market_description import ColumnScale, Normalisation
from tests.factories import pick_assets, planted_market


def restandardise(market, seed):
    """`market` with its features as raw numbers brought to some standardisation of its own, which
    it notes."""
    rng = np.random.default_rng(seed)
    drawn = (
        {name: ColumnScale(rng.normal(), rng.uniform(0.5, 2.0)) for name in names}
        for names in (market.feature_names, market.context_names)
    )
    scales = Normalisation(*drawn, clip=10.0, cross_sectional="none")

    def scaled(values, part):
        mean, std = (
            torch.tensor([getattr(one, key) for one in getattr(scales, part).values()])
            for key in ("mean", "std")
        )
        return ((values.double() - mean) / std).float()

    given = {part: scaled(getattr(market, part), part) for part in ("features", "context")}
    return replace(market, **given, normalisation=scales)


RAW = replace(planted_market(120, 4), context=torch.linspace(-1, 1, 120).unsqueeze(1))
HOME = restandardise(RAW, 1)
SAME = restandardise(pick_assets(RAW, (2, 0, 3, 1)), 2)
"""The same rows, other places and other statistics."""
AWAY = restandardise(replace(planted_market(120, 7, seed=3), symbols=tuple("TUVWXYZ")), 3)


def stored(path, kind="market_once", *, head="auto", members=1):
    """A policy of `HOME` with outputs large enough to matter, as a file."""
    env = TradingEnv(HOME, EnvSettings(num_envs=6))
    policies = []
    for seed in range(members):
        network = NetworkSettings(hidden=(8, 8), kind=kind, private=("holdings",))
        agent = make_agent(PPO(network=network, head={"kind": head}), env.layout, seed=seed)
        with torch.no_grad():
            for parameter in agent.actor.parameters():
                parameter.mul_(3.0)
        agent.normaliser.update(env.reset(seed=seed)[0][:, : agent.normaliser.private] * 2 + 1)
        agent.normaliser.update_market(env.table)
        policies.append(agent.policy)
    policy = policies[0] if members == 1 else EnsemblePolicy(policies)
    save_policy(policy, path, {"score": 1.0}, market=HOME)
    return policy


def observed(market):
    env = TradingEnv(market, EnvSettings(num_envs=5, episode_bars=40))
    obs, _ = env.reset(seed=1)
    for _ in range(3):
        obs, *_ = env.step(torch.full((5, market.num_assets), 0.5 / market.num_assets))
    return obs


@pytest.mark.parametrize(
    ("kind", "head"), [("market_once", "auto"), ("per_asset", "auto"), ("per_asset", "direct")]
)
def test_rows_of_another_standardisation_are_seen_as_its_own(tmp_path, kind, head):
    """The same raw rows in other places: the same decisions, in those places."""
    policy = stored(tmp_path / "one", kind, head=head, members=2)
    moved = load_policy(tmp_path / "one", universe=SAME)
    torch.testing.assert_close(
        moved(observed(SAME)), policy(observed(HOME)).detach()[:, [2, 0, 3, 1]], atol=2e-5, rtol=0
    )
    with pytest.raises(
        CheckpointError, match=r"scaled by other statistics|symbols.*universe=market"
    ):
        load_policy(tmp_path / "one", market=SAME)
    own = load_policy(tmp_path / "one", universe=HOME)
    torch.testing.assert_close(own(observed(HOME)), policy(observed(HOME)).detach())


def test_it_trades_another_number_of_symbols_and_says_where_it_comes_from(tmp_path):
    stored(tmp_path / "one", members=2)
    moved = load_policy(tmp_path / "one", universe=AWAY)
    assert moved(observed(AWAY)).shape == (5, 7)
    assert moved.meta["transfer"] == {
        "trained_on": list(HOME.symbols),
        "traded_on": list("TUVWXYZ"),
    }
    tests = fintrader.backtest(moved, AWAY, EnvSettings())
    assert (
        "trained on 4 symbols (S000, S001, S002, S003), traded on 7 symbols (T, U, V, W, X and 2 more)"
        in repr(tests)
    )
    # Stored again it is a policy of that market, and still knows where it learned.
    save_policy(moved, tmp_path / "two")
    again = load_policy(tmp_path / "two", market=AWAY)
    assert torch.equal(again(observed(AWAY)), moved(observed(AWAY)))
    home = load_policy(tmp_path / "two", universe=HOME)
    assert home.meta["transfer"]["trained_on"] == list(HOME.symbols)
    torch.testing.assert_close(
        home(observed(HOME)), load_policy(tmp_path / "one")(observed(HOME)), atol=2e-5, rtol=0
    )


def test_a_column_that_did_not_vary_in_training_says_nothing(tmp_path):
    stored(tmp_path / "one")  # there everything traded in every bar
    moved = load_policy(tmp_path / "one", universe=AWAY)
    obs = observed(AWAY)
    silent = obs.clone()
    silent[:, moved.layout.slices["tradable"]] = 0.0
    torch.testing.assert_close(moved(silent), moved(obs))


def test_holdings_count_as_multiples_of_an_equal_share(tmp_path):
    policy = stored(tmp_path / "one", "per_asset")
    moved = load_policy(tmp_path / "one", universe=AWAY)
    held = torch.full((1, 11), 1 / 7)
    seen = moved.normaliser.normalise(
        torch.cat([held, torch.zeros(1, moved.layout.row_width)], 1)
    ).private
    there = torch.full((1, 8), 1 / 4)
    expected = policy.normaliser.normalise(
        torch.cat([there, torch.zeros(1, HOME.num_assets * 4 + 1)], 1)
    ).private
    torch.testing.assert_close(seen[:, -1], expected[:, -1])


def refused(path, market):
    with pytest.raises(CheckpointError) as told:
        load_policy(path, universe=market)
    return str(told.value)


def test_what_cannot_travel_is_refused_in_a_sentence(tmp_path):
    path = tmp_path / "one"
    stored(path, "mlp")
    assert "by their places in the row" in refused(path, AWAY)
    stored(path)
    assert "feature names" in refused(path, replace(AWAY, feature_names=("a", "b", "c")))
    assert "bar minutes" in refused(path, replace(AWAY, bar_minutes=5))
    assert "this market does not say how its rows were standardised" in refused(
        path, replace(AWAY, normalisation=None)
    )
    other = replace(AWAY.normalisation, clip=5.0)
    assert "another rule (clip: 10.0, here 5.0)" in refused(
        path, replace(AWAY, normalisation=other)
    )
    with pytest.raises(ConfigError, match="give one"):
        load_policy(path, market=HOME, universe=AWAY)
    with pytest.raises(BacktestError, match="universe=market"):
        fintrader.backtest(load_policy(path), AWAY, EnvSettings())
    save_policy(make_agent(PPO(), TradingEnv(HOME, EnvSettings()).layout, seed=0), path)
    assert "does not name the market that it was trained on" in refused(path, AWAY)


def planted(seed, symbols):
    source = {"kind": "synthetic", "seed": seed, "num_symbols": symbols, "num_sessions": 12}
    source["planted"] = {"drift_bps": 3.0, "switch": 0.003}
    chosen = {"names": ["return_1", "volatility_30"]}
    return fintrader.load_market(
        {"source": source, "features": chosen, "windows": {"fractions": [0.6, 0.2, 0.2]}}
    )


def test_what_is_learned_on_some_planted_symbols_pays_on_others(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    home = planted(1, 4)
    away = planted(2, 9)
    settings = EnvSettings(num_envs=64, episode_bars=195, decision_interval=5, trade_rate=0.2)
    env = fintrader.TradingEnv(home.split().train, settings)
    result = fintrader.train(PPO(), env, env_steps=20_000)
    save_policy(result.policy, tmp_path / "one", market=home)
    unseen = away.split().test
    tests = fintrader.backtest(load_policy(tmp_path / "one", universe=away), unseen, settings)
    earned = {name: float(row.metrics["cumulative_return"] or 0.0) for name, row in tests.items()}
    assert earned["policy"] > earned["equal_weight"] + 0.01, earned
