"""The search space: where hyper-parameters may lie, and how they are drawn and stepped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
from pydantic import ValidationError, model_validator

from fintrader.config import Settings, first_problem
from fintrader.errors import ConfigError


class Range(Settings):
    """Where one hyper-parameter may lie: `low..high`, or a list of `choices`."""

    low: float | None = None
    """Smallest value."""
    high: float | None = None
    """Largest value."""
    log: bool = False
    """Draw uniformly in the logarithm."""
    choices: tuple[Any, ...] = ()
    """The values to choose from, in their natural order, instead of low and high."""
    structural: bool = False
    """The value shapes the network: drawn for fresh pods, kept by children (weights would not fit otherwise)."""

    @model_validator(mode="after")
    def _possible(self) -> Range:
        if self.choices:
            if self.low is not None or self.high is not None:
                raise ValueError("give either choices or low and high, not both")
            return self
        if self.low is None or self.high is None:
            raise ValueError("give low and high, or choices")
        if not (math.isfinite(self.low) and math.isfinite(self.high)) or self.low >= self.high:
            raise ValueError(f"impossible range: low {self.low} must lie below high {self.high}")
        if self.log and self.low <= 0:
            raise ValueError(f"impossible range: a logarithmic range needs low > 0, got {self.low}")
        return self


Random = np.random.Generator


def draw(space: Range, like: Any, random: Random) -> Any:
    """A value from the range, an integer where `like` is one."""
    if space.choices:
        return space.choices[int(random.integers(len(space.choices)))]
    assert space.low is not None
    assert space.high is not None
    if space.log:
        return _like(like, math.exp(random.uniform(math.log(space.low), math.log(space.high))))
    return _like(like, random.uniform(space.low, space.high))


def stepped(space: Range, value: Any, perturb: float, way: int) -> Any:
    """`value` times (`way` 1) or by (-1) `perturb`, or the next of the choices, as far as the range goes."""
    if space.choices:
        number = space.choices.index(value) if value in space.choices else 0
        return space.choices[min(max(number + way, 0), len(space.choices) - 1)]
    assert space.low is not None
    assert space.high is not None
    moved = _like(value, value * (perturb if way > 0 else 1 / perturb))
    if isinstance(value, int) and moved == value:  # too small for the factor to show
        moved = value + way
    return _like(value, min(max(moved, space.low), space.high))


def _like(value: Any, drawn: float) -> float | int:
    return round(drawn) if isinstance(value, int) and not isinstance(value, bool) else float(drawn)


def check_search(search: Mapping[str, Range], agents: Sequence[Settings]) -> None:
    """Raises ConfigError when a name is nobody's setting, or an end of a range is not allowed there."""
    for name, space in search.items():
        owners = [agent for agent in agents if has(agent.model_dump(mode="json"), name)]
        if not owners:
            known = sorted({field for agent in agents for field in type(agent).model_fields})
            raise ConfigError(f"tournament.search.{name}: no agent here has this setting; known: {', '.join(known)}")
        for agent in owners:
            for value in space.choices or (space.low, space.high):
                values = agent.model_dump(mode="json")
                if not space.choices:
                    if not isinstance(get(values, name), int | float) or isinstance(get(values, name), bool):
                        raise ConfigError(f"tournament.search.{name}: low and high need a number; give choices")
                    value = _like(get(values, name), float(value))
                put(values, name, value)
                try:
                    type(agent).model_validate(values)
                except ValidationError as error:
                    problem = first_problem(type(agent), error)
                    raise ConfigError(f"tournament.search.{name}: {value!r} is impossible: {problem}") from None


def has(values: Mapping[str, Any], name: str) -> bool:
    """Whether dotted `name` leads to a value."""
    try:
        get(values, name)
    except (KeyError, TypeError):
        return False
    return True


def get(values: Mapping[str, Any], name: str) -> Any:
    """The value at dotted `name`."""
    return reduce(getitem, name.split("."), values)


def put(values: dict[str, Any], name: str, value: Any) -> None:
    """Set the value at dotted `name`, in place."""
    *path, last = name.split(".")
    reduce(getitem, path, values)[last] = value
