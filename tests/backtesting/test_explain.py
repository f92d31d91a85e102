import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from fintrader.agents import NetworkSettings
from fintrader.agents.policy import ActorPolicy
from fintrader.backtesting import simulate
from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.explain import MOST_DECISIONS, OWN, SYMBOLS, Explainer, explain
from fintrader.envs import EnvSettings
from fintrader.errors import FintraderError
from fintrader.records import from_json, to_json
from fintrader.results.explanation import Explanation
from tests.factories import make_market

SETTINGS = EnvSettings(start="first", participation="none", dead_band=0.0)


def explained(policy, market, settings=SETTINGS):
    explainer = Explainer(policy, market, settings)
    simulate(policy, market, settings, watch=explainer.look)
    return explain("policy", [explainer])


def layout_of(market, settings):
    return BacktestAccount(market, settings).layout


@pytest.mark.parametrize("lookback", [1, 4])
@pytest.mark.parametrize("source", ["x1", "context", OWN, "nothing"])
def test_only_what_a_policy_reads_moves_it(source, lookback):
    market = make_market(80, 5, 3)
    settings = SETTINGS.model_copy(update={"lookback": lookback})
    layout = layout_of(market, settings)
    name = {"x1": market.feature_names[1], "context": market.context_names[-1]}.get(source, source)

    def policy(obs):
        parts = layout.split(obs)
        older = parts["history"][..., 0, :] if lookback > 1 else None
        if source == "x1":
            seen = parts["features"][..., 1] if older is None else older[..., 1 : 3 * 5 : 3]
        elif source == "context":
            seen = (parts["context"] if older is None else older[..., -layout.num_context :])[
                ..., -1:
            ]
        elif source == OWN:
            seen = 1.0 - parts["holdings"]
        else:
            seen = torch.zeros(1)
        return torch.tanh(seen.expand(*obs.shape[:-1], 5) * torch.linspace(0.5, 1.0, 5)) * 0.5

    found = explained(policy, market, settings)
    importance = found.importance()
    assert set(importance.index) == {*market.feature_names, *market.context_names, OWN}
    moving = set(importance[importance > 0].index)
    assert moving == ({name} if source != "nothing" else set())
    assert ("No input" in found.sentence()) == (source == "nothing")


@pytest.mark.parametrize(
    ("kind", "lookback"), [("per_asset", 1), ("market_once", 1), ("market_once", 3), ("mlp", 1)]
)
def test_it_is_what_a_market_without_the_feature_would_have_made(kind, lookback):
    """The slow way: a whole market whose feature stands at its mean, and the first decision in
    it."""
    market = make_market(60, 5, 3)
    settings = SETTINGS.model_copy(update={"lookback": lookback})
    torch.manual_seed(3)
    policy = ActorPolicy(layout_of(market, settings), NetworkSettings(kind=kind), head()).eval()
    first = explained(policy, market, settings).decisions[0]
    aimed = weights(policy, market, settings)
    for k, name in enumerate(market.feature_names):
        features = market.features.clone()
        features[..., k] = features[..., k][market.tradable].mean()
        other = weights(policy, replace(market, features=features), settings)
        gap = aimed - other
        assert first.moved[k] == pytest.approx(
            0.5 * (np.abs(gap).sum() + abs(gap.sum())), abs=2e-5
        ), name
        for symbol, raised in zip(first.symbols, first.raised, strict=True):
            assert raised[k] == pytest.approx(gap[market.symbols.index(symbol)], abs=2e-5)
    assert max(first.moved) > 1e-3


def head():
    from fintrader.agents import ActionHeadSettings

    return ActionHeadSettings()


def weights(policy, market, settings):
    account = BacktestAccount(market, settings)
    with torch.no_grad():
        action = policy(account.observe())
    return account.holdings(action, exact=True) * account.prices / account.equity


def test_watching_changes_nothing_and_few_decisions_are_looked_at():
    market = make_market(150, 4, 2)
    torch.manual_seed(0)
    policy = ActorPolicy(layout_of(market, SETTINGS), NetworkSettings(), head()).eval()
    explainer = Explainer(policy, market, SETTINGS)
    watched = simulate(policy, market, SETTINGS, watch=explainer.look)
    np.testing.assert_array_equal(watched.equity, simulate(policy, market, SETTINGS).equity)
    assert len(explainer.explained) == MOST_DECISIONS
    assert len(explainer.bars) == 149
    half = [Explainer(policy, market, SETTINGS, share=0.5) for _ in range(2)]
    for one in half:
        simulate(policy, market, SETTINGS, watch=one.look)
    stored = explain("policy", half)
    assert (stored.num_decisions, len(stored.decisions)) == (298, MOST_DECISIONS)
    assert all(len(one.symbols) == min(SYMBOLS, 4) for one in stored.decisions)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"decisions": []}, "does not have a finite number for each of 1 inputs"),
        ({"time": "yesterday's"}, "yesterday"),
        ({"moved": [1.0, 2.0]}, "rows of different lengths"),
        ({"moved": [float("nan")]}, "does not have a finite number"),
        ({"weights": []}, "rows of different lengths"),
    ],
)
def test_damage_is_a_typed_error(change, problem, tmp_path):
    decision = {
        "time": "2020-01-02T15:00:00Z",
        "moved": [0.5],
        "symbols": ["A"],
        "weights": [0.1],
        "raised": [[0.2]],
    }
    stored = {
        "strategy": "ensemble",
        "inputs": ["x"],
        "num_decisions": 7,
        "decisions": [decision],
    }
    found = from_json(Explanation, stored)
    assert found.importance().to_dict() == {"x": 0.5}
    assert to_json(found) | {"inputs": ["x"]} | {"decisions": [decision]} == stored
    for values in (decision, stored):
        values.update({name: value for name, value in change.items() if name in values})
    with pytest.raises(FintraderError, match=re.escape(problem)):
        from_json(Explanation, stored)
