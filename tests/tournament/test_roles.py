import dataclasses
import math
import socket
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fintrader import metrics
from fintrader.agents.settings import A2C, MAX_TILT_SCALE, PPO
from fintrader.config import read_yaml
from fintrader.errors import ConfigError, RunError, TournamentError
from fintrader.files import seal
from fintrader.runs import RunFolder
from fintrader.tournament.ensemble import (
    choose,
    estimate_shrinkage,
    james_stein,
    measure_correlations,
)
from fintrader.tournament.evaluator import LEAST_TRACKING_ERROR, check_windows, score
from fintrader.tournament.generator import Generator, rank_softmax
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard
from fintrader.tournament.pod import run_pod
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.process import describe_location
from fintrader.tournament.schedulers import Generational
from fintrader.tournament.settings import Range, TournamentSettings
from fintrader.tournament.spec import PodResult, PodSpec
from fintrader.tournament.updater import submit
from tests import ROOT
from tests.engines import stubs
from tests.engines.races import settings
from tests.engines.stubs import OtherAgent, StubAgent


def entry(index, value, *, spec=None, **more):
    spec = stubs.spec(index, **(spec or {}))
    outcome = (
        {"status": "failed"} if value is None else {"status": "done", "snapshot": f"sha-{index}"}
    )
    return FinishedPod(spec, PodResult(pod=spec.pod, score=value, **outcome, **more))


def board_of(*scores, size=16, **more):
    board = Leaderboard(size)
    for index, value in enumerate(scores):
        submit(board, entry(index, value, **more))
    return board


def breeder(*agents, seed=0, **changes):
    return Generator(
        settings(**changes), agents or (StubAgent(),), env={"num_envs": 4}, seed=seed, data_hash="h"
    )


def bred(generator, board, name, parent=None, count=30):
    """That setting of so many children of the board's best, or of another parent."""
    made = (
        generator.derive_child(index, board, parent or board.rows[0], generation=1)
        for index in range(count)
    )
    return [child.agent[name] for child in made]


@given(
    st.lists(st.one_of(st.none(), st.sampled_from([0.0, 1.0, 2.0, -1.0])), max_size=12),
    st.integers(1, 5),
    st.randoms(),
)
def test_the_board_does_not_depend_on_the_order_of_results(scores, size, random):
    """Slow and obvious: sort everything by (score down, index up) and cut."""
    entries = [entry(index, value) for index, value in enumerate(scores)]
    expected = sorted(
        (e for e in entries if e.result.score is not None), key=lambda e: (-e.score, e.spec.index)
    )[:size]
    random.shuffle(entries)
    board = Leaderboard(size)
    for one in entries:
        submit(board, one)
    assert [row.spec.pod for row in board.rows] == [row.spec.pod for row in expected]


def test_submitting_twice_changes_nothing_and_ties_go_to_the_elder():
    board = Leaderboard(2)
    assert submit(board, entry(5, 1.0)).position == 0
    assert submit(board, entry(3, 1.0)).position == 0
    assert not submit(board, entry(3, 99.0)).new
    assert [row.spec.index for row in board.rows] == [3, 5]
    verdict = submit(board, entry(7, 2.0))
    assert (verdict.position, verdict.evicted) == (0, "p0005")
    assert submit(board, entry(8, 0.5)).position is None
    assert submit(board, entry(9, None)).position is None
    assert len(board.applied) == 5


def test_rank_softmax_follows_its_formula():
    uniforms = (np.arange(20_000) + 0.5) / 20_000
    counts = Counter(rank_softmax(4, 1.5, u) for u in uniforms)
    weights = np.exp(-np.arange(4) / 1.5)
    np.testing.assert_allclose(
        [counts[rank] / 20_000 for rank in range(4)], weights / weights.sum(), atol=1e-3
    )
    assert rank_softmax(9, 1e-3, 0.999) == 0
    assert rank_softmax(3, 1e9, 0.999999999) == 2


