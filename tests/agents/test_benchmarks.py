"""How the benchmarks judge: curves with known answers, and what they keep between runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import algorithms, known_optimum, resume, time_to_return
from fintrader.backtesting.account import make_account


def curve(returns: list[float], pace: float = 1.0) -> list[dict[str, float]]:
    return [
        {"env_steps": 10 * k, "wall_s": pace * k, "cpu_s": pace * k, "return": value}
        for k, value in enumerate(returns, start=1)
    ]


def test_a_level_is_reached_when_three_points_hold_it() -> None:
    lucky = curve([0, 9, 0, 0, 5, 6, 7, 8])
    assert algorithms.seconds_to(5, lucky, "wall_s") == 5
    assert algorithms.seconds_to(50, lucky, "wall_s") is None


def test_sides_are_compared_at_the_level_of_theirs() -> None:
    slow, fast = curve([float(k) for k in range(20)]), curve([float(k) for k in range(20)], pace=0.25)
    figures = algorithms.compare([fast, fast], [slow, slow])
    assert figures["return_ours"] == figures["return_theirs"] == [17.5, 17.5]
    assert figures["level"] == pytest.approx(0.95 * 17.5, abs=0.05)
    assert figures["wall_s_ratio"] == 0.25
    assert figures["not_below"]
    never = algorithms.compare([curve([0.0] * 20)], [slow])
    assert never["wall_s_ratio"] is None
    assert not never["not_below"]


def test_a_referee_plays_equal_episodes_and_stops_the_clock() -> None:
    referee = algorithms.Referee("Pendulum-v1", 20)
    still = lambda obs: np.zeros((len(obs), 1), dtype=np.float32)  # noqa: E731
    assert referee.mean_return(still) == referee.mean_return(still)
    assert referee.mean_return(still) < -500
    for steps in (0, 1, 2, 20):
        referee.look(steps, still)
    assert [point["env_steps"] for point in referee.curve] == [1, 2, 20]
    before = referee.wall
    referee.look(20, still)  # nothing is left to judge
    assert referee.wall == before


def test_records_are_used_for_equal_settings_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resume, "ROOT", tmp_path)
    calls = []

    def make() -> dict[str, Any]:
        calls.append(1)
        return {"share": len(calls)}

    records = resume.Records("x")
    assert records.get("ppo-0", {"lr": 1.0}, make)["share"] == 1
    assert resume.Records("x").get("ppo-0", {"lr": 1.0}, make)["share"] == 1
    assert records.get("ppo-1", {"lr": 1.0}, make)["share"] == 2
    assert records.get("ppo-0", {"lr": 2.0}, make)["share"] == 3
    assert resume.Records("x", fresh=True).get("ppo-0", {"lr": 2.0}, make)["share"] == 4
    assert len(records.commits) == 1, "the commits of the records are told with them"


def test_targets_are_judged_by_the_mean_over_the_seeds() -> None:
    def run(share: float, rate: float) -> dict[str, Any]:
        point = {"mark": 60.0, "cpu_seconds": 60.2, "env_steps": 10, "share": share, "rate_ratio": rate}
        return {"algo": "ppo", "reward": "realised", "curve": [point]}

    figures = known_optimum.summary([run(0.92, 0.7), run(0.96, 1.0)])
    assert figures["ppo_realised"]["share_60s"] == {"mean": 0.94, "min": 0.92, "max": 0.96}
    found = known_optimum.met(figures)["ppo_realised"]
    assert found["met"]
    assert found["rate_within_a_fifth"]
    assert not known_optimum.met(known_optimum.summary([run(0.92, 0.7)]))["ppo_realised"]["met"]


def test_cut_episodes_begin_anew_and_show_where_they_led() -> None:
    env = known_optimum.QuadraticMarket(2000, episode_steps=4, seed=1)
    obs, _ = env.reset(seed=1)
    env.position += 1000 * known_optimum.UNIT
    obs, _, terminated, truncated, info = env.step(torch.zeros(2000, 10))
    assert not terminated.any()
    assert 400 < int(truncated.sum()) < 600
    assert bool((info["final_obs"][:, :10] > 900).all())
    assert bool((obs[truncated][:, :10] < 10).all())
    assert torch.equal(obs[~truncated], info["final_obs"][~truncated])


def test_the_rule_earns_and_a_finrl_policy_sees_finrl_states() -> None:
    _, market = time_to_return.windows(1)
    assert market.num_bars == time_to_return.VALIDATION * time_to_return.SESSION
    window = market.window(0, 60)
    assert time_to_return.log_return(time_to_return.rule, market, time_to_return.OURS) > 0.1
    seen: list[np.ndarray] = []

    def act(state: np.ndarray) -> np.ndarray:
        seen.append(state)
        return np.where(np.arange(time_to_return.ASSETS) == 0, 1.0, 0.05)  # buys the first, below the band elsewhere

    policy = time_to_return.FinrlPolicy(act)
    account = make_account(window, time_to_return.THEIRS)
    account.act(policy(account))
    policy(account)
    first, second = seen
    count = time_to_return.ASSETS
    assert first.shape == (3 + 3 * count + count * (1 + time_to_return.NOISE_FEATURES),)
    assert first[0] == pytest.approx(1e6 * 2**-12)
    np.testing.assert_allclose(first[3 : 3 + count], window.close[0].numpy() * 2**-6, rtol=1e-6)
    held = second[3 + count : 3 + 2 * count] * 2**6
    assert held.tolist() == [100.0] + [0.0] * (count - 1)
    assert second[3 + 2 * count : 3 + 3 * count].tolist() == [0.0] + [1.0] * (count - 1)
    assert second[0] == pytest.approx((1e6 - 100 * float(window.close[1, 0]) * 1.001) * 2**-12, rel=1e-5)
