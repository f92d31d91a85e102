"""PPO's gradient steps as one compiled call each.

A step is a hundred operations on small tensors, and starting them takes most of the time. A few
loops replace them: advantages are standardised, the networks run forward and back over a block of
bars at a time (`market_once`), and Adam moves the weights. The loops cover networks of the kind
`market_once` with relu, whose latents depend on the bar alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fintrader.agents.fast.loops import ONE, ZERO, njit_layer, njit_pass, to_arrays
from fintrader.agents.fast.market_once import (
    PackedWeights,
    WeightPlan,
    clear,
    covers,
    list_weights,
    run_trunk,
    run_trunk_back,
    transpose_inputs,
)
from fintrader.agents.fast.surrogate import add_rows
from fintrader.agents.heads import EXTRA_LATENT_SCALE

MOMENTS = ("exp_avg", "exp_avg_sq")
METRICS = ("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "grad_norm")
_EXTRA = np.float32(EXTRA_LATENT_SCALE)
_ENTROPY = 0.5 * np.log(2 * np.pi * np.e)
"""Entropy of a normal variable of deviation 1."""


class Weights(NamedTuple):
    """Vectors of all weights, Adam's moments and the gradients; the last L weights are the
    logarithms of the noise's deviation."""

    value: Any
    first: Any
    second: Any
    grad: Any


class Rows(NamedTuple):
    """A rollout of R rows at U bars, and the market's columns there."""

    private: Any
    """`[R, A + N]`"""
    bar: Any
    """`[R]` int64"""
    latent: Any
    """`[R, L]`"""
    log_prob: Any
    """`[R, L]`"""
    advantage: Any
    """`[R]`"""
    target: Any
    """`[R]`"""
    own: Any
    """`[U, N, P]`"""
    common: Any
    """`[U, G]`"""


class StepScratch(NamedTuple):
    """Further memory of a gradient step: a block's gradients, and a minibatch's rows."""

    grads: Any
    """`[2, W, B N]`: gradients of a layer's output and of its input."""
    mean_grads: Any
    """`[2, W, B]`"""
    by_bar: Any
    """`[2, B, L]`: means of the latents, or a value's coefficients."""
    by_bar_grads: Any
    """`[2, B, L]`"""
    standard: Any
    """`[R]`: standardised advantages of a minibatch."""
    place: Any
    """`[R]` int64: each row's bar among those of its block."""


class StepSettings(NamedTuple):
    """Settings of a gradient step."""

    clip_coef: Any
    vf_coef: float
    ent_coef: float
    max_norm: float
    rate: float
    beta1: float
    beta2: float
    epsilon: float
    decay: float
    trained: int
    """Count of the weights that Adam moves: all, or all but the noise."""
    squash: bool
    """True if means of latents end in tanh."""


# The rows of a bar then read its coefficients from adjacent memory.
@njit_layer
def _transpose(each: Any, by_bar: Any, bars: int, assets: int) -> None:
    """Write `each [N B]` to `by_bar [B, L]`."""
    for b in range(bars):
        for n in range(assets):
            by_bar[b, n] = each[n * bars + b]


@njit_layer
def _transpose_back(by_bar: Any, each: Any, bars: int, assets: int) -> None:
    """Write `by_bar [B, L]` to `each [N B]`."""
    for n in range(assets):
        for b in range(bars):
            each[n * bars + b] = by_bar[b, n]


# One pass over a bar's few numbers adds the latents of no asset and applies tanh to all.
@njit_layer
def _complete_means(mean: Any, bars: int, assets: int, top: Any, squash: bool) -> None:
    """Add the latents that belong to no asset to the means `[B, L]`; if `squash`, apply tanh."""
    for b in range(bars):
        for i in range(assets, mean.shape[1]):
            mean[b, i] = _EXTRA * top[i - assets, b]
        if squash:
            for i in range(mean.shape[1]):
                mean[b, i] = np.tanh(mean[b, i])