def test_specs_are_pure_functions_of_seed_number_and_board():
    board = board_of(0.3, 0.9, 0.1)
    assert breeder().propose(7, board) == breeder().propose(7, board)
    assert breeder().propose(7, board).seed != breeder(seed=1).propose(7, board).seed
    assert breeder().propose(7, board).seed != breeder().propose(8, board).seed


def test_fresh_pods_begin_with_each_algorithm_as_set_and_then_search():
    many = breeder(StubAgent(), OtherAgent())
    board = Leaderboard(4)
    first, second, third = (many.draw_fresh(index, board) for index in range(3))
    assert first.agent == StubAgent().model_dump()
    assert second.agent == OtherAgent().model_dump()
    assert third.agent["algo"] == "stub"
    assert third.agent["learning_rate"] != StubAgent().learning_rate
    assert third.hyper == {
        "learning_rate": third.agent["learning_rate"],
        "network.width": third.agent["network"]["width"],
    }
    assert set(second.hyper) == {"learning_rate"}  # it has no network
    for index in range(2, 40):
        agent = many.draw_fresh(index, board).agent
        assert 1e-5 <= agent["learning_rate"] <= 1e-1
        assert agent.get("network", {"width": 8})["width"] in (4, 8, 16)


def test_children_move_by_a_factor_or_are_drawn_anew_and_stay_inside():
    board = board_of(1.0)
    moved = bred(breeder(resample=0.0), board, "learning_rate")
    assert {round(value / 1e-3, 6) for value in moved} == {0.8, 1.25}
    assert len(set(bred(breeder(resample=1.0), board, "learning_rate"))) == 30
    edge = entry(0, 1.0, spec={"agent": StubAgent(learning_rate=0.0999).model_dump()})
    assert max(bred(breeder(resample=0.0), board, "learning_rate", edge)) == 0.1


@pytest.mark.parametrize("as_set", [PPO(), A2C()])
def test_a_parent_as_set_has_children_unlike_itself(as_set):
    """Their learning rate lies at the end of the range: half of the steps lead out of it."""
    rate = as_set.learning_rate
    space = {"learning_rate": Range(low=3e-5, high=rate, log=True)}
    board = board_of(1.0, spec={"agent": as_set.model_dump(mode="json")})
    assert set(bred(breeder(as_set, search=space, resample=0.0), board, "learning_rate")) == {
        rate / 1.25
    }


@pytest.mark.parametrize(
    ("space", "at", "expected"),
    [
        ((4, 8, 16), 16, {8}),
        ((4, 8, 16), 4, {8}),
        ((4, 8, 16), 8, {4, 16}),
        (Range(low=1, high=9), 1, {2}),  # 1.25 and 0.8 are both rounded to 1
        (Range(low=1, high=9), 2, {1, 3}),
        (Range(low=1, high=9), 9, {7}),
        ((8,), 8, {8}),
    ],
)
def test_steps_never_end_where_they_began(space, at, expected):
    generator = breeder(search={"width": space}, resample=0.0)
    board = board_of(1.0, spec={"agent": StubAgent(width=at).model_dump()})
    assert set(bred(generator, board, "width")) == expected


def test_a_zero_that_no_factor_moves_is_drawn_anew():
    generator = breeder(OtherAgent(), search={"gamma": Range(low=0.0, high=1.0)}, resample=0.0)
    board = board_of(1.0, spec={"agent": OtherAgent(gamma=0.0).model_dump()})
    assert min(bred(generator, board, "gamma")) > 0


def test_only_scored_pods_with_a_snapshot_become_parents():
    board = board_of(None, 0.5, None, 0.7)
    origins = {breeder(fresh=0.0, founders=2).propose(i, board).parent for i in range(5, 30)}
    assert origins == {"p0001", "p0003"}
    assert breeder(fresh=0.0, founders=3).propose(5, board).parent is None


