"""Purged K-fold validation: each block of sessions is scored by a learner that saw neither the
block nor its neighbours.

The training and validation windows together are cut into K blocks. Learner k trains on all sessions
but block k and an embargo on both sides of it (López de Prado, "Advances in Financial Machine
Learning", 2018, 7.4), and is scored on block k. The pod's policy comes from one more learner with
the same settings and budget that trains on everything. Learner k of a child continues from learner
k of its parent, so that no lineage ever trains on the block that it is scored on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fintrader.agents import Agent, Budget, TrainProgress, TrainResult, make_agent, read_agent_state
from fintrader.agents.checkpoint import add_prefix, select_below
from fintrader.agents.policy import ActorPolicy
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.joined import JoinedEnv, share_accounts
from fintrader.errors import ConfigError
from fintrader.market.tensors import MarketTensors
from fintrader.seeding import derive
from fintrader.tournament.evaluator import ValidationCurve
from fintrader.tournament.fusion.learners import (
    Report,
    Single,
    State,
    read_agent_settings,
    read_env_settings,
    split_budget,
)
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.spec import PodSpec

WHOLE = "whole"
"""Name of the last learner's folder and state."""


class ValidationFold(NamedTuple):
    """One learner's training pieces and its validation block."""

    pieces: tuple[MarketTensors, ...]
    """One or two: the sessions before the block, and those after it."""
    held_out: MarketTensors


def join_windows(market: MarketTensors) -> MarketTensors:
    """Join training and validation window and the embargo between them."""
    windows = market.split() and market.windows
    assert windows is not None
    return market.window(windows.train[0], windows.validation[1])


def make_blocks(market: MarketTensors, folds: int, env: EnvSettings) -> list[ValidationFold]:
    """Cut K blocks of whole sessions, as equal as possible, with the embargo of the windows.

    A piece shorter than an episode is left out. Raises ConfigError when a block has fewer than two
    sessions or nothing is left to train on, EnvError when there are fewer accounts than pieces,
    MarketError without windows.
    """
    windows = market.split() and market.windows
    assert windows is not None
    (_, end), (begin, _), _ = windows
    embargo = len(torch.unique(market.session[end:begin]))
    whole = join_windows(market)
    starts = whole.session_starts
    sessions = len(starts)
    if sessions < 2 * folds:
        lower = f"lower it to {sessions // 2}, or " * (sessions >= 4)
        raise ConfigError(
            f"tournament.validation_folds: {sessions} sessions are too few for {folds} folds of"
            f" two; {lower}lengthen data.windows"
        )
    edges = np.append(starts, whole.num_bars)
    least = 1 + (env.episode_bars or 1)
    blocks = []
    for part in np.array_split(np.arange(sessions), folds):
        start = int(part[0])
        stop = int(part[-1]) + 1
        around = (0, start - embargo), (stop + embargo, sessions)
        bars = [(int(edges[a]), int(edges[b])) for a, b in around if a < b]
        pieces = tuple(whole.window(a, b) for a, b in bars if b - a >= least)
        if not pieces:
            raise ConfigError(
                f"tournament.validation_folds: outside a fold of {len(part)} sessions and its"
                f" embargo no {least} bars in a row are left to train on (env.episode_bars and the"
                " bar before); raise the number of folds, shorten the episode, or lengthen"
                " data.windows"
            )
        share_accounts(env, [piece.num_bars for piece in pieces])
        blocks.append(ValidationFold(pieces, whole.window(int(edges[start]), int(edges[stop]))))
    return blocks


@lru_cache(maxsize=1)
def _load_blocks(path: Path, folds: int, env: str) -> tuple[list[ValidationFold], MarketTensors]:
    """Load the blocks and the joined windows, cached for all pods of one process, so that each
    benchmark is traded once."""
    market = MarketTensors.load(path)
    return make_blocks(market, folds, EnvSettings.model_validate_json(env)), join_windows(market)


