"""Successive halving against a slow, obvious account of it."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fintrader.agents import PPO, Budget
from fintrader.errors import TournamentError
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard
from fintrader.tournament.recount import check_tournament
from fintrader.tournament.schedulers import Halving
from fintrader.tournament.settings import Range, TournamentSettings
from fintrader.tournament.spec import PodResult
from fintrader.tournament.store import RunStore
from fintrader.tournament.updater import submit
from tests.tournament.test_roles import breeder

SEARCH = {"learning_rate": Range(low=1e-4, high=1e-1, log=True)}


def play(pods, scores):
    """Make and finish all pods; a score of None is a pod that failed."""
    scheduler = Halving(pods)
    generator = breeder(PPO(), search=SEARCH, budget=Budget(env_steps=6_000))
    board = Leaderboard(4)
    for index in range(pods):
        assert (scheduler.count_needed(index) or 0) <= len(board.applied)
        spec = scheduler.make(index, board, generator)
        score = scores[index % len(scores)]
        snapshot = None if score is None else spec.pod
        result = PodResult(pod=spec.pod, status="done", score=score, snapshot=snapshot)
        submit(board, FinishedPod(spec, result))
    return [entry.spec for entry in board.applied], board


def test_sixteen_begin_and_the_best_go_on_as_they_are():
    specs, board = play(25, [float(7 * number % 25) for number in range(25)])
    assert Counter(spec.generation for spec in specs) == {0: 16, 1: 6, 2: 2, 3: 1}
    scores = {entry.spec.pod: entry.score for entry in board.applied}
    rungs = [[spec for spec in specs if spec.generation == rung] for rung in range(4)]
    for before, rung in pairwise(rungs):
        best = sorted(before, key=lambda spec: -scores[spec.pod])[: len(rung)]
        assert [spec.parent for spec in rung] == [spec.pod for spec in best]
        assert [spec.hyper for spec in rung] == [spec.hyper for spec in best]
        assert {spec.origin for spec in rung} == {"survivor"}
    assert len({spec.hyper["learning_rate"] for spec in rungs[0]}) == 16
    assert [spec.agent["anneal"] for spec in specs] == [False] * 24 + [True]
    # 16 slices of 60, 12, 12 and 20, as in the experiment
    assert [spec.budget.env_steps for spec in specs] == [2_500] * 16 + [5_000] * 6 + [
        15_000
    ] * 2 + [50_000]


@given(st.integers(1, 60), st.lists(st.none() | st.floats(-9, 9), min_size=1, max_size=60))
def test_any_number_of_pods_takes_the_training_of_as_many_budgets(pods, scores):
    specs, board = play(pods, scores)
    steps = sum(spec.budget.env_steps for spec in specs)
    assert steps == pytest.approx(6_000 * pods, rel=1e-3)
    assert sum(spec.agent["anneal"] for spec in specs) == 1
    assert specs[-1].agent["anneal"]
    able = {entry.spec.pod for entry in board.applied if entry.score > -1e9}
    for spec in specs:
        assert spec.origin == ("survivor" if spec.parent else "fresh")
        assert spec.parent is None or spec.parent in able


@pytest.mark.parametrize(
    ("changes", "members"),
    [
        ([{"order": "halving"}], 1),
        ([{"order": "halving"}, {"ensemble_size": 4}], 4),
        ([{"ensemble_size": 4}, {"order": "halving"}], 4),
        ([{"order": "halving"}, {"order": "submission"}], 4),
    ],
)
def test_only_the_last_pod_is_a_member_unless_a_size_is_set(changes, members):
    """Whether a file sets it, a flag, or a form that changes stored settings."""
    race = TournamentSettings()
    for change in changes:
        race = TournamentSettings.model_validate(race.model_dump(mode="json") | change)
    assert race.num_members == members


def test_a_race_by_halving_goes_on_and_is_made_again(race):
    whole = race("whole", pods=25, order="halving", search=SEARCH).folder
    assert check_tournament(whole).problems == []
    specs = RunStore(whole).read_specs()
    assert Counter(spec.generation for spec in specs.values()) == {0: 16, 1: 6, 2: 2, 3: 1}
    with pytest.raises(TournamentError, match="pods"):
        race("whole", pods=26, order="halving", search=SEARCH)