@pytest.mark.parametrize(
    ("search", "message"),
    [
        ({"learning_rte": {"low": 1e-5, "high": 1e-3}}, "no agent here has this setting"),
        ({"learning_rate": {"low": -1.0, "high": 1e-3}}, "impossible"),
        ({"width": (0, 8)}, "0 is impossible"),
        ({"algo": {"low": 0, "high": 1}}, "is no number"),
    ],
)
def test_an_impossible_search_space_is_refused_at_the_door(search, message):
    with pytest.raises(ConfigError, match=message):
        breeder(search=search)


@pytest.mark.parametrize(
    "space",
    [
        {"low": 2, "high": 1},
        {"low": 0, "high": 1, "log": True},
        {"low": 1},
        {"low": 1, "high": 2, "structural": True},
    ],
)
def test_an_impossible_range_is_refused(space):
    with pytest.raises(ValueError, match=r"required|unknown|impossible"):
        Range(**space)


def test_generations_wait_and_the_best_are_copied_over_the_rest():
    scheduler = Generational(pool_size=4, survivors=2)
    assert [scheduler.count_needed(index) for index in (0, 3, 4, 7, 8)] == [0, 0, 4, 4, 8]
    board = board_of(0.1, 0.9, None, 0.5)
    made = [scheduler.make(index, board, breeder()) for index in range(4, 8)]
    assert [(spec.parent, spec.origin) for spec in made] == [
        ("p0001", "survivor"),
        ("p0003", "survivor"),
        ("p0001", "exploit"),
        ("p0003", "exploit"),
    ]
    assert made[0].agent == board.rows[0].spec.agent
    assert made[2].agent != board.rows[0].spec.agent
    assert all(spec.generation == 1 and spec.seen == 4 for spec in made)
    lost = board_of(None, None, None, None)
    assert scheduler.make(4, lost, breeder()).origin == "fresh"


def test_the_best_are_chosen_once_for_a_generation_of_a_board():
    scheduler = Generational(pool_size=2, survivors=1)
    for board in (board_of(0.1, 0.9, 0.8, 0.2), board_of(0.9, 0.1, 0.2, 0.8)):
        for index in (2, 3, 4, 5, 2):
            fresh = Generational(2, 1).make(index, board, breeder())
            assert scheduler.make(index, board, breeder()) == fresh
        assert scheduler._choose_best(board, 0) is scheduler._choose_best(board, 0)


def test_scores_are_the_metrics_of_the_backtest():
    returns = np.array([0.01, -0.02, 0.03, 0.0, 0.01])
    index = np.array([0.0, -0.03, 0.03, 0.01, 0.0])
    assert score(returns, "sharpe", index) == metrics.sharpe(returns)
    assert score(returns, "return", index) == metrics.cumulative_return(returns)
    assert score(returns, "calmar", index) == pytest.approx(metrics.calmar(returns))
    assert score(returns, "utility", index) == pytest.approx(
        252 * (returns.mean() - returns.var(ddof=1) / 2)
    )
    assert score(returns, "information_ratio", index) == pytest.approx(
        metrics.information_ratio(returns, index)
    )
    assert [
        score(np.zeros(3), metric, index[:3])
        for metric in ("sharpe", "return", "calmar", "utility")
    ] == [0.0] * 4
    assert math.isfinite(score(np.array([0.01, 0.01]), "calmar", index[:2]))
    # a millionth a day, every day: without a floor this would be divided by nothing
    hardly = score(index + 1e-6, "information_ratio", index)
    assert hardly == pytest.approx(252e-6 / LEAST_TRACKING_ERROR)


def test_windows_that_do_not_fit_are_refused():
    check_windows(4, "sharpe", 2)
    check_windows(1, "return", 1)
    with pytest.raises(ConfigError, match="validation_windows"):
        check_windows(3, "sharpe", 2)
    check_windows(63, "calmar", 1)
    with pytest.raises(
        ConfigError,
        match=r"62 sessions .* 1 part of 63 .*set tournament.metric to sharpe",
    ):
        check_windows(62, "calmar", 1)  # a Calmar ratio of a few weeks is no number to choose by


