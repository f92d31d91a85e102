"""The generator: the next pod's spec, as a pure function of the root seed, the pod's number and the
leaderboard.

Fresh pods are drawn from the search space. Children take a parent's networks and optimiser
(*exploit*) and its hyper-parameters, perturbed or drawn anew (*explore*), as in population-based
training (https://arxiv.org/abs/1711.09846) and ElegantRL-Podracer
(https://arxiv.org/abs/2112.05923, algorithm 1).
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from typing import Any, cast

import numpy as np
from pydantic import ValidationError

from fintrader.config import Settings, describe_problem
from fintrader.errors import ConfigError
from fintrader.seeding import create_numpy_generator, derive
from fintrader.tournament.leaderboard import FinishedPod, Leaderboard
from fintrader.tournament.settings import Range, Space, TournamentSettings
from fintrader.tournament.spec import EvaluationTerms, Origin, PodSpec, Rival, SettingsValues

Random = np.random.Generator


@dataclass(frozen=True)
class Generator:
    """Makes specs, from inputs that a tournament never changes."""

    settings: TournamentSettings
    agents: tuple[Settings, ...]
    """Base settings, one for each algorithm that takes part."""
    env: SettingsValues
    seed: int
    data_hash: str
    inherited: tuple[FinishedPod, ...] = ()
    """Pods of an earlier run, best first, from which this run's first pods start."""

    def __post_init__(self) -> None:
        check_search(self.settings.search, self.agents)

    def draw_fresh(self, index: int, leaderboard: Leaderboard, generation: int = 0) -> PodSpec:
        """Draw a pod that starts from new weights. The first pod of each algorithm has its base
        settings."""
        values = self.agents[index % len(self.agents)].model_dump(mode="json")
        if index >= len(self.agents):
            random = create_numpy_generator(self.seed, "fresh", index)
            for name, like in select_values(values, self.settings.search).items():
                set_value(values, name, draw(self.settings.search[name], like, random))
        return self._build_spec(index, leaderboard, values, origin="fresh", generation=generation)

    def propose_founder(self, index: int, leaderboard: Leaderboard, generation: int = 0) -> PodSpec:
        """Propose a pod without a parent in this run: fresh, or a child of a pod of the earlier
        run.

        Each pod of the earlier run is continued unchanged once, then with perturbed
        hyper-parameters.
        """
        if not self.inherited:
            return self.draw_fresh(index, leaderboard, generation)
        parent = self.inherited[index % len(self.inherited)]
        return self.derive_child(
            index, leaderboard, parent, generation=generation, explore=index >= len(self.inherited)
        )

    def derive_child(
        self,
        index: int,
        leaderboard: Leaderboard,
        parent: FinishedPod,
        *,
        generation: int,
        explore: bool = True,
    ) -> PodSpec:
        """Derive a pod that continues from `parent`'s snapshot, with perturbed hyper-parameters
        if `explore`."""
        values = copy.deepcopy(dict(parent.spec.agent))
        if explore:
            random = create_numpy_generator(self.seed, "explore", index)
            for name, value in select_values(values, self.settings.search).items():
                if not name.startswith(STRUCTURAL):
                    moved = self._explore(self.settings.search[name], value, random)
                    set_value(values, name, moved)
        origin: Origin = "exploit" if explore else "survivor"
        return self._build_spec(
            index, leaderboard, values, origin=origin, generation=generation, parent=parent
        )

    def propose(self, index: int, leaderboard: Leaderboard) -> PodSpec:
        """Propose the asynchronous tournament's next pod: fresh, or a child of a row picked
        by rank."""
        settings = self.settings
        coin, pick = create_numpy_generator(self.seed, "propose", index).random(2)
        if len(leaderboard.parents) < settings.founders:
            return self.propose_founder(index, leaderboard)
        if coin < settings.fresh:
            return self.draw_fresh(index, leaderboard)
        parents = leaderboard.parents
        parent = parents[rank_softmax(len(parents), settings.temperature, pick)]
        return self.derive_child(index, leaderboard, parent, generation=parent.spec.generation + 1)

    def _explore(self, space: Space, value: Any, random: Random) -> Any:
        """Draw a new value with probability `resample`, else move `value` one step up or down; at
        an end of the range, move it the other way."""
        again, up = random.random(2)
        # Always drawn, so that the next field's draws stay the same.
        fresh = draw(space, value, random)
        if again < self.settings.resample:
            return fresh
        step = 1 if up < 0.5 else -1
        # At an end of the range one way would leave the parent's value unchanged.
        for way in (step, -step):
            moved = step_value(space, value, way)
            if moved != value:
                return moved
        return fresh  # multiplying cannot change a zero

    def _build_spec(
        self,
        index: int,
        leaderboard: Leaderboard,
        values: SettingsValues,
        *,
        origin: Origin,
        generation: int,
        parent: FinishedPod | None = None,
    ) -> PodSpec:
        algo = values.get("algo")
        kind = next(type(own) for own in self.agents if getattr(own, "algo", None) == algo)
        try:
            agent = kind.model_validate(values).model_dump(mode="json")
        except ValidationError as error:
            problem = describe_problem(kind, error)
            raise ConfigError(
                f"tournament.search leads to settings no agent can have: {problem}"
            ) from None
        settings = self.settings
        return PodSpec(
            pod=f"p{index:04d}",
            index=index,
            seed=derive(self.seed, "pod", index),
            origin=origin,
            parent=parent.spec.pod if parent else None,
            snapshot=parent.result.snapshot if parent else None,
            seen=len(leaderboard.applied),
            generation=generation,
            agent=agent,
            hyper=select_values(agent, settings.search),
            budget=settings.budget,
            evaluation=EvaluationTerms(settings.metric, settings.validation_windows),
            looks=settings.looks,
            folds=settings.validation_folds or 0,
            replicas=settings.learners,
            fusions=settings.fusions,
            env=self.env,
            data_hash=self.data_hash,
            rivals=self._draw_rivals(index, leaderboard),
        )

    def _draw_rivals(self, index: int, leaderboard: Leaderboard) -> tuple[Rival, ...]:
        """Draw a rival from the leaderboard for each team but the first, if `env.traders` asks for
        it: evenly from past policies, as in fictitious self-play (Heinrich, Lanctot and Silver,
        2015)."""
        traders = cast(Any, self.env.get("traders"))
        rows = leaderboard.parents
        if not traders or traders["rivals"] != "leaderboard" or not rows:
            return ()
        random = create_numpy_generator(self.seed, "rivals", index)
        drawn = [rows[int(random.integers(len(rows)))] for _ in traders["teams"][1:]]
        return tuple(Rival(one.spec.pod, str(one.result.snapshot), one.spec.agent) for one in drawn)


