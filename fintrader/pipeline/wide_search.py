"""A search for users who know neither the algorithm nor its settings: all algorithms race, with
settings from wide ranges, and the best go on by successive halving."""

from __future__ import annotations

from typing import Any

from fintrader.agents.agent import choose_agent
from fintrader.agents.settings import BaseSettings
from fintrader.config import compare_values, validate
from fintrader.pipeline.config import RunConfig
from fintrader.tournament.generator import select_values, set_value
from fintrader.tournament.settings import Range, Space

ALGORITHMS = ("ppo", "a2c", "sac", "td3", "ddpg", "redq", "apg")
SPACE: dict[str, Space] = {
    "learning_rate": Range(low=1e-4, high=1e-1, log=True),
    "gamma": (0.5, 0.8, 0.9, 0.95, 0.98, 0.99),
    "noise": Range(low=0.03, high=2.0, log=True),
}
NOT_SHARED = (*SPACE, "learners", "pipeline")
"""Settings of the configured algorithm that the others do not take over: those in `SPACE`, and
those that some algorithms lack."""
PODS, PODS_EACH = 25, 6
"""Least number of pods, in all and for each algorithm; two thirds begin from new weights."""


def widen(config: RunConfig) -> RunConfig:
    """Let all algorithms race, or those that the configuration lists, with settings from `SPACE`.

    The others take over the settings in which the first algorithm differs from its defaults.
    `SPACE` replaces ranges of the same settings in `tournament.search`, and the best pod alone is
    the policy. Everything else is as configured, also the budget of a pod. Raises ConfigError where
    another algorithm cannot have a shared setting.
    """
    agents: list[Any] = [agent.model_dump(mode="json") for agent in config.agents]
    if len(agents) == 1:
        first = config.agents[0]
        default = choose_agent(first.algo).model_dump(mode="json")
        changed = {
            name: now
            for name, (_, now) in compare_values(default, agents[0]).items()
            if name.split(".")[0] in BaseSettings.model_fields and name not in NOT_SHARED
        }
        without_gradient = (
            config.is_classic or config.trading.orders_rest or config.trading.num_traders > 1
        )
        for algo in ALGORITHMS:
            if algo != first.algo and not (algo == "apg" and without_gradient):
                values = choose_agent(algo).model_dump(mode="json")
                for name in select_values(values, changed):
                    set_value(values, name, changed[name])
                agents.append(values)
    race = config.tournament
    values = config.model_dump(mode="json") | {"agent": agents}
    values["tournament"] |= {
        "pods": max(race.pods, PODS, PODS_EACH * len(agents)),
        "order": "halving",
        "ensemble_size": 1,  # pods of earlier rungs add nothing (docs/results.md)
        "search": race.search | SPACE,
    }
    return validate(RunConfig, values, "--search")
