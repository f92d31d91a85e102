"""What a pod does: build the environment, make the agent, inherit, train, evaluate."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fintrader.agents import (
    Agent,
    AgentSettings,
    Budget,
    TrainProgress,
    TrainResult,
    make_agent,
    read_agent_state,
    save_policy,
    train,
)
from fintrader.agents.policy import ActorPolicy
from fintrader.config import validate
from fintrader.data.tensors import MarketTensors, Split
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import CheckpointError, TournamentError
from fintrader.files import read_json, write_json
from fintrader.progress import Progress, Task
from fintrader.seeding import derive, seed_everything
from fintrader.tournament.evaluator import Evaluation, evaluate, settings_of
from fintrader.tournament.fusion.threads import Fused, Make
from fintrader.tournament.spec import PodContext, PodOutput, PodSpec
from fintrader.tournament.store import RunStore

CPU = torch.device("cpu")


EVALUATE = "fintrader.tournament.pod_training:evaluate_trained"


def train_and_evaluate(spec: PodSpec, context: PodContext) -> PodOutput:
    """The default body of a pod. Killed anywhere and called again, it ends with the same networks and score.

    Raises CheckpointError when the parent's snapshot is damaged or does not fit, TrainingError on a NaN, RankLost when
    a process of a pod that spans devices came to nothing.
    """
    seed_everything(spec.seed)
    learner = _learner(spec, context)
    try:
        return _learn_and_evaluate(spec, context, learner)
    finally:
        learner.close()


def _learn_and_evaluate(spec: PodSpec, context: PodContext, learner: Learner) -> PodOutput:
    split = _market(context.market)
    env_settings = _env_settings(spec)
    evaluations: dict[float, Evaluation] = {}
    stopped = False
    for share in (*spec.rungs, 1.0):
        result = learner.advance(Budget.model_validate(spec.budget), share, _reporter(context))
        if share == 1.0 and context.apart:
            return PodOutput(
                score=None,
                snapshot=_snapshot(learner),
                rung_scores=_rung_scores(spec, evaluations),
                env_steps=result.env_steps,
                updates=result.updates,
                seconds=result.seconds,
                rest=EVALUATE,
            )
        known = _stored_rung(context.folder, share)
        if known is None:
            policy = learner.agent.policy
            if policy_device(policy) != CPU:
                policy = copy.deepcopy(policy).to(CPU)
            alive = _Alive(context, share, result.env_steps)
            known = evaluate(policy, split.validation, env_settings, progress=alive, **settings_of(spec.evaluation))
            if share < 1.0:
                write_json(_rung_file(context.folder, share), vars(known))
        evaluations[share] = known
        stopped = share < 1.0 and any(
            _hopeless(rule.score, evaluations[share].score) for rule in spec.stops if rule.share == share
        )
        if stopped:
            break
    context.report(share, result.env_steps, "storing")
    output = PodOutput(
        score=None,
        snapshot=_snapshot(learner),
        status="stopped" if stopped else "done",
        rung_scores=_rung_scores(spec, evaluations),
        env_steps=result.env_steps,
        updates=result.updates,
        seconds=result.seconds,
    )
    return _judged(spec, context, output, evaluations[share], learner.agent.policy, split)


def evaluate_trained(spec: PodSpec, context: PodContext, output: PodOutput) -> PodOutput:
    """Complete what `train_and_evaluate` left behind (`PodContext.apart`), from the snapshot alone and on the CPU.

    The score and the stored policy are those that the pod itself would have come to.
    """
    split = _market(context.market)
    env_settings = validate(EnvSettings, spec.env, f"{spec.pod}: env")
    env = TradingEnv(split.train, env_settings, device=CPU, seed=derive(spec.seed, "env"))
    agent = make_agent(agent_settings(spec), env.layout, device=CPU, seed=spec.seed)
    agent.inherit(load(output.snapshot))
    alive = _Alive(context, 1.0, output.env_steps)
    final = evaluate(agent.policy, split.validation, env_settings, progress=alive, **settings_of(spec.evaluation))
    return _judged(spec, context, output, final, agent.policy, split)


def _judged(
    spec: PodSpec, context: PodContext, output: PodOutput, final: Evaluation, policy: ActorPolicy, split: Split
) -> PodOutput:
    """`output` with its score, and the policy stored."""
    meta = {"pod": spec.pod, "seed": spec.seed, "score": final.score, **spec.evaluation}
    save_policy(context.folder / "policy.safetensors", policy, meta, market=split.train)
    return replace(
        output,
        score=final.score,
        window_scores=final.window_scores,
        metrics=final.metrics,
        returns=final.returns,
    )


def _snapshot(learner: Learner) -> bytes:
    """What a child inherits."""
    return save({name: tensor.cpu().contiguous() for name, tensor in sorted(learner.state().items())})


def _rung_file(folder: Path, share: float) -> Path:
    return folder / f"rung-{share}.json"


def _stored_rung(folder: Path, share: float) -> Evaluation | None:
    """What a rung came to before the pod was killed: by now it has learned on, and would score differently."""
    path = _rung_file(folder, share)
    if share == 1.0 or not path.exists():
        return None
    stored = read_json(path)
    return Evaluation(stored["score"], tuple(stored["window_scores"]), stored["metrics"], tuple(stored["returns"]))


def _rung_scores(spec: PodSpec, evaluations: dict[float, Evaluation]) -> dict[str, float | None]:
    return {str(rung): evaluations[rung].score for rung in spec.rungs if rung in evaluations}


def agent_settings(spec: PodSpec) -> Any:
    """The agent's settings in the type of its algorithm. Raises TournamentError for a spec of another version."""
    try:
        return TypeAdapter(AgentSettings).validate_python(spec.agent)
    except ValidationError as error:
        raise TournamentError(f"{spec.pod}: its agent's settings are of another version ({error})") from None


