"""Where to try next: fresh hyper-parameters from those that fresh pods before were trained with,
and their scores.

The tree-structured Parzen estimator (Bergstra et al. 2011, https://papers.nips.cc/paper/4443) by
Optuna models the density of good settings and that of the others, and proposes what is likeliest
under the first against the second. A pod that was stopped at a rung counts by the score that it had
there, below those that went further: it cost less and says less. Children do not count, since their
scores come from what they inherited.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fintrader.errors import ConfigError, install_command
from fintrader.tournament.leaderboard import FinishedPod
from fintrader.tournament.settings import Range

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

STARTUP = 10
"""Pods that are drawn before the first proposal."""
REMEMBERED = 500
"""The newest pods that a proposal is made from: it takes time in proportion."""


def propose(
    search: Mapping[str, Range], likes: Mapping[str, Any], tried: Sequence[FinishedPod], seed: int
) -> dict[str, Any]:
    """Setting -> value, as the estimator proposes it; nothing while fewer than `STARTUP` have a
    score.

    `likes` has a value of each setting that is to be proposed (integers make integers), `tried` are
    fresh pods of the same algorithm. A pure function of what it is given. Raises ConfigError
    without Optuna.
    """
    known = [one for one in tried if one.result.score is not None][-REMEMBERED:]
    if len(known) < STARTUP:
        return {}
    optuna = import_optuna()
    spaces = {name: _build_distribution(search[name], like) for name, like in likes.items()}
    sampler = optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    study.add_trials([_build_trial(one, search, spaces) for one in known])
    asked = study.ask(spaces).params
    return {
        name: search[name].choices[value] if search[name].choices else value
        for name, value in asked.items()
    }


def import_optuna() -> Any:
    """Optuna, told to be quiet. Raises ConfigError where it is missing."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            f"tournament.proposals: tpe needs Optuna: {install_command('search')}"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _build_distribution(space: Range, like: Any) -> BaseDistribution:
    """Choices by their number, since those may be lists."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if space.choices:
        return CategoricalDistribution(range(len(space.choices)))
    assert space.low is not None
    assert space.high is not None
    if isinstance(like, int):
        return IntDistribution(
            max(round(space.low), int(space.log)), round(space.high), log=space.log
        )
    return FloatDistribution(space.low, space.high, log=space.log)


def _build_trial(
    entry: FinishedPod, search: Mapping[str, Range], spaces: Mapping[str, BaseDistribution]
) -> optuna.trial.FrozenTrial:
    """A pod as Optuna knows it. What an algorithm has by its own settings outside of the ranges is
    left out."""
    import optuna

    params: dict[str, Any] = {}
    for name, space in spaces.items():
        value = entry.spec.hyper.get(name)
        choices = [*search[name].choices]
        if choices:
            value = choices.index(value) if value in choices else -1
        with contextlib.suppress(ValueError):
            if space._contains(space.to_internal_repr(value)):
                params[name] = value
    inside = {name: spaces[name] for name in params}
    state: dict[str, Any] = {"value": entry.score}
    if entry.result.status == "stopped":
        stage = round(1000 * max(map(float, entry.result.rung_scores)))
        state = {
            "state": optuna.trial.TrialState.PRUNED,
            "intermediate_values": {stage: entry.score},
        }
    return optuna.trial.create_trial(params=params, distributions=inside, **state)