def pool(rows):
    """Sharpe ratio of the mean of rows' returns, the slow way."""
    days = [sum(day) / len(rows) for day in zip(*(row.result.returns for row in rows), strict=True)]
    mean = sum(days) / len(days)
    variance = sum((day - mean) ** 2 for day in days) / (len(days) - 1)
    return mean / variance**0.5


def scored(index, returns, **more):
    """A row whose score is its Sharpe ratio."""
    one = entry(index, 0.0, returns=tuple(returns), active_returns=tuple(returns), **more)
    return dataclasses.replace(one, result=dataclasses.replace(one.result, score=pool([one])))


def test_members_are_those_that_add_most():
    random = np.random.default_rng(3)
    days = 0.001 + 0.01 * random.standard_normal((8, 250))
    rows = sorted((scored(k, own) for k, own in enumerate(days)), key=lambda row: row.order)
    members = choose(rows, 4)
    assert members[0] is rows[0]
    for count in (1, 2, 3):
        added = pool(members[: count + 1])
        others = [row for row in rows if row not in members[:count]]
        assert added == pytest.approx(max(pool([*members[:count], row]) for row in others))
    assert [len(choose(rows, size)) for size in (1, 8, 9)] == [1, 8, 8]


def test_a_member_that_differs_is_worth_more_than_one_that_repeats():
    up = (0.01, -0.01, 0.02, 0.0)
    other = (-0.005, 0.012, -0.01, 0.015)
    rows = [scored(0, up), scored(1, up), scored(2, other)]
    assert [row.spec.index for row in choose(rows, 2)] == [0, 2]
    np.testing.assert_allclose(measure_correlations(rows[:2]), np.ones((2, 2)))


def test_rows_that_cannot_be_pooled_come_by_rank():
    series = [(0.01, 0.02, 0.01)[: 3 - k % 2] for k in range(4)]
    rows = [entry(k, 3.0 - k, returns=own, active_returns=own) for k, own in enumerate(series)]
    assert [row.spec.index for row in choose(rows, 3)] == [0, 2, 1]
    played = [
        scored(k, (0.01, -0.01 * k, 0.03), spec={"env": {"kind": "gymnasium"}}) for k in range(4)
    ]
    assert choose(played, 3) == played[:3]


def test_an_ensemble_keeps_as_much_of_its_distance_as_there_is_evidence_for():
    random = np.random.default_rng(0)
    days = random.normal(size=100)
    days = (days - days.mean()) / days.std(ddof=1)
    kappa, t = james_stein(days + 0.2)
    assert (kappa, t) == (pytest.approx(0.75), pytest.approx(2.0))
    assert james_stein(days + 0.05)[0] == 0.0  # t = 0.5
    assert james_stein(days - 1.0)[0] == 0.0
    assert james_stein(np.zeros(5)) == (0.0, 0.0)
    assert james_stein(np.full(5, 1e-4))[0] == 1.0
    assert james_stein(np.ones(1))[0] == 0.0


