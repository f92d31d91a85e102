"""What a pod does: make the learner, inherit, train, evaluate. What a learner is stands in `fusion/learners.py`."""

from __future__ import annotations

import contextlib
import copy
import time
from pathlib import Path

import torch
from safetensors.torch import save

from fintrader.agents import Budget, TrainProgress, TrainResult, save_policy
from fintrader.agents.policy import ActorPolicy
from fintrader.data.tensors import Split
from fintrader.files import read_json, write_json
from fintrader.progress import Progress, Task
from fintrader.seeding import seed_everything
from fintrader.tournament.evaluator import Evaluation, evaluate
from fintrader.tournament.fusion.coordinator import ProcessFusion
from fintrader.tournament.fusion.learners import (
    CPU,
    Single,
    ThreadFusion,
    env_settings_of,
    load_windows,
    maker,
    parent_state,
    read_snapshot,
)
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.spec import PodContext, PodResult, PodSpec, TrainedPod

EVALUATE = "fintrader.tournament.pod_training:evaluate_trained"


def train_and_evaluate(spec: PodSpec, context: PodContext) -> PodResult:
    """The default body of a pod. Killed anywhere and called again, it ends with the same networks and score.

    Raises CheckpointError when the parent's snapshot is damaged or does not fit, TrainingError on a NaN, RankLost when
    a process of a pod that spans devices came to nothing.
    """
    seed_everything(spec.seed)
    with contextlib.closing(_learner(spec, context)) as learner:
        return _learn_and_evaluate(spec, context, learner)


def _learn_and_evaluate(spec: PodSpec, context: PodContext, learner: Learner) -> PodResult:
    split = load_windows(context.market)
    evaluations: dict[float, Evaluation] = {}
    stopped = False

    def report(progress: TrainProgress) -> None:
        context.report(progress.fraction, progress.env_steps, f"{progress.steps_per_second:,.0f} steps/s")

    for share in (*spec.rungs, 1.0):
        learned = learner.advance(Budget.model_validate(spec.budget), share, report)
        if share == 1.0 and context.evaluate_elsewhere:
            return _trained(spec, context, learner, learned, evaluations)
        stored = context.folder / f"rung-{share}.json"
        known = _stored_rung(stored) if share < 1.0 else None
        if known is None:
            policy = learner.agent.policy
            if any(parameter.device != CPU for parameter in policy.parameters()):
                policy = copy.deepcopy(policy).to(CPU)
            known = _evaluate(policy, split, spec, context, share, learned.env_steps)
            if share < 1.0:
                write_json(stored, vars(known))
        evaluations[share] = known
        thresholds = [rule.score for rule in spec.stops if rule.share == share < 1.0]
        stopped = any(known.score is None or known.score < threshold for threshold in thresholds)
        if stopped:
            break
    context.report(share, learned.env_steps, "storing")
    trained = _trained(spec, context, learner, learned, evaluations)
    result = _scored(spec, context, trained, evaluations[share], learner.agent.policy, split)
    return result.model_copy(update={"status": "stopped"}) if stopped else result


def _trained(
    spec: PodSpec, context: PodContext, learner: Learner, learned: TrainResult, evaluations: dict[float, Evaluation]
) -> TrainedPod:
    """What was learned, with the snapshot that a child inherits stored."""
    snapshot = save({name: tensor.cpu().contiguous() for name, tensor in sorted(learner.state().items())})
    return TrainedPod(
        pod=spec.pod,
        status="done",
        evaluate=EVALUATE,
        snapshot=open_store(context.run, context.mirror).put(snapshot),
        rung_scores={str(rung): evaluations[rung].score for rung in spec.rungs if rung in evaluations},
        env_steps=learned.env_steps,
        updates=learned.updates,
        seconds=learned.seconds,
    )


def evaluate_trained(spec: PodSpec, context: PodContext, trained: TrainedPod) -> PodResult:
    """Complete what `train_and_evaluate` left to an evaluator, from the snapshot alone and on the CPU.

    The score and the stored policy are those that the pod itself would have come to.
    """
    split = load_windows(context.market)
    agent, _ = maker(spec, context)(0, 0, CPU)
    agent.inherit(read_snapshot(context, str(trained.snapshot)))
    final = _evaluate(agent.policy, split, spec, context, 1.0, trained.env_steps)
    return _scored(spec, context, trained, final, agent.policy, split)


def _evaluate(
    policy: ActorPolicy, split: Split, spec: PodSpec, context: PodContext, share: float, env_steps: int
) -> Evaluation:
    """Score a policy, with a sign of life every second or so."""
    alive = _EvaluationProgress(context, share, env_steps)
    return evaluate(policy, split.validation, env_settings_of(spec), progress=alive, **spec.evaluation)


def _scored(
    spec: PodSpec, context: PodContext, trained: TrainedPod, final: Evaluation, policy: ActorPolicy, split: Split
) -> PodResult:
    """The result with its score, and the policy stored."""
    seen_until = int(split.validation.minutes[-1])  # for whoever goes on from here: it was chosen by these bars
    meta = {"pod": spec.pod, "seed": spec.seed, "score": final.score, "seen_until": seen_until, **spec.evaluation}
    save_policy(context.folder / "policy.safetensors", policy, meta, market=split.train)
    return trained.scored(**vars(final))


def _stored_rung(path: Path) -> Evaluation | None:
    """What a rung came to before the pod was killed: by now it has learned on, and would score differently."""
    if not path.exists():
        return None
    stored = read_json(path)
    return Evaluation(stored["score"], tuple(stored["window_scores"]), stored["metrics"], tuple(stored["returns"]))


Learner = Single | ThreadFusion
"""One agent, or several that are fused."""


def _learner(spec: PodSpec, context: PodContext) -> Learner:
    """The pod's learner, with its parent's networks and optimiser."""
    by_process = "/" in context.device
    devices = [torch.device(name) for name in context.device.split("/" if by_process else "+")]
    parent = parent_state(spec, context)
    make = maker(spec, context)
    if spec.replicas > 1 and by_process:
        return ProcessFusion(spec, context, devices, make, parent=parent)
    if spec.replicas > 1:
        return ThreadFusion(context.folder, devices, make, replicas=spec.replicas, rounds=spec.fusions, parent=parent)
    return Single(context.folder, devices[0], make, parent=parent)


class _EvaluationProgress(Progress):
    """Signs of life: a long validation window must not look like a hung pod."""

    def __init__(self, context: PodContext, share: float, env_steps: int) -> None:
        self._context, self._share, self._env_steps = context, share, env_steps
        self._last = time.monotonic()

    def changed(self, task: Task) -> None:
        if time.monotonic() - self._last >= 1.0:
            self._last = time.monotonic()
            self._context.report(self._share, self._env_steps, f"evaluating, {task.done:,.0f} bars")