@njit_layer
def _complete_means_back(
    mean: Any, slopes: Any, bars: int, assets: int, top: Any, options: Any
) -> None:
    """Turn the gradients of means into those of their arguments, times a scale."""
    scale, squash = options
    for b in range(bars):
        for i in range(mean.shape[1]):
            slope = ONE - mean[b, i] * mean[b, i] if squash else ONE
            slopes[b, i] *= scale * slope
        for i in range(assets, mean.shape[1]):
            top[i - assets, b] = _EXTRA * slopes[b, i]


# A value and its gradients share a pass: an account's holdings are read once.
@njit_layer
def _add_values(
    rows: Any, order: Any, place: Any, top: Any, each: Any, slopes: Any, options: Any
) -> float:
    """Add the gradients of half the squared value errors, times a scale, to the coefficients'
    gradients `slopes [2, B, N]`; overwrite the constants, row 0 of `top`, with their gradients.
    Return the sum of the squared errors."""
    private, target = rows
    assets, scale = options
    first_asset = private.shape[1] - assets
    share = private.dtype.type(1.0) / assets
    top_slopes = top[1]
    squares = 0.0
    for j in range(len(order)):
        bar = place[j]
        held = private[order[j], first_asset:]
        linear = each[0, bar]
        square = each[1, bar]
        total = ZERO
        for n in range(assets):
            total += (linear[n] + square[n] * held[n]) * held[n]
        error = top[0, bar] + share * total - target[order[j]]
        squares += error * error
        error *= scale
        top_slopes[bar] += error
        error *= share
        by_linear = slopes[0, bar]
        by_square = slopes[1, bar]
        for n in range(assets):
            slope = error * held[n]
            by_linear[n] += slope
            by_square[n] += slope * held[n]
    for b in range(top.shape[1]):
        top[0, b] = top_slopes[b]
        top_slopes[b] = ZERO
    return squares


# As in torch's Adam, each number is rounded in the weights' own precision.
@njit_layer
def _move_by_adam(weights: Weights, settings: StepSettings, steps: int) -> Any:
    """Scale gradients down to `max_norm`, then take Adam's step number `steps`
    (https://arxiv.org/abs/1412.6980; decay as in https://arxiv.org/abs/1711.05101). Returns the
    norm of the gradients."""
    squares = 0.0
    for i in range(settings.trained):
        squares += weights.grad[i] * weights.grad[i]
    norm = np.sqrt(squares)
    one = weights.value.dtype.type(1.0)
    factor = one * min(settings.max_norm / (norm + 1e-6), 1.0)
    beta1 = one * settings.beta1
    beta2 = one * settings.beta2
    step = one * (settings.rate / (1 - settings.beta1**steps))
    root = one * np.sqrt(1 - settings.beta2**steps)
    epsilon = one * settings.epsilon
    shrink = one * (1 - settings.rate * settings.decay)
    for i in range(settings.trained):
        grad = factor * weights.grad[i]
        weights.first[i] += (one - beta1) * (grad - weights.first[i])
        weights.second[i] = beta2 * weights.second[i] + (one - beta2) * grad * grad
        width = np.sqrt(weights.second[i]) / root + epsilon
        weights.value[i] = shrink * weights.value[i] - step * weights.first[i] / width
    return norm


# Sums run in float64, in one order.
@njit_layer
def _standardise(advantage: Any, order: Any, standard: Any) -> None:
    """Write the advantages of the rows `order` to `standard`, as `on_policy.standardise`."""
    count = len(order)
    if count == 1:
        standard[0] = advantage[order[0]]
        return
    total = 0.0
    for j in range(count):
        total += advantage[order[j]]
    mean = total / count
    squares = 0.0
    for j in range(count):
        squares += (advantage[order[j]] - mean) ** 2
    scale = 1 / (np.sqrt(squares / (count - 1)) + 1e-8)
    for j in range(count):
        standard[j] = (advantage[order[j]] - mean) * scale


# A minibatch holds the rows of a bar one after the other, so that a block is found in one pass.
@njit_layer
def _find_block(bar: Any, order: Any, begin: int, bars: Any, place: Any) -> Any:
    """Find the rows, from number `begin` on, of the next bars, at most as many as `bars` holds;
    write these bars, and each row's place among them. Returns the end of the rows and the count
    of bars."""
    count = 0
    end = begin
    while end < len(order):
        if end == begin or bar[order[end]] != bar[order[end - 1]]:
            if count == len(bars):
                break
            bars[count] = bar[order[end]]
            count += 1
        place[end] = count - 1
        end += 1
    return end, count