def rank_softmax(count: int, temperature: float, uniform: float) -> int:
    """Rank in `0..count-1` drawn with p(rank) = exp(-rank / temperature) / sum; `uniform`: a number
    in [0, 1).

    Inverts the distribution function of a truncated geometric distribution, in constant time.
    """
    return min(
        int(-temperature * math.log1p(uniform * math.expm1(-count / temperature))), count - 1
    )


# --- the search space -----------------------------------------------------------------------------


def draw(space: Space, like: Any, random: Random) -> Any:
    """Draw a value from the range, an integer if `like` is one."""
    if isinstance(space, tuple):
        return space[int(random.integers(len(space)))]
    if space.log:
        return _round_like(
            like, math.exp(random.uniform(math.log(space.low), math.log(space.high)))
        )
    return _round_like(like, random.uniform(space.low, space.high))


STRUCTURAL = "network."
"""Prefix of fields that shape the weights: a child keeps its parent's values."""
PERTURB = 1.25
"""Factor by which a child's hyper-parameter is multiplied or divided."""


def step_value(space: Space, value: Any, way: int) -> Any:
    """Multiply (`way` 1) or divide (-1) `value` by PERTURB, or take the next or previous
    choice, within the range."""
    if isinstance(space, tuple):
        number = space.index(value) if value in space else 0
        return space[min(max(number + way, 0), len(space) - 1)]
    moved = _round_like(value, value * (PERTURB if way > 0 else 1 / PERTURB))
    if isinstance(value, int) and moved == value:  # too small for the factor to show
        moved = value + way
    return _round_like(value, min(max(moved, space.low), space.high))


def _round_like(value: Any, drawn: float) -> float | int:
    return round(drawn) if isinstance(value, int) and not isinstance(value, bool) else float(drawn)


def check_search(search: Mapping[str, Space], agents: Sequence[Settings]) -> None:
    """Raise ConfigError for a name that no agent has, or a bound that its setting does not
    allow."""
    for name, space in search.items():
        owners = [
            (agent, like)
            for agent in agents
            for like in select_values(agent.model_dump(mode="json"), [name]).values()
        ]
        if not owners:
            known = sorted({field for agent in agents for field in type(agent).model_fields})
            raise ConfigError(
                f"tournament.search.{name}: no agent here has this setting; known:"
                f" {', '.join(known)}"
            )
        for agent, like in owners:
            if isinstance(space, Range):
                if not isinstance(like, int | float) or isinstance(like, bool):
                    raise ConfigError(
                        f"tournament.search.{name}: the setting is no number; give a list"
                    )
                options = (_round_like(like, space.low), _round_like(like, space.high))
            else:
                options = space
            for value in options:
                values = agent.model_dump(mode="json")
                set_value(values, name, value)
                try:
                    type(agent).model_validate(values)
                except ValidationError as error:
                    problem = describe_problem(type(agent), error)
                    raise ConfigError(
                        f"tournament.search.{name}: {value!r} is impossible: {problem}"
                    ) from None


def select_values(values: SettingsValues, names: Iterable[str]) -> dict[str, Any]:
    """Select the values at dotted names; skip names without a value."""
    items = {}
    for name in names:
        with contextlib.suppress(KeyError, TypeError):
            items[name] = reduce(getitem, name.split("."), cast(Any, values))
    return items


def set_value(values: SettingsValues, name: str, value: Any) -> None:
    """Set the value at dotted `name`, in place."""
    *path, last = name.split(".")
    reduce(getitem, path, cast(Any, values))[last] = value
