from collections import Counter

import pytest

from fintrader import cli
from fintrader.pipeline.config import RunConfig, load_config
from fintrader.pipeline.wide_search import ALGORITHMS, SPACE, widen
from fintrader.runs import RunFolder
from fintrader.tournament.generator import Generator
from fintrader.tournament.leaderboard import Leaderboard
from fintrader.tournament.schedulers import make_scheduler
from fintrader.tournament.store import RunStore
from tests import ROOT

QUICKSTART = ROOT / "configs" / "quickstart.yaml"


def configure(**more):
    return RunConfig.model_validate(load_config(QUICKSTART).model_dump(mode="json") | more)


def test_every_algorithm_begins_and_can_have_every_drawn_setting():
    config = widen(configure())
    race = config.tournament
    assert (race.order, race.pods) == ("halving", 42)
    scheduler = make_scheduler(race)
    generator = Generator(race, config.agents, env={}, seed=3, data_hash="h")
    board = Leaderboard(16)
    specs = [scheduler.make(index, board, generator) for index in range(28)]
    assert {spec.rung for spec in specs} == {0}
    assert scheduler.count_needed(28) == 28
    assert Counter(spec.agent["algo"] for spec in specs) == dict.fromkeys(ALGORITHMS, 4)
    first = load_config(QUICKSTART).agents[0].model_dump(mode="json")
    assert specs[0].agent == {**first, "anneal": False}
    rates = {spec.agent["learning_rate"] for spec in specs[len(ALGORITHMS) :]}
    assert min(rates) < 1e-3
    assert max(rates) > 1e-2


def test_others_share_what_the_configuration_changes():
    agent = {"algo": "ppo", "learning_rate": 0.01, "weight_decay": 0.5, "update_epochs": 9}
    agent["network"] = {"hidden": [7]}
    searched = {"noise": {"low": 0.5, "high": 0.6}, "weight_decay": {"low": 0.1, "high": 0.2}}
    config = widen(configure(agent=agent, tournament={"pods": 100, "search": searched}))
    ppo, *others = config.agents
    assert (ppo.update_epochs, ppo.learning_rate) == (9, 0.01)
    assert {other.weight_decay for other in others} == {0.5}
    assert {tuple(other.network.hidden) for other in others} == {(7,)}
    assert {other.learning_rate for other in others} == {1e-3, 3e-3}
    assert all(other.network.layer_norm for other in others if other.has_replay)
    assert config.tournament.pods == 100
    assert config.tournament.search["noise"] == SPACE["noise"]
    assert config.tournament.search["weight_decay"].high == 0.2


def test_listed_algorithms_stay_and_a_gradient_is_not_asked_of_limits():
    listed = widen(configure(agent=[{"algo": "ppo"}, {"algo": "sac"}]))
    assert [agent.algo for agent in listed.agents] == ["ppo", "sac"]
    assert listed.tournament.pods == 25
    resting = widen(configure(env={"action": "limit"}))
    assert [agent.algo for agent in resting.agents] == [
        algo for algo in ALGORITHMS if algo != "apg"
    ]


@pytest.mark.parametrize(
    "agent", [{"algo": "ppo", "learners": 2}, {"algo": "sac", "pipeline": True}]
)
def test_settings_that_only_some_algorithms_have_stay_with_theirs(agent):
    first, *others = widen(configure(agent=agent)).agents
    assert first.model_dump().items() >= agent.items()
    assert {(other.learners, other.pipeline) for other in others} == {(1, False)}


@pytest.mark.slow
def test_a_search_by_one_command(tmp_path):
    words = [
        "tournament", str(QUICKSTART), "--search", "--runs-dir", str(tmp_path), "--name", "wide",
        "--cache", str(tmp_path / "cache"), "--data.source.num-sessions", "60",
        "--tournament.budget.env-steps", "12000", "--env.num-envs", "64",
    ]  # fmt: skip
    cli.main(words)
    specs = RunStore(RunFolder(tmp_path / "wide")).read_specs().values()
    assert len(specs) == 42
    assert {spec.agent["algo"] for spec in specs} == set(ALGORITHMS)
    assert Counter(spec.rung for spec in specs) == {0: 28, 1: 10, 2: 3, 3: 1}
