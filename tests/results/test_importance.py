"""Which settings went with the score: a planted dependence is found, luck is not, and what cannot
be said is not."""

import numpy as np
import pandas as pd
import pytest

from fintrader.results.importance import (
    MIN_PODS,
    importance,
    levels,
    list_searched_settings,
    shares,
)
from fintrader.tournament.settings import TournamentSettings


def race(size, seed=0, planted="", noise=1.0, **more):
    """Pods with a log-uniform rate, a gamma and a choice, none of which matters but the `planted`
    one."""
    random = np.random.default_rng(seed)
    rate = 10 ** random.uniform(-5, -2, size)
    gamma = random.uniform(0.9, 1.0, size)
    network = random.choice(["small", "wide", "deep"], size)
    effect = {
        "": np.zeros(size),
        "rate": -((np.log10(rate) + 3.5) ** 2),  # best in the middle: no rank correlation at all
        "network": np.where(network == "wide", 2.0, 0.0),
    }[planted]
    hyper = [
        {"rate": r, "gamma": g, "network": n}
        for r, g, n in zip(rate.tolist(), gamma.tolist(), network, strict=True)
    ]
    table = {
        "hyper": hyper,
        "origin": "fresh",
        "score": effect + noise * random.normal(0, 1, size),
        "algo": "ppo",
    }
    return pd.DataFrame(table | more)


@pytest.mark.parametrize("planted", ["rate", "network"])
@pytest.mark.parametrize("size", [60, 3_000])
def test_what_was_planted_is_found_and_nothing_else(planted, size):
    found = importance(race(size, planted=planted, noise=0.5))
    assert (found.pods, found.why) == (size, "")
    assert [one.setting for one in found.shares if one.important] == [planted]
    assert found.shares[0].setting == planted
    assert found.shares[0].share > max(0.3, found.luck)
    assert all(one.share < found.luck for one in found.shares[1:])


@pytest.mark.slow
def test_luck_is_called_important_in_one_of_twenty_tournaments_at_most():
    alarms = [
        any(one.important for one in importance(race(24, seed)).shares) for seed in range(300)
    ]
    assert 3 <= sum(alarms) <= 28  # 15 expected; 28 has a chance of 1 in 1,000


def test_a_lucky_founders_line_does_not_vote():
    founders = race(20, seed=3)
    lucky = int(founders["score"].idxmax())
    children = pd.DataFrame(
        [
            {**founders.loc[lucky].to_dict(), "origin": "exploit", "score": 5.0 + k / 100}
            for k in range(200)
        ]
    )
    alone = importance(founders)
    together = importance(pd.concat([founders, children], ignore_index=True))
    assert alone == together
    assert not any(one.important for one in together.shares)
    assert any(
        one.important
        for one in importance(pd.concat([founders, children.assign(origin="fresh")])).shares
    )


def test_one_pod_few_pods_and_failed_ones_make_a_sentence():
    for pods in (
        race(1),
        race(MIN_PODS - 1),
        race(40, score=None),
        race(40, score=np.nan),
        race(40, origin="exploit"),
    ):
        found = importance(pods)
        assert not found.shares
        assert f"needs {MIN_PODS} scored pods" in found.why
        assert "Default runs have fewer: raise `tournament.pods`" in found.why
    assert TournamentSettings().pods < MIN_PODS
    some = race(30, planted="network", noise=0.1)
    some.loc[20:, "score"] = None
    found = importance(some)
    assert (found.pods, found.shares[0].setting) == (20, "network")
    assert importance(race(30, score=0.5)).why == "All these pods have the same score."
    assert importance(race(30, hyper=[{}] * 30)).why == "This tournament searches no setting."
    assert importance(race(30, hyper=[None] * 30)).why == "This tournament searches no setting."


def test_settings_that_did_not_vary_or_that_only_some_have_are_named_apart():
    pods = race(40, planted="network", noise=0.1)
    pods["hyper"] = [
        {**row, "fixed": 3, "kl": (None, 0.1)[k % 2], **({"tau": 0.1} if k % 2 else {})}
        for k, row in enumerate(pods["hyper"])
    ]
    found = importance(pods)
    assert found.constant == ("fixed", "tau")
    assert {one.setting for one in found.shares} == {"rate", "gamma", "network", "kl"}
    same = importance(race(40, hyper=[{"rate": 0.1}] * 40))
    assert (same.constant, same.why) == (
        ("rate",),
        "Every searched setting is the same in all these pods.",
    )


def test_the_algorithm_is_a_setting_where_several_race():
    pods = race(40)
    assert "algo" not in list_searched_settings(pods)[0]
    pods["algo"] = ["ppo", "sac"] * 20
    pods["score"] = pods["score"] + 4.0 * (pods["algo"] == "sac")
    found = importance(pods)
    assert [one.setting for one in found.shares if one.important] == ["algo"]


def test_the_share_by_hand():
    ranks = np.arange(
        1.0, 13.0
    )  # between two halves 2 * 6 * 3**2 = 108 of 143, less what chance makes of two levels
    codes = np.repeat([0, 1], 6)
    assert shares((ranks - ranks.mean())[None], codes)[0] == pytest.approx(1 - 35 / 143 * 11 / 10)


def test_levels_are_of_equal_counts_values_and_rare_ones_together():
    assert np.bincount(levels(list(range(48)))).tolist() == [6] * 8
    assert np.bincount(levels([1e-5 * 1.3**k for k in range(12)])).tolist() == [6, 6]
    assert levels([1, 2, 4] * 10).tolist() == [1, 2, 3] * 10, (
        "a few whole numbers stand for themselves"
    )
    assert levels([True, False] * 10).tolist() == [2, 1] * 10
    assert levels([[64, 64]] * 5 + [[32]] * 5 + ["x", "y"]).tolist() == [2] * 5 + [1] * 5 + [0, 0]
    tied = levels([0.5] * 30 + [0.1 * k for k in range(30)])
    assert len(set(tied[:30].tolist())) == 1