class FoldLearners:
    """The K + 1 learners of a pod, trained one after another, each in a folder below the pod's.

    One agent at a time is in memory. After a kill, each continues from its checkpoint.
    """

    def __init__(
        self,
        spec: PodSpec,
        context: PodContext,
        device: torch.device,
        *,
        parent: State | None = None,
    ) -> None:
        self.spec = spec
        self.folder = context.folder
        self.device = device
        self.parent = parent
        self.env = read_env_settings(spec)
        self.blocks, whole = _load_blocks(context.market, spec.folds, self.env.model_dump_json())
        self.training = [*(block.pieces for block in self.blocks), (whole,)]
        self.names = [*(f"fold-{number}" for number in range(len(self.blocks))), WHOLE]
        self.policies: list[ActorPolicy] = []
        self.current: tuple[int, ActorPolicy]
        """Number and policy of the learner in training."""
        self.progress: dict[int, TrainProgress] = {}
        """Of each learner by its number."""

    def advance(self, budget: Budget, share: float, report: Report) -> TrainResult:
        """Train until each learner has used up `share` of its part of the `budget`."""
        count = len(self.names)
        part = split_budget(budget, count, rounds=1, devices=1)
        totals: list[TrainResult] = []
        policies = []
        for number in range(count):
            learner = self._make_learner(number)
            self.current = number, learner.policy

            def on_progress(progress: TrainProgress, number: int = number) -> None:
                self.progress[number] = progress
                every = self.progress.values()
                fraction = sum(one.fraction for one in every) / count
                env_steps = sum(one.env_steps for one in every)
                report(replace(progress, fraction=fraction, env_steps=env_steps))

            totals.append(learner.advance(part, share, on_progress))
            policies.append(learner.policy)
        self.policies = policies
        return TrainResult(
            env_steps=sum(one.env_steps for one in totals),
            updates=sum(one.updates for one in totals),
            seconds=sum(one.seconds for one in totals),
            metrics=totals[-1].metrics,
        )

    def show(self, curve: ValidationCurve, progress: TrainProgress) -> None:
        """Offer the learner in training to the curve, on its validation block."""
        number, policy = self.current
        if number < len(self.blocks):  # the last learner has no block
            share = self.progress[number].fraction
            curve.offer((policy, self.blocks[number].held_out), share, progress.env_steps, number)

    def _make_learner(self, number: int) -> Single:
        seed = derive(self.spec.seed, "fold", number)
        pieces = self.training[number]

        def make(_: int, __: int, device: torch.device) -> tuple[Agent, Any]:
            make_env: Any = (
                partial(TradingEnv, pieces[0]) if len(pieces) == 1 else partial(JoinedEnv, pieces)
            )
            env = make_env(self.env, device=device, seed=derive(seed, "env"))
            settings = read_agent_settings(self.spec)
            return make_agent(settings, env.layout, device=device, seed=seed), env

        name = self.names[number]
        own = None if self.parent is None else select_below(name, self.parent)
        return Single(self.folder / name, self.device, make, parent=own)

    @property
    def policy(self) -> ActorPolicy:
        """Policy of the learner that trained on everything."""
        return self.policies[-1]

    def list_parts(self) -> list[tuple[ActorPolicy, MarketTensors]]:
        """Pair each block with the policy of the learner that did not train on it."""
        return [
            (policy, block.held_out)
            for policy, block in zip(self.policies[:-1], self.blocks, strict=True)
        ]

    def state(self) -> dict[str, Tensor]:
        """Return the state for a child: tensors of learner k under `fold-<k>.`, of the last under
        `whole.`."""
        found: dict[str, Tensor] = {}
        for name in self.names:
            found |= add_prefix(name, read_agent_state(self.folder / name))
        return found

    def take(self, state: Mapping[str, Tensor]) -> None:
        """Load a state, as `state` returns it, into the policies. Raises CheckpointError when it
        does not fit."""
        policies = []
        for number, name in enumerate(self.names):
            learner = self._make_learner(number)
            learner.take(select_below(name, state))
            policies.append(learner.policy)
        self.policies = policies

    def close(self) -> None:
        """Do nothing: there are no processes to end."""
