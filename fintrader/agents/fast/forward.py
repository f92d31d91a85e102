"""The compiled forward pass: K networks decide the action of an account, or trade a stretch of a
backtest, in a single call.

It computes the action of a `policy.EnsemblePolicy` in float32, with sums in another order. Assets
lie along the last axis, padded to multiples of sixteen, so that every inner loop runs over whole
vectors. Weights are padded to multiples of four, so that registers hold four inputs for four
outputs at a time.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from fintrader.agents.fast.loops import HALF, ONE, ZERO, njit_layer
from fintrader.agents.rebalancing import FOLLOWING_SHARE, RATE_PER_LATENT
from fintrader.envs.fast.buffers import BAR, END
from fintrader.envs.fast.compiled import njit_entry
from fintrader.envs.fast.simd import map_columns
from fintrader.envs.fast.single_account import decide_and_wait


class Head(IntEnum):
    """Kinds of `heads.ActionHead`; each member is the kind's name in capitals."""

    DIRECT = 0
    AIM = 1
    TILT = 2
    WEIGHTS = 3


class Activation(IntEnum):
    """Non-linearities; each member is the name in `NetworkSettings` in capitals."""

    RELU = 0
    TANH = 1
    SILU = 2
    ELU = 3


class Plan(IntEnum):
    """Columns of `Networks.plan`. Those from `HEAD` to `STATISTICS` are positions in
    `Networks.weights`, at which the respective numbers begin."""

    IS_MLP = 0
    """1 for `mlp`; 0 for `market_once` and `per_asset`, which have an `AssetTrunk`."""
    ACTIVATION = 1
    NORM = 2
    ACCOUNT = 3
    """1 if the first layer reads the account's columns."""
    SLOPE = 4
    """1 if latents are linear in the holdings."""
    LINEAR = 5
    """Number of the account's columns that latents depend on linearly."""
    SQUASH = 6
    DECODER = 7
    """A `Head`."""
    LATENTS = 8
    """L: latents of the assets, then the head's extra ones."""
    HAS_CASH = 9
    DEPTH = 10
    HEAD = 11
    HEAD_BIAS = 12
    EXTRA = 13
    EXTRA_BIAS = 14
    STATISTICS = 15
    SHARED = 16
    """1 if latents do not depend on the account."""


class Layer(IntEnum):
    """Columns of `Networks.layers`: positions at which the weights of a layer begin, and their
    sizes."""

    OWN = 0
    OWN_IN = 1
    OWN_OUT = 2
    COMMON = 3
    COMMON_IN = 4
    BIAS = 5
    WIDTH = 6


class Number(IntEnum):
    """Columns of `Networks.numbers`."""

    SCALE = 0
    CASH_LOGIT = 1
    MAX_LOG_TILT = 2
    TILT_SCALE = 3
    MAX_ACTIVE_TILT = 4
    RATE_LOGIT = 5
    LONG_ONLY = 6
    """1 where weights are never negative."""


class Networks(NamedTuple):
    """K networks, laid out side by side (see `members`)."""

    plan: Any
    """`[K, len(Plan)]` int64"""
    layers: Any
    """`[K, depth, len(Layer)]` int64"""
    numbers: Any
    """`[K, len(Number)]` float32"""
    weights: Any
    """`[W]` float32: all weights and statistics."""
    shares: Any
    """`[K]` float32: the networks' weights in the joint action; empty for their median."""


_CLIP = np.float32(10.0)
"""`normalisation.CLIP`."""
_RATE = np.float32(RATE_PER_LATENT)
_FOLLOWING = np.float32(FOLLOWING_SHARE)
_LEAST = np.float32(1e-12)
"""Least divisor for a sum of weights."""


@njit_layer
def _map_vector(x: Any, layer: Any, part: int, weights: Any, out: Any) -> None:
    """Write bias + `x [I] weights [I, O]` to `out [O]`; `part` is the layer's `OWN` or `COMMON`."""
    start = layer[part]
    wide_out = layer[Layer.OWN_OUT]
    for o in range(wide_out):
        out[o] = weights[layer[Layer.BIAS] + o]
    for j in range(layer[part + 1]):
        row = weights[start + j * wide_out : start + (j + 1) * wide_out]
        for o in range(wide_out):
            out[o] += x[j] * row[o]


