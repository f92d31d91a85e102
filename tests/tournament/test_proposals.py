"""Tree-structured Parzen estimates of where to try next."""

import sys
from dataclasses import replace

import numpy as np
import pytest

from fintrader.errors import ConfigError
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard
from fintrader.tournament.proposals import propose
from fintrader.tournament.recount import check_tournament
from fintrader.tournament.settings import Range
from fintrader.tournament.spec import PodResult
from fintrader.tournament.store import RunStore
from fintrader.tournament.updater import submit
from tests.tournament.test_roles import breeder

pytest.importorskip("optuna", reason="optuna is missing: pip install '.[search]'")

SEARCH = {
    "learning_rate": Range(low=1e-5, high=1e-1, log=True),
    "width": Range(low=1, high=64),
}


def done(spec, score, status="done", **more):
    result = PodResult(pod=spec.pod, score=score, snapshot="s", status=status, **more)
    return FinishedPod(spec, result)


def search(generator, count, stopped=False):
    """Fresh pods one after another, each seeing the last; the score is best at a rate of 1e-3 and a
    width of 20."""
    board = Leaderboard(16)
    specs = []
    for index in range(count):
        spec = generator.draw_fresh(index, board)
        score = -abs(np.log10(spec.agent["learning_rate"]) + 3) - abs(spec.agent["width"] - 20) / 20
        ends = {"status": "stopped", "rung_scores": {"0.25": score}}
        submit(board, done(spec, float(score), **(ends if stopped and index % 2 else {})))
        specs.append((score, spec))
    return specs


@pytest.mark.parametrize("stopped", [False, True])
def test_proposals_find_what_draws_find_later(stopped):
    drawn, propose = (
        np.mean(
            [score for score, _ in search(breeder(search=SEARCH, proposals=how), 40, stopped)[20:]]
        )
        for how in ("drawn", "tpe")
    )
    assert propose > drawn + 0.3


def test_a_proposal_is_a_pure_function_and_lies_in_the_ranges():
    first = [spec for _, spec in search(breeder(search=SEARCH, proposals="tpe"), 25)]
    assert first == [spec for _, spec in search(breeder(search=SEARCH, proposals="tpe"), 25)]
    assert first != [
        spec for _, spec in search(breeder(seed=1, search=SEARCH, proposals="tpe"), 25)
    ]
    for spec in first[1:]:
        assert 1e-5 <= spec.agent["learning_rate"] <= 1e-1
        assert isinstance(spec.agent["width"], int)
        assert 1 <= spec.agent["width"] <= 64


def test_choices_may_be_anything_and_own_settings_outside_the_ranges():
    """The first pod has the agent's own settings, which no range needs to hold."""
    choices = {"learning_rate": Range(low=1e-2, high=1e-1), "width": (2, 4)}
    made = [spec for _, spec in search(breeder(search=choices, proposals="tpe"), 20)]
    assert made[0].agent["width"] == 8
    assert {spec.agent["width"] for spec in made[1:]} == {2, 4}


def test_a_setting_that_earlier_pods_lacked_and_an_integer_range_that_begins_below_one():
    """What they had says nothing of it; a logarithm of integers begins at one."""
    board = Leaderboard(16)
    for index in range(12):
        spec = breeder(search=SEARCH).draw_fresh(index, board)
        submit(board, done(spec, float(index)))
    found = propose(
        {"steps": Range(low=0.4, high=8, log=True)}, {"steps": 3}, board.applied, seed=1
    )
    assert found["steps"] in range(1, 9)


def test_children_do_not_count():
    """Their scores come from what they inherited."""
    generator = breeder(search=SEARCH, proposals="tpe")
    board = Leaderboard(16)
    for index in range(12):
        spec = replace(generator.draw_fresh(index, Leaderboard(16)), origin="exploit")
        submit(board, done(spec, float(index)))
    assert generator.draw_fresh(20, board).agent == generator.draw_fresh(20, Leaderboard(16)).agent


def test_a_race_of_proposals_goes_on_and_is_made_again(race):
    """Families and proposals are pure functions of what was seen, also after a
    stop."""
    how = {
        "proposals": "tpe",
        "fresh": 0.5,
        "niche": "lineage",
        "search": SEARCH,
    }
    whole = race("whole", pods=16, **how).folder
    for pods in (13, 16):
        halves = race("halves", pods=pods, **how).folder
    assert RunStore(whole).read_specs() == RunStore(halves).read_specs()
    assert check_tournament(whole).problems == []


def test_without_optuna_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ConfigError, match=r"pip install 'optuna>="):
        breeder(proposals="tpe")
