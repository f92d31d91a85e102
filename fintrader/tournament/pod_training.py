"""Standard training of a pod: make the learner, inherit, train, evaluate. Learners are in
`fusion/learners.py` and `folds.py`."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from fintrader.agents import TrainProgress, TrainResult, save_policy
from fintrader.agents.checkpoint import read_tensors, write_tensors
from fintrader.agents.policy import ActorPolicy, PolicyModule
from fintrader.market.tensors import BarSpan, Split
from fintrader.progress import Progress, Task
from fintrader.records import from_json, to_json
from fintrader.seeding import seed_everything
from fintrader.tournament.compile_kernels import compile_kernels
from fintrader.tournament.episodes import draw_seeds
from fintrader.tournament.evaluator import Evaluation, ValidationCurve, copy_to_cpu, evaluate
from fintrader.tournament.folds import FoldLearners
from fintrader.tournament.fusion.coordinator import ProcessFusion
from fintrader.tournament.fusion.learners import (
    Single,
    State,
    ThreadFusion,
    build_maker,
    read_env_settings,
    read_parent_state,
    read_snapshot,
    read_windows,
)
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.spec import PodResult, PodSpec, TrainedPod

EVALUATE = "fintrader.tournament.pod_training:evaluate_trained"
LOOKS_FORMAT = "fintrader-looks-1"
_INHERITED = re.compile(r"^((fold-\d+|whole)\.)?(modules|optimisers)\.")
"""Names of the state's tensors that a child inherits; a replay buffer, say, belongs to one
training."""


def train_and_evaluate(spec: PodSpec, context: PodContext) -> PodResult:
    """Train and evaluate a pod. After a kill, another call ends with the same networks and score.

    Raises CheckpointError when the parent's snapshot is damaged or does not fit, TrainingError on a
    NaN, RankLost when a process of a pod that spans devices fails.
    """
    compile_kernels(spec, context)
    seed_everything(spec.seed)
    with contextlib.closing(_make_learner(spec, context)) as learner:
        return _learn_and_evaluate(spec, context, learner)


def _learn_and_evaluate(spec: PodSpec, context: PodContext, learner: Learner) -> PodResult:
    split = read_windows(spec, context)
    looks = IntermediateScores(context.folder / "looks.safetensors")

    alive = partial(_EvaluationProgress, context)
    curve = ValidationCurve(context.folder, read_env_settings(spec), spec.evaluation, alive)

    def report(progress: TrainProgress) -> None:
        context.report(
            progress.fraction, progress.env_steps, f"{progress.steps_per_second:,.0f} steps/s"
        )
        if isinstance(learner, FoldLearners):
            learner.show(curve, progress)
        elif isinstance(learner, Single):
            [part] = _list_parts(learner, spec, split)
            curve.offer(part, progress.fraction, progress.env_steps)

    for share in sorted({*spec.looks, 1.0}):
        learned = learner.advance(spec.budget, share, report)
        if share == 1.0 and context.evaluate_elsewhere and not spec.looks:
            return _store_trained(spec, context, learner.state(), learned, looks.evaluations, share)
        if share not in looks.evaluations:
            parts = _list_parts(learner, spec, split)
            found = _evaluate(parts, spec, context, share, learned.env_steps)
            curve.add(found, share, learned.env_steps)
            looks.add(share, found, learner.state if spec.looks else dict, last=share == 1.0)
    context.report(share, learned.env_steps, "storing")
    chosen, state = (looks.best, looks.state) if spec.looks else (share, learner.state())
    if chosen != share:
        learner.take(state)
    trained = _store_trained(spec, context, state, learned, looks.evaluations, chosen)
    return _store_scored(spec, context, trained, looks.evaluations[chosen], learner.policy, split)


class IntermediateScores:
    """A pod's scores during training, and its state at the best score: one file, replaced as a
    whole.

    Stored scores are kept after a kill, because the resumed training is further on and would score
    differently.
    """

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError when the file is damaged."""
        self.path = path
        self.state: dict[str, Tensor] = {}
        """Networks, optimisers and normalisers at the best score."""
        self.evaluations: dict[float, Evaluation] = {}
        """Evaluations by share of the budget."""
        if path.exists():
            self.state, header = read_tensors(path, LOOKS_FORMAT)
            stored = from_json(dict[str, Evaluation], header["evaluations"])
            self.evaluations = {float(share): found for share, found in stored.items()}

    @property
    def best(self) -> float:
        """Share of the budget with the best score, the first of equals."""
        ranked = {
            share: -math.inf if one.score is None else one.score
            for share, one in self.evaluations.items()
        }
        return max(sorted(ranked), key=ranked.__getitem__)

    def add(
        self, share: float, found: Evaluation, state: Callable[[], State], *, last: bool
    ) -> None:
        """Add an evaluation, with the learner's state if it is the best. Stored unless it is the
        `last`."""
        self.evaluations[share] = found
        if self.best == share:
            self.state = {
                name: tensor for name, tensor in state().items() if _INHERITED.search(name)
            }
        if not last:
            known = {str(at): to_json(one) for at, one in self.evaluations.items()}
            write_tensors(self.path, self.state, {"format": LOOKS_FORMAT, "evaluations": known})