_TOP = tuple(
    map(
        np.float32,
        (
            *(-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11),
            *(5.12229709037114e-08, 1.48572235717979e-05, 6.37261928935436e-04),
            4.89352455891786e-03,
        ),
    )
)
_LOW = tuple(
    map(
        np.float32,
        (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
    )
)


# The C library's tanh cannot be vectorised, but a ratio of two polynomials can; it is that of Eigen
# and XLA.
@njit_layer
def _tanh(x: Any) -> Any:
    """Approximate tanh within 4 units in the last place of float32."""
    bound = np.float32(7.90531110763549805)
    x = -bound if x < -bound else (bound if x > bound else x)
    y = x * x
    top = ZERO
    for factor in _TOP:
        top = top * y + factor
    low = ZERO
    for factor in _LOW:
        low = low * y + factor
    return x * top / low


# SiLU and ELU are written in terms of the vectorisable tanh.
@njit_layer
def _apply_activation(rows: Any, kind: int) -> None:
    """Apply a non-linearity to `[O, N]` in place."""
    flat = rows.reshape(-1)
    if kind == Activation.RELU:
        for i in range(flat.size):
            flat[i] = ZERO if flat[i] < ZERO else flat[i]
    else:
        for i in range(flat.size):
            x = flat[i]
            half = _tanh(x if kind == Activation.TANH else HALF * x)
            if kind == Activation.TANH:
                flat[i] = half
            elif kind == Activation.SILU:  # x σ(x) with σ(x) = (1 + tanh(x / 2)) / 2
                flat[i] = x * HALF * (ONE + half)
            else:  # exp(x) - 1 = 2 t / (1 - t) with t = tanh(x / 2)
                flat[i] = (half + half) / (ONE - half) if x < ZERO else x


@njit_layer
def _sum(values: Any) -> Any:
    """Sum numbers in any order."""
    total = ZERO
    for n in range(values.size):
        total += values[n]
    return total


# Two passes, mean and then variance, since a single pass would lose most digits of float32.
@njit_layer
def _normalise(rows: Any, width: int) -> None:
    """Normalise the first `width` rows of `[O, N]` in place, asset by asset, without an affine
    map."""
    share = ONE / np.float32(width)
    for n in range(rows.shape[1]):
        mean = ZERO
        variance = ZERO
        for o in range(width):
            mean += rows[o, n] * share
        for o in range(width):
            rows[o, n] -= mean
            variance += rows[o, n] * rows[o, n] * share
        for o in range(width):
            rows[o, n] /= np.sqrt(variance + np.float32(1e-5))


@njit_layer
def _scale_and_clip(value: Any, shift: Any, scale: Any) -> Any:
    x = (value - shift) * scale
    return -_CLIP if x < -_CLIP else (_CLIP if x > _CLIP else x)


# The observation is written to one flat array, since an mlp reads a single array.
@njit_layer
def _standardise(weights: Any, shift: int, private: Any, row: Any, obs: Any) -> None:
    """Write the flat observation `[D]`, standardised, to `obs`. `weights` has each column's shift,
    then each column's scale."""
    scale = shift + obs.size
    for i in range(private.size):
        obs[i] = _scale_and_clip(private[i], weights[shift + i], weights[scale + i])
    for i in range(row.size):
        at = private.size + i
        obs[at] = _scale_and_clip(row[i], weights[shift + at], weights[scale + at])


# Transposed once for all networks: inner loops run over the assets, but in a row the values of one
# feature are not adjacent.
@njit_layer
def _transpose(row: Any, sizes: Any, table: Any) -> None:
    """Write the assets' features and flags to `table [P, N]`, below its first row, the weights
    held."""
    _, count, features, flags, context = sizes[:5]
    start = row.size - context - count * (features + flags)
    for f in range(features):
        for n in range(count):
            table[1 + f, n] = row[start + n * features + f]
    start += count * features
    for f in range(flags):
        for n in range(count):
            table[1 + features + f, n] = row[start + f * count + n]


# Two buffers swap roles from layer to layer, so that no memory is allocated.
@njit_layer
def _run_assets(
    k: int,
    networks: Networks,
    private: Any,
    context: Any,
    encoded: Any,
    count: int,
    buffers: Any,
    latent: Any,
) -> None:
    """Run a `networks.MarketOnceActor` or a `per_asset.PerAssetActor`; write `latent [L]`."""
    plan, layers, _, weights, _ = networks
    one, two, base, shared, table, common = buffers
    account = private.size - count
    columns = table.shape[0]
    shift = plan[k, Plan.STATISTICS]
    _standardise(weights, shift, private[:account], context, common)
    first = account * (1 - plan[k, Plan.ACCOUNT])
    shared[0] = ZERO  # a network without common inputs has one that is always zero
    for i in range(first, common.size):
        shared[i - first] = common[i]
    shift += 2 * common.size
    for i in range(columns):
        a = weights[shift + i]
        b = weights[shift + columns + i]
        for n in range(table.shape[1]):
            one[i, n] = _scale_and_clip(table[i, n], a, b)
    one[columns : layers[k, 0, Layer.OWN_IN]] = ZERO
    for i in range(encoded.shape[1]):
        for n in range(count):
            one[columns + i, n] = encoded[k, i, n]
    x = one
    y = two
    for depth in range(plan[k, Plan.DEPTH]):
        wide = layers[k, depth, Layer.OWN_OUT]
        _map_vector(shared, layers[k, depth], Layer.COMMON, weights, base)
        own = layers[k, depth]
        map_columns(x, weights, own[Layer.OWN], own[Layer.OWN_IN], base, y[:wide])
        if plan[k, Plan.NORM]:
            _normalise(y, layers[k, depth, Layer.WIDTH])
        _apply_activation(y[:wide], plan[k, Plan.ACTIVATION])
        for o in range(wide):
            shared[o] = _sum(y[o, :count]) / np.float32(count)
        x, y = y, x

    # Latents are linear in the account: each output of the head is the coefficient of 1, of the
    # weight held, or of a column of the account.
    slope = plan[k, Plan.SLOPE]
    linear = plan[k, Plan.LINEAR]
    total_columns = 1 + slope + linear
    a = weights[shift]
    b = weights[shift + columns]
    latent[:] = ZERO
    for j in range(total_columns):
        factor = ONE if j == 0 else common[j - 1 - slope]
        y[0, :] = weights[plan[k, Plan.HEAD_BIAS] + j]
        for o in range(wide):
            w = weights[plan[k, Plan.HEAD] + o * total_columns + j]
            for n in range(count):
                y[0, n] += w * x[o, n]
        for n in range(count):
            if slope and j == 1:
                factor = _scale_and_clip(table[0, n], a, b)
            latent[n] += y[0, n] * factor
    extra = plan[k, Plan.LATENTS] - count
    for j in range((1 + linear) * extra):
        total = weights[plan[k, Plan.EXTRA_BIAS] + j]
        for o in range(wide):
            total += shared[o] * weights[plan[k, Plan.EXTRA] + o * (1 + linear) * extra + j]
        latent[count + j % extra] += total * (ONE if j < extra else common[j // extra - 1])


# The input is a vector, and two buffers swap roles from layer to layer.
@njit_layer
def _run_mlp(
    k: int, plan: Any, layers: Any, weights: Any, obs: Any, buffers: Any, latent: Any
) -> None:
    """Run a `mlp.MlpActor` on the flat observation."""
    x = obs
    y = buffers[0].reshape(-1)
    z = buffers[1].reshape(-1)
    for depth in range(plan[k, Plan.DEPTH] + 1):
        wide = layers[k, depth, Layer.OWN_OUT]
        _map_vector(x, layers[k, depth], Layer.OWN, weights, y)
        if depth < plan[k, Plan.DEPTH]:
            column = y[:wide].reshape(wide, 1)
            if plan[k, Plan.NORM]:
                _normalise(column, layers[k, depth, Layer.WIDTH])
            _apply_activation(column, plan[k, Plan.ACTIVATION])
        x = y
        y, z = z, y
    for i in range(latent.size):
        latent[i] = x[i]


# Computes `heads.ActionHead.decode`. The highest logit is subtracted from all, so that the
# exponential cannot overflow.
@njit_layer
def _decode(k: int, plan: Any, numbers: Any, table: Any, latent: Any, action: Any) -> None:
    """Turn a latent into `action [N]`; `tilt` and `weights` read holdings and benchmark in
    `table`."""
    count = action.size
    if plan[k, Plan.SQUASH]:
        for i in range(latent.size):
            latent[i] = np.tanh(latent[i])
    if plan[k, Plan.DECODER] == Head.DIRECT:
        for n in range(count):
            action[n] = min(max(latent[n], -ONE), ONE)
    elif plan[k, Plan.DECODER] == Head.AIM:
        scale = numbers[k, Number.SCALE]
        highest = scale * latent[count] + numbers[k, Number.CASH_LOGIT]
        total = highest
        for n in range(count):
            highest = max(highest, scale * latent[n])
        total = np.exp(total - highest)
        for n in range(count):
            action[n] = np.exp(scale * latent[n] - highest)
        total += _sum(action)
        for n in range(count):
            action[n] /= total
    elif plan[k, Plan.DECODER] == Head.WEIGHTS:  # as `rebalancing.approach`
        for n in range(count):
            held = table[0, n]
            aim = min(max(latent[n], -ONE), ONE)
            aim += numbers[k, Number.LONG_ONLY] * HALF * (ONE - aim)
            step = _decode_rate(k, numbers, latent[count + n]) * (aim - held)
            action[n] = min(max(held + step, -ONE), ONE)
    else:
        _tilt(k, plan, numbers, table[0], table[-1], latent, action)


@njit_layer
def _decode_rate(k: int, numbers: Any, latent: Any) -> Any:
    """Turn a latent into a trade rate."""
    return ONE / (ONE + np.exp(-numbers[k, Number.RATE_LOGIT] - _RATE * latent))


# Computes `rebalancing.tilt`.
@njit_layer
def _tilt(
    k: int, plan: Any, numbers: Any, held: Any, benchmark: Any, latent: Any, aim: Any
) -> None:
    """Turn a latent into an action, in `aim [N]`."""
    count = aim.size
    most = numbers[k, Number.MAX_LOG_TILT]
    scale = numbers[k, Number.TILT_SCALE]
    limit = numbers[k, Number.MAX_ACTIVE_TILT]
    centre = ZERO
    for n in range(count):
        centre += benchmark[n] * latent[n]
    for n in range(count):
        aim[n] = benchmark[n] * np.exp(most * _tanh((latent[n] - centre) / most))
    total = max(_sum(aim), _LEAST)
    for n in range(count):
        aim[n] = benchmark[n] + scale * (aim[n] / total - benchmark[n])
    if scale > ONE:
        for n in range(count):
            aim[n] = max(aim[n], ZERO)
        total = max(_sum(aim), _LEAST)
        for n in range(count):
            aim[n] /= total
    share = ZERO
    for n in range(count):
        share += HALF * abs(aim[n] - benchmark[n])
    factor = limit / max(share, limit)
    invested = ONE
    if plan[k, Plan.HAS_CASH]:
        invested -= min(max(latent[count + 1], ZERO), ONE)
    rate = _decode_rate(k, numbers, latent[count])
    rate += (ONE - rate) * np.exp(-share / _FOLLOWING)
    idle = ZERO
    for n in range(count):
        aim[n] = (benchmark[n] + factor * (aim[n] - benchmark[n])) * invested
        idle -= held[n] if benchmark[n] > ZERO else ZERO
    total = _sum(aim)
    idle = (total + idle) / max(total, _LEAST)
    for n in range(count):
        now = (held[n] if benchmark[n] > ZERO else ZERO) + idle * aim[n]
        aim[n] = min(max(now + rate * (aim[n] - now), ZERO), ONE)


@njit_layer
def _combine(actions: Any, shares: Any, action: Any) -> None:
    """Combine actions `[K, N]` into one: their sum weighted by `shares [K]`, or, if `shares` is
    empty, their median."""
    count = len(actions)
    for n in range(action.size):
        action[n] = ZERO
        for k in range(count):
            value = actions[k, n]
            if shares.size:
                action[n] += shares[k] * value
            else:  # the middle value, or half of each of the middle two
                rank = 0
                for j in range(count):
                    other = actions[j, n]
                    rank += other < value or (other == value and j < k)
                middle = (rank == (count - 1) // 2) + (rank == count // 2)
                action[n] += HALF * np.float32(middle) * value


@njit_layer
def _act(
    is_known: bool,
    bar: int,
    private: Any,
    encoded: Any,
    bound: Any,
    action: Any,
) -> None:
    """Write the action `[N]` for one account (see `run_networks`); `is_known`: the previous account
    has filled the buffers for this bar."""
    rows, sizes, networks, buffers = bound
    plan, _, numbers, weights, shares = networks
    table, _, obs, latents, actions = buffers[4:]
    row = rows[bar * sizes[5] : bar * sizes[5] + sizes[6]]
    context = row[row.size - sizes[4] :]
    for n in range(action.size):
        table[0, n] = private[sizes[0] + n]
    if not is_known:
        _transpose(row, sizes, table)
    for k in range(plan.shape[0]):
        latent = latents[0]
        own = latents[1 + k]
        if not is_known or not plan[k, Plan.SHARED]:
            if plan[k, Plan.IS_MLP]:
                _standardise(weights, plan[k, Plan.STATISTICS], private, row, obs)
                length = plan[k, Plan.LATENTS]
                _run_mlp(k, plan, networks.layers, weights, obs, buffers[:2], own[:length])
            else:
                _run_assets(k, networks, private, context, encoded, sizes[1], buffers[:6], own)
        for i in range(latent.size):  # decoding may change it
            latent[i] = own[i]
        _decode(k, plan, numbers, table, latent, actions[k])
    _combine(actions, shares, action)


# One call for all accounts and networks, since every call from Python takes time.
@njit_entry
def run_networks(
    bar: int,
    private: Any,
    encoded: Any,
    bound: Any,
    actions: Any,
) -> None:
    """Write the actions `[B, N]` of K networks for accounts at one bar, from their private parts,
    `private [B, A + N]`, and the encoders' columns of each asset, `encoded [K, E, N]`, float32.

    bound: the market's rows, contiguous; seven sizes (A, N, F, the number of flags of an asset, the
    number of context columns, the distance between two rows, and L*W); the networks; and buffers
    that are overwritten: two of `[O, N]`, a bias, shared columns, a table `[P, N]`, common columns,
    the observation, latents `[1 + K, L]` and actions `[K, N]`.
    """
    for b in range(len(private)):
        _act(b > 0, bar, private[b], encoded, bound, actions[b])


# One call for a stretch of a backtest: nothing between two decisions needs Python.
@njit_entry
def trade_networks(
    decisions: int,
    encoded: Any,
    bound: Any,
    account: Any,
    action: Any,
) -> bool:
    """Let K networks make at most `decisions` decisions for a packed account. Return True if the
    account is ruined. An action that is not finite ends the stretch.

    encoded: `[decisions, K, E, N]`; bound: see `run_networks`.
    """
    desired, state, _, rules, _, private = account
    for i in range(decisions):
        bar = state[0][BAR, 0]
        end = state[0][END, 0]
        if bar >= end:
            break
        _act(False, bar, private, encoded[i], bound, action[0])
        if not np.isfinite(_sum(action[0])):
            break
        stop = min(bar + rules.interval, end)
        if decide_and_wait(stop, action, desired, *account[1:]):
            return True
    return False
