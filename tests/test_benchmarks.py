"""Yardsticks of the benchmarks, and a short form of their simulated cluster."""

import importlib
from statistics import median

import pytest
import torch

from benchmarks import growth, paper_rows
from benchmarks._cluster import World, check, make_settings, simulate
from benchmarks._figures import list_steep
from benchmarks._learning import SESSION
from benchmarks._planted import OURS, VALIDATION, log_return, rule, windows
from benchmarks._records import PAPER, describe_paper, fit_amdahl
from benchmarks.kelly import ASSETS, COVARIANCE, WEIGHTS, expected_growth
from benchmarks.known_optimum import SETTINGS, TRUE_RATE, QuadraticMarket, evaluate, optimal_policy
from benchmarks.scaling import add_overhead
from fintrader.agents import PPO, Budget, make_agent, train
from fintrader.envs import TradingEnv
from fintrader.results.leaderboard_reader import dump_canonical
from tests import ROOT
from tests.engines.chaos import events_of
from tests.engines.tiny import agent_settings


def test_growth_is_the_slope_between_the_two_largest_sizes():
    case = growth.Case("build", "assets", (10, 100, 1_000), growth.build_by_assets)
    sizes = {10: (9.0, 50.0), 100: (0.1, 4.0), 1_000: (1.0, 400.0)}
    points = {
        size: {
            "build": {"cpu_seconds": seconds, "user_seconds": seconds / 2, "mib": mib},
            "idle": {"cpu_seconds": 0, "user_seconds": 0, "mib": 0},
        }
        for size, (seconds, mib) in sizes.items()
    }
    build, idle = growth.summarise_case(case, points)
    assert (build["cpu_seconds_exponent"], build["mib_exponent"]) == (1.0, 2.0)
    assert (idle["cpu_seconds_exponent"], idle["mib_exponent"]) == (None, None)
    assert list_steep([build, idle]) == [
        "build: build, by assets (memory 2.00): no reason is known"
    ]
    paging = {**idle, "cpu_seconds_exponent": 1.3, "user_seconds_exponent": 0.9}
    assert list_steep([paging]) == [
        "build: idle, by assets (time 1.30): the program's own time grows by 0.90; the rest is the"
        " system's, for new memory and files"
    ]


def test_the_growth_of_kellys_weights_is_that_of_the_closed_form():
    # g = μ'w − w'Σw / 2, which is w'Σw / 2 at w = Σ⁻¹ μ; a bar is not an instant, hence the
    # tolerance
    closed = float(WEIGHTS @ COVARIANCE @ WEIGHTS / 2)
    assert float(expected_growth(WEIGHTS.unsqueeze(0))) == pytest.approx(closed, rel=0.02)


def test_no_weights_near_kellys_grow_faster():
    best = expected_growth(WEIGHTS.unsqueeze(0))
    moved = WEIGHTS + 0.04 * torch.cat([torch.eye(ASSETS), -torch.eye(ASSETS)]).double()
    assert bool((expected_growth(moved) < best).all())
    assert float(expected_growth(2 * WEIGHTS.unsqueeze(0)) / best) == pytest.approx(
        0, abs=0.1
    )  # twice Kelly: nothing


def test_a_rule_that_knows_the_planted_signal_earns():
    _, market = windows(1)
    assert market.num_bars == VALIDATION * SESSION
    assert log_return(rule, market, OURS) > 0.1


def test_nothing_near_the_closed_form_is_better():
    best, slope = evaluate(optimal_policy, steps=300)
    assert slope == pytest.approx(TRUE_RATE, rel=1e-4)
    for factor in (0.7, 1.4):
        assert (
            evaluate(lambda obs, f=factor: optimal_policy(obs, TRUE_RATE * f), steps=300)[0] < best
        )
    for tilt in (0.8, 1.2):

        def tilted(obs, tilt=tilt):
            held, factor, ones = obs.chunk(3, dim=1)
            return optimal_policy(torch.cat([held, tilt * factor, ones], dim=1))

        assert evaluate(tilted, steps=300)[0] < best
    half = evaluate(lambda obs: optimal_policy(obs, TRUE_RATE / 2), steps=300)[0]
    assert half / best == pytest.approx(0.964, abs=0.01)


@pytest.mark.slow
def test_analytic_gradients_come_near_the_optimum():
    env = QuadraticMarket(256, realised=True, seed=0)
    settings = agent_settings("apg", SETTINGS["apg"])
    agent = make_agent(settings, env.layout, seed=0)
    best, _ = evaluate(optimal_policy)
    assert evaluate(agent.policy)[0] < 0.2 * best
    train(agent, env, Budget(env_steps=256 * settings.num_steps * 25))
    assert evaluate(agent.policy)[0] > 0.9 * best


@pytest.mark.parametrize("name", [path.stem for path in (ROOT / "benchmarks").glob("*.py")])
def test_a_benchmark_finds_what_it_imports(name):
    """No other test runs most of them."""
    try:
        importlib.import_module(f"benchmarks.{name}")
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] in ("benchmarks", "fintrader", "tests"):
            raise
        pytest.skip(f"{error.name} is not installed")


@pytest.mark.parametrize("name", ["kelly", "known_optimum", "leaked_future"])
def test_agents_of_known_optima_can_be_made(name):
    """They are trained by hand only, and their settings must not rot in the meantime."""
    settings = importlib.import_module(f"benchmarks.{name}").SETTINGS
    assert settings
    for algo, values in settings.items():
        agent_settings(algo, values)


SAMPLES = {
    "warm_start": [1.0, 3.0],
    "task_start": [10.0, 12.0],
    "checkpoint": [0.05],
    "evaluation": [4.0, 6.0],
    "snapshot_s3_get": [1.5],
    "snapshot_s3_put": [2.0],
    "result_file": [0.1],
}


