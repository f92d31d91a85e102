"""Proposals of hyper-parameters from earlier fresh pods and their scores.

The tree-structured Parzen estimator (Bergstra et al. 2011, https://papers.nips.cc/paper/4443) by
Optuna models the density of good settings and that of the others, and proposes the values with the
highest ratio. A pod that was stopped at a rung counts by its score there, below those that went
further. Children do not count, since their scores include inherited training.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fintrader.errors import ConfigError, install_command
from fintrader.tournament.leaderboard import FinishedPod
from fintrader.tournament.settings import Space

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

STARTUP = 10
"""Pods that are drawn before the first proposal."""
REMEMBERED = 500
"""Newest pods that a proposal uses, since its time grows with their number."""


def propose(
    search: Mapping[str, Space], likes: Mapping[str, Any], tried: Sequence[FinishedPod], seed: int
) -> dict[str, Any]:
    """Propose setting -> value; nothing while fewer than `STARTUP` pods have a score.

    `likes` has an example value of each setting to propose (integers make integers), `tried` are
    fresh pods of the same algorithm. A pure function. Raises ConfigError without Optuna.
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
    proposed = {}
    for name, value in asked.items():
        space = search[name]
        proposed[name] = space[value] if isinstance(space, tuple) else value
    return proposed


def import_optuna() -> Any:
    """Import Optuna without its log lines. Raises ConfigError when it is missing."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(
            f"tournament.proposals: tpe needs Optuna: {install_command('search')}"
        ) from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _build_distribution(space: Space, like: Any) -> BaseDistribution:
    """Build the distribution; choices go by number, since they may be lists."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(space, tuple):
        return CategoricalDistribution(range(len(space)))
    if isinstance(like, int):
        return IntDistribution(
            max(round(space.low), int(space.log)), round(space.high), log=space.log
        )
    return FloatDistribution(space.low, space.high, log=space.log)


def _build_trial(
    entry: FinishedPod, search: Mapping[str, Space], spaces: Mapping[str, BaseDistribution]
) -> optuna.trial.FrozenTrial:
    """Build Optuna's record of a pod. Values outside the ranges are left out."""
    import optuna

    params: dict[str, Any] = {}
    for name, space in spaces.items():
        value = entry.spec.hyper.get(name)
        choices = search[name]
        if isinstance(choices, tuple):
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