# One call for a whole step: a call from Python takes about as long as one of the loops above.
@njit_pass
def take_step(
    order: Any,
    rows: Rows,
    plan: WeightPlan,
    weights: Weights,
    memory: Any,
    settings: StepSettings,
    steps: int,
    metrics: Any,
) -> None:
    """Take Adam's step number `steps` on the rows `order` of a rollout; write `METRICS` to
    `metrics`. `memory`: `Scratch` and `StepScratch`."""
    scratch, step_scratch = memory
    assets = rows.own.shape[1]
    latents = rows.latent.shape[1]
    first_noise = len(weights.value) - latents
    log_std = weights.value[first_noise:]
    noise_grad = weights.grad[first_noise:]
    mean = step_scratch.by_bar[0]
    grads = step_scratch.by_bar_grads
    total = len(order)
    scale = log_std.dtype.type(1.0) / total
    for i in range(len(weights.grad)):
        weights.grad[i] = ZERO
    _standardise(rows.advantage, order, step_scratch.standard)
    objective = 0.0
    distance = 0.0
    outside = 0
    squares = 0.0
    end = 0
    while end < total:
        begin = end
        end, bars = _find_block(rows.bar, order, begin, scratch.bars, step_scratch.place)
        inputs = (scratch.outputs[0], scratch.means[0])
        transpose_inputs(rows.own, rows.common, scratch.bars, bars, *inputs)
        chosen = order[begin:end]
        place = step_scratch.place[begin:end]
        for k in range(2):
            layers = plan.layers[k]
            heads = plan.heads[k]
            run_trunk(weights.value, layers, heads, scratch, bars, assets)
            for i in range(k + 1):
                _transpose(scratch.each[i], step_scratch.by_bar[i], bars, assets)
                clear(grads[i], bars, latents)
            if k == 0:
                _complete_means(mean, bars, assets, scratch.top, settings.squash)
                standard = step_scratch.standard[begin:end]
                samples = (mean, chosen, place, rows.latent, rows.log_prob, standard, log_std)
                sums = add_rows(samples, settings.clip_coef, grads[0], noise_grad)
                objective += sums[0]
                distance += sums[1]
                outside += sums[2]
                _complete_means_back(
                    mean, grads[0], bars, assets, scratch.top, (-scale, settings.squash)
                )
            else:
                options = (assets, scale * settings.vf_coef)
                values = (rows.private, rows.target)
                squares += _add_values(
                    values, chosen, place, scratch.top, step_scratch.by_bar, grads, options
                )
            for i in range(k + 1):
                _transpose_back(grads[i], scratch.each[i], bars, assets)
            packed = (weights.value, weights.grad)
            back = (step_scratch.grads, step_scratch.mean_grads)
            run_trunk_back(packed, layers, heads, scratch, back, bars, assets)
    entropy = 0.0
    for i in range(latents):
        entropy += log_std[i] + _ENTROPY
        noise_grad[i] = -scale * noise_grad[i] - settings.ent_coef
    metrics[0] = -objective / total
    metrics[1] = 0.5 * squares / total
    metrics[2] = entropy
    metrics[3] = distance / total
    metrics[4] = outside / (total * latents)
    metrics[5] = _move_by_adam(weights, settings, steps)


class _Descent(PackedWeights):
    """The weights of one agent, and the memory of its steps."""

    def __init__(self, networks: list[Any], agent: Any, rows: Rows) -> None:
        super().__init__(networks, rows.own.shape[1], 4, agent.log_std)
        self.weights = Weights(*(vector[: self.length].numpy() for vector in self.vectors))
        wide, columns = self.scratch.outputs.shape[1:]
        bars = len(self.scratch.bars)
        self.rows, latents = rows.latent.shape
        shapes = {
            "grads": (2, wide, columns),
            "mean_grads": (2, wide, bars),
            "by_bar": (2, bars, latents),
            "by_bar_grads": (2, bars, latents),
            "standard": self.rows,
        }
        arrays = {name: np.zeros(shape, rows.latent.dtype) for name, shape in shapes.items()}
        self.memory = (self.scratch, StepScratch(**arrays, place=np.zeros(self.rows, np.int64)))