def read_snapshot(context: PodContext, digest: str) -> dict[str, Tensor]:
    """A parent's state, verified against its name. Raises CheckpointError."""
    try:
        return load(RunStore(context.run).get(digest))
    except SafetensorError as error:
        raise CheckpointError(f"snapshot {digest[:12]} holds no tensors ({error})") from None


def policy_device(policy: torch.nn.Module) -> torch.device:
    """Where a policy's parameters lie."""
    return next((parameter.device for parameter in policy.parameters()), CPU)


def part_of(budget: Budget, share: float) -> Budget:
    """The first `share` of a budget."""
    if budget.env_steps is not None:
        return Budget(env_steps=max(1, round(budget.env_steps * share)))
    return Budget(seconds=float(budget.seconds or 0.0) * share)


class Learner(Protocol):
    """One agent, or several that are fused."""

    agent: Agent

    def advance(self, budget: Budget, share: float, report: Callable[[TrainProgress], None]) -> TrainResult:
        """Learn until `share` of `budget` is used up."""

    def state(self) -> dict[str, Tensor]:
        """What a child inherits."""

    def close(self) -> None:
        """Stop the processes that belong to it, if any."""


class Single:
    """One agent on one device."""

    def __init__(self, agent: Agent, env: TradingEnv, folder: Path) -> None:
        self.agent, self.env, self.folder = agent, env, folder

    def advance(self, budget: Budget, share: float, report: Callable[[TrainProgress], None]) -> TrainResult:
        def told(progress: TrainProgress) -> None:
            report(TrainProgress(**{**vars(progress), "fraction": progress.fraction * share}))

        return train(self.agent, self.env, part_of(budget, share), folder=self.folder, on_progress=told)

    def state(self) -> dict[str, Tensor]:
        return read_agent_state(self.folder)

    def close(self) -> None:
        """It has no processes."""


def _env_settings(spec: PodSpec) -> EnvSettings:
    return validate(EnvSettings, spec.env, f"{spec.pod}: env")


def maker(spec: PodSpec, context: PodContext) -> Make:
    """What makes the pod's agents and environments: (replica, round, device) -> both, seeded by replica and round."""
    settings, env_settings = agent_settings(spec), _env_settings(spec)
    split = _market(context.market)

    def make(replica: int, number: int, device: torch.device) -> tuple[Agent, TradingEnv]:
        seed = derive(spec.seed, "replica", replica, number) if spec.replicas > 1 else spec.seed
        market = split.train if device == CPU else split.train.to(device)
        env = TradingEnv(market, env_settings, device=device, seed=derive(seed, "env"))
        return make_agent(settings, env.layout, device=device, seed=seed), env

    return make


def parent_state(spec: PodSpec, context: PodContext) -> dict[str, Tensor] | None:
    """What the pod begins from. Raises CheckpointError."""
    return None if spec.snapshot is None else read_snapshot(context, spec.snapshot)


def _learner(spec: PodSpec, context: PodContext) -> Learner:
    """The pod's learner, with its parent's networks and optimiser."""
    apart = "/" in context.device
    devices = [torch.device(name) for name in context.device.split("/" if apart else "+")]
    parent = parent_state(spec, context)
    make = maker(spec, context)
    if spec.replicas > 1 and apart:
        from fintrader.tournament.fusion.coordinator import Ranked

        return Ranked(spec, context, devices, make, parent=parent)
    if spec.replicas > 1:
        return Fused(context.folder, devices, make, replicas=spec.replicas, rounds=spec.fusions, parent=parent)
    agent, env = make(0, 0, devices[0])
    if parent is not None:
        agent.inherit(parent)
    return Single(agent, env, context.folder)


def _hopeless(threshold: float, reached: float | None) -> bool:
    return reached is None or reached < threshold


def _reporter(context: PodContext) -> Callable[[TrainProgress], None]:
    def on_progress(progress: TrainProgress) -> None:
        rate = f"{progress.steps_per_second:,.0f} steps/s"
        context.report(progress.fraction, progress.env_steps, rate)

    return on_progress


class _Alive(Progress):
    """A sign of life every second or so: a long validation window must not look like a hung pod."""

    def __init__(self, context: PodContext, share: float, env_steps: int) -> None:
        self._context, self._share, self._env_steps = context, share, env_steps
        self._last = time.monotonic()

    def changed(self, task: Task) -> None:
        if time.monotonic() - self._last >= 1.0:
            self._last = time.monotonic()
            self._context.report(self._share, self._env_steps, f"evaluating, {task.done:,.0f} bars")


@lru_cache(maxsize=1)
def _market(path: Path) -> Split:
    """The windows, kept between the pods of one process."""
    return MarketTensors.load(path).split()