def _store_trained(
    spec: PodSpec,
    context: PodContext,
    state: State,
    learned: TrainResult,
    evaluations: Mapping[float, Evaluation],
    chosen: float,
) -> TrainedPod:
    """Store the snapshot that a child inherits, and return the trained pod."""
    snapshot = save({name: tensor.cpu().contiguous() for name, tensor in sorted(state.items())})
    return TrainedPod(
        pod=spec.pod,
        status="done",
        evaluate=EVALUATE,
        snapshot=context.open_store().put(snapshot),
        rung_scores={
            str(share): one.score for share, one in sorted(evaluations.items()) if share < 1.0
        },
        looks=len(evaluations) if spec.looks else 1,
        chosen_at=chosen,
        env_steps=learned.env_steps,
        updates=learned.updates,
        seconds=learned.seconds,
    )


def evaluate_trained(spec: PodSpec, context: PodContext, trained: TrainedPod) -> PodResult:
    """Complete a pod of `train_and_evaluate` in an evaluator, from the snapshot alone and on the
    CPU.

    Score and stored policy equal those of an evaluation in the pod itself.
    """
    split = read_windows(spec, context)
    alone = replace(spec, replicas=1, snapshot=None)
    learner = _make_learner(alone, replace(context, device="cpu"))
    learner.take(read_snapshot(context, str(trained.snapshot)))
    final = _evaluate(_list_parts(learner, spec, split), spec, context, 1.0, trained.env_steps)
    return _store_scored(spec, context, trained, final, learner.policy, split)


def _list_parts(
    learner: Learner, spec: PodSpec, split: Split | None
) -> Sequence[tuple[ActorPolicy, Any]]:
    """Pair policies with the sessions or the seeds of episodes that score them."""
    if isinstance(learner, FoldLearners):
        return learner.list_parts()
    held_out = draw_seeds(spec.data_hash)[0] if split is None else split.validation
    return [(learner.policy, held_out)]


def _evaluate(
    parts: Sequence[tuple[ActorPolicy, Any]],
    spec: PodSpec,
    context: PodContext,
    share: float,
    env_steps: int,
) -> Evaluation:
    """Score the current policies, with a sign of life every second or so."""
    return evaluate(
        [(copy_to_cpu(policy), window) for policy, window in parts],
        read_env_settings(spec),
        spec.evaluation,
        progress=_EvaluationProgress(context, share, env_steps),
    )


def _store_scored(
    spec: PodSpec,
    context: PodContext,
    trained: TrainedPod,
    final: Evaluation,
    policy: PolicyModule,
    split: Split | None,
) -> PodResult:
    """Store the policy, and return the result with its score."""
    meta = {"pod": spec.pod, "seed": spec.seed, "score": final.score, **to_json(spec.evaluation)}
    market = None
    if split is not None:
        # A later search must not test on bars that chose its parents.
        seen_until = int(split.validation.minutes[-1])
        market = split.train
        bars = BarSpan(market.symbols, market.span.first, seen_until)
        meta |= {"seen_until": seen_until, "seen": [bars.to_json()]}
    # An evaluator, which trained nothing, stores the same bytes as the pod would.
    save_policy(policy, context.folder / "policy.safetensors", meta, market=market)
    return trained.add_evaluation(**vars(final))


Learner = Single | ThreadFusion | FoldLearners
"""One agent, several that are fused, or one for each fold."""


def _make_learner(spec: PodSpec, context: PodContext) -> Learner:
    """Make the pod's learner, with its parent's networks and optimiser."""
    by_process = "/" in context.device
    devices = [torch.device(name) for name in context.device.split("/" if by_process else "+")]
    parent = read_parent_state(spec, context)
    if spec.folds:
        return FoldLearners(spec, context, devices[0], parent=parent)
    make = build_maker(spec, context)
    if spec.replicas > 1 and by_process:
        return ProcessFusion(spec, context, devices, make, parent=parent)
    if spec.replicas > 1:
        return ThreadFusion(
            context.folder,
            devices,
            make,
            replicas=spec.replicas,
            rounds=spec.fusions,
            parent=parent,
        )
    return Single(context.folder, devices[0], make, parent=parent)


class _EvaluationProgress(Progress):
    """Signs of life during a long evaluation, so that the pod does not count as hung."""

    def __init__(self, context: PodContext, share: float, env_steps: int) -> None:
        self._context = context
        self._share = share
        self._env_steps = env_steps
        self._last = time.monotonic()

    def changed(self, task: Task) -> None:
        if time.monotonic() - self._last >= 1.0:
            self._last = time.monotonic()
            self._context.report(
                self._share, self._env_steps, f"evaluating, {task.done:,.0f} {task.unit}"
            )