_DESCENTS: WeakKeyDictionary[nn.Module, _Descent] = WeakKeyDictionary()
"""Keyed by the agent's actor."""


def take_passes(latent: Tensor, agent: Any, rollout: Any, passes: Iterable[list[Tensor]]) -> Any:
    """Compute `on_policy.take_passes` for PPO with the networks that `_covers` accepts."""
    batch = rollout.batch
    if not _covers(agent, batch.rows):
        return NotImplemented
    actor = agent.actor
    critic = agent.critic
    networks = [
        (actor.trunk, actor.head, actor.extra_head),
        (critic.trunk, critic.head, critic.top),
    ]
    parameters = [*list_weights(networks), agent.log_std]
    adam = agent.optimisers["adam"].state
    states = [_ensure_state(adam[one], one) for one in parameters if one.requires_grad]
    before, *different = set(torch.stack([state["step"] for state in states]).tolist())
    is_trained = all(one.requires_grad for one in parameters[:-1])
    if not is_trained or different:
        return NotImplemented  # such as noise that is fixed at first and learned later
    index = batch.row_index
    if index is None:
        index = torch.arange(len(latent))
    columns = (latent, rollout.log_prob, rollout.advantage, rollout.target)
    inputs = actor.trunk.assets(batch.rows)
    rows = Rows(*to_arrays(batch.private, index, *columns, *inputs))
    descent = _DESCENTS.get(actor)
    if descent is None or descent.rows != len(latent):
        descent = _DESCENTS[actor] = _Descent(networks, agent, rows)
    (group,) = agent.optimisers["adam"].param_groups
    settings = StepSettings(
        clip_coef=rows.latent.dtype.type(agent.settings.clip_coef),
        vf_coef=agent.settings.vf_coef,
        ent_coef=agent.settings.ent_coef,
        max_norm=agent.settings.max_grad_norm,
        rate=group["lr"],
        beta1=group["betas"][0],
        beta2=group["betas"][1],
        epsilon=group["eps"],
        decay=group["weight_decay"],
        trained=descent.length - (0 if agent.log_std.requires_grad else len(agent.log_std)),
        squash=agent.policy.squash,
    )
    context = (rows, descent.plan, descent.weights, descent.memory, settings)
    moments = [state[name] for name in MOMENTS for state in states]
    tensors = [one.detach() for one in parameters] + moments
    values, *both = descent.views[:3]
    views = values + [view for own in both for view in own[: len(states)]]
    torch._foreach_copy_(views, tensors)
    metrics: list[NDArray[np.float64]] = []
    for minibatches in passes:
        for chosen in minibatches:
            metrics.append(np.empty(len(METRICS)))
            take_step(chosen.numpy(), *context, int(before) + len(metrics), metrics[-1])
        if agent.has_moved_enough(dict(zip(METRICS, metrics[-1], strict=True))):
            break
    torch._foreach_copy_(tensors, views)
    torch._foreach_add_([state["step"] for state in states], len(metrics))
    means = torch.from_numpy(np.mean(metrics, axis=0))
    return dict(zip(METRICS, means.unbind(), strict=True))


def _ensure_state(state: dict[str, Tensor], weight: Tensor) -> dict[str, Tensor]:
    """Return Adam's state of a weight, created at the first step."""
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state.update({name: torch.zeros_like(weight.detach()) for name in MOMENTS})
    return state


def _covers(agent: Any, rows: Tensor) -> bool:
    return (
        "has_compiled_steps" in vars(type(agent))
        and "loss" not in vars(agent)
        and agent.policy.network.kind == "market_once"
        and agent.actor.shares_bars
        and not agent.critic.account
        and covers(agent.actor.trunk, rows, agent.actor.head, agent.actor.extra_head)
    )
