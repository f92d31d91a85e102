"""Which strategies of a backtest are results, baselines and references."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

BASELINES = ("buy_and_hold", "equal_weight", "inverse_volatility", "minimum_variance", "momentum", "benchmark", "cash")
"""Strategies that stand for comparison and were not searched for."""
REFERENCES = ("oracle",)
"""Strategies that know more than anybody could: shown, never a result and never a rival."""
_ORDER = ("ensemble", "best", "buy_and_hold", "equal_weight", "benchmark")


def is_baseline(name: str) -> bool:
    """Whether a strategy stands beside the results for comparison."""
    return name in BASELINES


def is_result(name: str) -> bool:
    """Whether a strategy is what somebody searched for."""
    return name not in BASELINES and name not in REFERENCES


def main_strategy(names: Sequence[str]) -> str:
    """The strategy a report is about: the first result, else the first of all."""
    return next((name for name in names if is_result(name)), names[0])


def in_order(names: Iterable[str]) -> list[str]:
    """The order of tables: what was searched for, then what anybody could have had, then the rest as given."""
    rank = {name: place for place, name in enumerate(_ORDER)}
    return sorted(names, key=lambda name: (not is_result(name), rank.get(name, len(rank))))