def test_the_papers_efficiency_is_36_percent():
    assert [round(found["efficiency_16_to_80"], 2) for found in describe_paper().values()] == [
        0.36,
        0.36,
    ]
    for times in PAPER.values():
        fit = fit_amdahl(times)
        for gpus in (16, 80):
            found = fit["serial_seconds"] + fit["parallel_gpu_seconds"] / gpus
            assert found == pytest.approx(times[str(gpus)])


def test_a_pods_overhead_is_the_sum_of_its_parts():
    # ten checkpoints are half a second
    assert add_overhead(SAMPLES, 100.0) == {"start": [14.0, 16.0], "end": [6.1, 8.1]}


ROUGH = World(
    gpus=24,
    gpus_per_node=4,
    pod=(400.0, 800.0),
    start=(5.0, 20.0),
    end=(1.0, 2.0),
    failure_rate=1 / 3000,
    preemption_rate=1 / 4000,
    zombies=0.3,
    seed=3,
)


@pytest.mark.slow
def test_nothing_is_lost_or_doubled_in_a_rough_cluster(tmp_path):
    """Failures, preempted nodes, results after the pod was given up, and three deaths of the
    orchestrator."""
    asked = make_settings(80, 24)
    outcome = simulate(tmp_path / "run", asked, ROUGH, kill_after=(20, 21, 65))
    check(outcome, asked)
    cluster = outcome.cluster
    assert outcome.restarts == 3
    assert cluster.losses["killed"] > 10
    assert cluster.losses["drained"] > 10
    assert max(cluster.attempts.values()) > 2
    assert len(events_of(outcome.run, "resumed")) == 3


def test_a_cluster_that_halves_and_returns_keeps_every_gpu_busy(tmp_path):
    world = World(
        gpus=16, gpus_per_node=4, pod=(300.0, 300.0), preemption_rate=1 / 2000, away=500.0, seed=1
    )
    outcome = simulate(tmp_path / "run", make_settings(80, 16), world)
    check(outcome, make_settings(80, 16))
    assert outcome.cluster.losses["drained"] > 5
    # a GPU that is there and has work waits for the next turn at most
    assert max(outcome.cluster.idle) <= 0.6


@pytest.mark.parametrize("scheduler", ["submission", "generational"])
@pytest.mark.slow
def test_reproducible_orders_do_not_depend_on_the_weather(tmp_path, scheduler):
    if scheduler == "submission":
        asked = make_settings(80, 16, order="submission", pool_size=16)
    else:
        asked = make_settings(72, 16, order="generations", pool_size=24, survivors=4)

    def run(name, world, **more):
        outcome = simulate(tmp_path / name, asked, world, **more)
        check(outcome, asked)
        return outcome

    calm = run("calm", World(gpus=16, seed=5))
    rough = run(
        "rough",
        World(gpus=12, pod=(1.0, 900.0), failure_rate=1 / 2000, zombies=0.5, seed=5),
        kill_after=(50,),
    )
    assert dump_canonical(calm.run.leaderboard) == dump_canonical(rough.run.leaderboard)


def test_the_simulated_clock_gives_the_textbook_makespan(tmp_path):
    """64 pods of 100 s and 10 s of overhead on 16 GPUs: four waves, and at most a few turns between
    them."""
    world = World(gpus=16, pod=(100.0, 100.0), start=(8.0,), end=(2.0,))
    outcome = simulate(tmp_path / "run", make_settings(64, 16), world)
    assert 4 * 110 <= outcome.makespan <= 4 * 110 + 4 * 0.2
    assert outcome.cluster.busy == pytest.approx(64 * 110)


@pytest.mark.slow
def test_accounts_in_groups_learn_as_well_as_single_ones():
    """Five seeds, 50,000 steps of 256 accounts each: 16 groups of 16, and every account by
    itself."""
    shares = {16: [], 256: []}
    for seed in range(5):
        training, validation = windows(seed)
        for groups, found in shares.items():
            rules = OURS.model_copy(update={"start_groups": groups})
            env = TradingEnv(training, rules, num_envs=256, seed=seed)
            agent = make_agent(PPO(), env.layout, seed=seed)
            train(agent, env, Budget(env_steps=50_000))
            best = log_return(rule, validation, OURS)
            policy = agent.policy
            reached = log_return(lambda account, p=policy: p(account.observe()), validation, OURS)
            found.append(reached / best)
    assert median(shares[16]) > 0.3
    assert median(shares[16]) > 0.8 * median(shares[256])


def test_the_papers_rows_are_medians_and_first_times():
    def way(*growths):
        leaders = [
            {"cpu_seconds": 10.0 * number, "growth": growth}
            for number, growth in enumerate(growths, 1)
        ]
        return {
            "leaders": leaders,
            "test": {"cumulative_return": growths[-1] - 1.0, "calmar": None},
        }

    runs = [
        {
            "ours": way(None, 0.98, 1.01),
            "rllib": way(0.9, 0.9, 0.9),
            "index": {},
            "index_growth": 1.0,
        }
        for _ in range(2)
    ]
    runs.append({**runs[0], "ours": way(0.97, 0.97, 0.97)})
    found = paper_rows.summarise(runs)
    assert found["ours"]["cumulative_return"] == pytest.approx(0.01)
    assert found["ours"]["range"] == pytest.approx([-0.03, 0.01])
    assert found["ours"]["seconds_to"]["1.0"] == [30.0, 30.0, None]
    assert found["rllib"]["seconds_to"]["index"] == [None, None, None]
    assert found["ours"]["calmar"] is None
