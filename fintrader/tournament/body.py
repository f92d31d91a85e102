"""What a pod does: build the environment, make the agent, inherit, train, evaluate."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fintrader.agents import AgentSettings, Budget, TrainProgress, make_agent, read_agent_state, save_policy, train
from fintrader.config import validate
from fintrader.data.tensors import MarketTensors, Split
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.errors import CheckpointError, TournamentError
from fintrader.seeding import derive, seed_everything
from fintrader.tournament.evaluator import Evaluation, evaluate, settings_of
from fintrader.tournament.pod import PodContext, PodOutput, PodSpec
from fintrader.tournament.store import RunStore

CPU = torch.device("cpu")


def train_and_evaluate(spec: PodSpec, context: PodContext) -> PodOutput:
    """The default body of a pod. Killed anywhere and called again, it ends with the same networks and score.

    Raises CheckpointError when the parent's snapshot is damaged or does not fit, TrainingError on a NaN.
    """
    seed_everything(spec.seed)
    split = _market(context.market)
    env_settings = validate(EnvSettings, spec.env, f"{spec.pod}: env")
    device = torch.device(context.device)
    train_market = split.train if device == CPU else split.train.to(device)
    env = TradingEnv(train_market, env_settings, device=device, seed=derive(spec.seed, "env"))
    agent = make_agent(agent_settings(spec), env.layout, device=device, seed=spec.seed)
    if spec.snapshot is not None:
        agent.inherit(read_snapshot(context, spec.snapshot))
    evaluations: dict[float, Evaluation] = {}

    def assess() -> Evaluation:
        policy = agent.policy.to(CPU) if device != CPU else agent.policy
        try:
            return evaluate(policy, split.validation, env_settings, **settings_of(spec.evaluation))
        finally:
            agent.policy.to(device)

    stopped, seconds = False, 0.0
    for share in (*spec.rungs, 1.0):
        budget = part_of(spec.budget, share)
        result = train(agent, env, budget, folder=context.folder, on_progress=_reporter(context, share))
        seconds = result.seconds
        evaluations[share] = assess()
        if any(_hopeless(rule.score, evaluations[share].score) for rule in spec.stops if rule.share == share):
            stopped = share < 1.0
        if stopped:
            break
    final = evaluations[share]
    context.report(share, result.env_steps, "storing")
    meta = {"pod": spec.pod, "seed": spec.seed, "score": final.score, **spec.evaluation}
    save_policy(context.folder / "policy.safetensors", agent.policy, meta, market=split.train)
    state = {name: tensor.cpu().contiguous() for name, tensor in sorted(read_agent_state(context.folder).items())}
    return PodOutput(
        score=final.score,
        snapshot=save(state),
        status="stopped" if stopped else "done",
        window_scores=final.window_scores,
        rung_scores={str(rung): evaluations[rung].score for rung in spec.rungs if rung in evaluations},
        metrics=final.metrics,
        returns=final.returns,
        env_steps=result.env_steps,
        updates=result.updates,
        seconds=seconds,
    )


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


def part_of(budget: dict[str, Any], share: float) -> Budget:
    """The first `share` of a budget."""
    steps, seconds = budget.get("env_steps"), budget.get("seconds")
    if steps is not None:
        return Budget(env_steps=max(1, round(steps * share)))
    return Budget(seconds=float(seconds or 0.0) * share)


def _hopeless(threshold: float, reached: float | None) -> bool:
    return reached is None or reached < threshold


def _reporter(context: PodContext, share: float) -> Any:
    def on_progress(progress: TrainProgress) -> None:
        rate = f"{progress.steps_per_second:,.0f} steps/s"
        context.report(progress.fraction * share, progress.env_steps, rate)

    return on_progress


@lru_cache(maxsize=1)
def _market(path: Path) -> Split:
    """The windows, kept between the pods of one process."""
    return MarketTensors.load(path).split()