@pytest.mark.parametrize(("wanted", "times"), [(0.5, 0.5), (3.0, 3.0), (12.0, MAX_TILT_SCALE)])
def test_members_are_sized_to_a_tracking_error_before_evidence_is_asked(wanted, times):
    random = np.random.default_rng(0)
    days = random.normal(2e-4, 1e-3, 250)
    learned = float(days.std(ddof=1)) * 252**0.5
    apart = random.normal(0, 1e-3, 250)
    members = [entry(k, 1.0, active_returns=tuple(days + (k - 0.5) * apart)) for k in range(2)]
    plain = settings(ensemble_shrinkage="james_stein")
    sized = settings(ensemble_shrinkage="james_stein", ensemble_tracking_error=wanted * learned)
    before = estimate_shrinkage(members, [0.5, 0.5], plain)
    after = estimate_shrinkage(members, [0.5, 0.5], sized)
    assert 0 < before.tilt_scale == before.kappa == after.kappa
    assert before.tracking_error == pytest.approx(learned)
    assert after.tilt_scale == pytest.approx(times * before.kappa)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"order": "generations", "survivors": 8, "pool_size": 8}, "survivors"),
        ({"fresh": 0.5, "founders": 9, "leaderboard_size": 8}, "raise leaderboard_size"),
        ({"ensemble_size": 9, "leaderboard_size": 8}, "ensemble_size"),
        (
            {"validation_folds": 5, "replicas": 2},
            "cannot be fused of 2 replicas; set replicas to 1",
        ),
        ({"ensemble_tracking_error": 0.02}, "needs ensemble_shrinkage"),
        ({"devices": ()}, "at least one device"),
        (
            {"devices": ("cuda:0/1",), "replicas": 1},
            "spans 2 devices needs a learner for each; set replicas to 2",
        ),
        ({"devices": ("cuda:0/1", "cuda:2")}, "join 1 and 2 devices"),
    ],
)
def test_settings_refuse_nonsense(wrong, message):
    with pytest.raises(ValueError, match=message):
        TournamentSettings(**wrong)


@pytest.mark.parametrize(
    ("asked", "learners"),
    [
        ({}, 1),
        ({"devices": ("cuda:0", "cuda:1")}, 1),
        ({"devices": ("cuda:0/1",)}, 2),
        ({"devices": ("cuda:0+1", "cuda:2/3")}, 2),
        ({"devices": ("cpu/cpu/cpu",)}, 3),
        ({"devices": ("cpu/cpu",), "replicas": 3}, 3),
        ({"devices": ("cuda:0/1", "cuda:2"), "replicas": 2}, 2),
    ],
)
def test_a_pod_has_a_learner_for_each_device_it_spans(asked, learners):
    assert TournamentSettings(**asked).learners == learners
    assert breeder(**asked).draw_fresh(0, Leaderboard(4)).replicas == learners


def test_a_result_tells_which_of_a_machines_gpus_it_comes_from(tmp_path, monkeypatch):
    """A process counts the GPUs it may use from 0, so `cuda:0` alone says nothing."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    run = RunFolder(tmp_path)
    spec = breeder().draw_fresh(0, Leaderboard(4))
    result = run_pod(spec, PodContext(run, tmp_path, device="cuda:0"), stubs.body)
    assert result.location == f"{socket.gethostname()} cuda:0 (GPU 3)"
    assert describe_location("cpu") == f"{socket.gethostname()} cpu"
    assert result.reproducible.location == ""


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_configurations_say_in_which_order_results_count(path):
    """Those that promise the same numbers to everybody must not live on a default."""
    asked = read_yaml(path)["tournament"]
    allowed = {"arrival"} if path.stem in ("podracer", "hopper") else {"submission", "generations"}
    assert "pods" not in asked or asked["order"] in allowed


def test_a_record_of_another_version_is_a_typed_error(tmp_path):
    path = tmp_path / "run" / "pods" / "p0000" / "spec.json"
    path.parent.mkdir(parents=True)
    with pytest.raises(TournamentError, match="does not exist: `fintrader verify"):
        PodSpec.from_json(path)
    path.write_text('{"pod": "p0000", "colour": "red"}')
    with pytest.raises(TournamentError, match="is damaged"):
        PodSpec.from_json(path)
    path.write_bytes(seal({"pod": "p0000", "colour": "red"}))  # a record of something else
    with pytest.raises(TournamentError, match="is damaged"):
        PodSpec.from_json(path)
    names = [one.name for one in dataclasses.fields(PodSpec)]
    path.write_bytes(seal({**dict.fromkeys(names[1:], 1), "colour": "red"}))
    with pytest.raises(RunError, match="another version"):
        PodSpec.from_json(path)
