"""The compiled forward pass: one account's action from K networks at once, without an operation's
overhead each.

It is a `policy.EnsemblePolicy` for one observation, in float32, with sums in another order.
Assets lie along the last axis, so that every inner loop runs over them; weights are padded to
multiples of four, so that four inputs meet four outputs in registers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from fintrader.agents.fast.loops import HALF, ONE, ZERO, njit_layer


class Kind(IntEnum):
    """Kinds of networks."""

    PER_ASSET = 0
    MLP = 1


class Activation(IntEnum):
    """Non-linearities, by their names in `NetworkSettings` in capitals."""

    RELU = 0
    TANH = 1
    SILU = 2
    ELU = 3


class Plan(IntEnum):
    """Columns of `Networks.plan`. The last five say where numbers begin in `Networks.weights`."""

    KIND = 0
    ACTIVATION = 1
    NORM = 2
    ACCOUNT = 3
    SQUASH = 4
    TARGETS = 5
    DEPTH = 6
    HEAD = 7
    HEAD_BIAS = 8
    CASH = 9
    CASH_BIAS = 10
    STATISTICS = 11


class Layer(IntEnum):
    """Columns of `Networks.layers`: where the weights of a layer begin, and their sizes."""

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


_CLIP = np.float32(10.0)
"""`normalisation.CLIP`."""


# A block of four inputs and four outputs: each number of `x` and `out` that is loaded serves four
# multiplications, where a plain loop would load both for every one.
@njit_layer
def _multiply(x: Any, weights: Any, start: int, wide_in: int, wide_out: int, out: Any) -> None:
    """Add `weights [I, O]ᵀ x [I, N]` to `out [O, N]`; I and O are multiples of four."""
    count = x.shape[1]
    for o in range(0, wide_out, 4):
        r0 = out[o]
        r1 = out[o + 1]
        r2 = out[o + 2]
        r3 = out[o + 3]
        for j in range(0, wide_in, 4):
            a = start + j * wide_out + o
            b = a + wide_out
            c = a + 2 * wide_out
            d = a + 3 * wide_out
            a0 = weights[a]
            a1 = weights[a + 1]
            a2 = weights[a + 2]
            a3 = weights[a + 3]
            b0 = weights[b]
            b1 = weights[b + 1]
            b2 = weights[b + 2]
            b3 = weights[b + 3]
            c0 = weights[c]
            c1 = weights[c + 1]
            c2 = weights[c + 2]
            c3 = weights[c + 3]
            d0 = weights[d]
            d1 = weights[d + 1]
            d2 = weights[d + 2]
            d3 = weights[d + 3]
            x0 = x[j]
            x1 = x[j + 1]
            x2 = x[j + 2]
            x3 = x[j + 3]
            for n in range(count):
                p = x0[n]
                q = x1[n]
                r = x2[n]
                s = x3[n]
                r0[n] += a0 * p + b0 * q + c0 * r + d0 * s
                r1[n] += a1 * p + b1 * q + c1 * r + d1 * s
                r2[n] += a2 * p + b2 * q + c2 * r + d2 * s
                r3[n] += a3 * p + b3 * q + c3 * r + d3 * s


# Four rows of weights at a time, so that `out` is read and written a quarter as often.
@njit_layer
def _add_vector(x: Any, count: int, weights: Any, start: int, wide_out: int, out: Any) -> None:
    """Add `x [count] weights [count, O]` to `out [O]`."""
    whole = count // 4 * 4
    for j in range(0, whole, 4):
        a = start + j * wide_out
        w0 = weights[a : a + wide_out]
        w1 = weights[a + wide_out : a + 2 * wide_out]
        w2 = weights[a + 2 * wide_out : a + 3 * wide_out]
        w3 = weights[a + 3 * wide_out : a + 4 * wide_out]
        p = x[j]
        q = x[j + 1]
        r = x[j + 2]
        s = x[j + 3]
        for o in range(wide_out):
            out[o] += p * w0[o] + q * w1[o] + r * w2[o] + s * w3[o]
    for j in range(whole, count):
        row = start + j * wide_out
        for o in range(wide_out):
            out[o] += x[j] * weights[row + o]


# The C library's tanh cannot be vectorised; a ratio of two polynomials (the one Eigen and XLA use)
# can.
@njit_layer
def _tanh(x: Any) -> Any:
    """Approximate tanh within 4 units in the last place of float32."""
    bound = np.float32(7.90531110763549805)
    x = -bound if x < -bound else (bound if x > bound else x)
    y = x * x
    top = np.float32(-2.76076847742355e-16)
    top = top * y + np.float32(2.00018790482477e-13)
    top = top * y + np.float32(-8.60467152213735e-11)
    top = top * y + np.float32(5.12229709037114e-08)
    top = top * y + np.float32(1.48572235717979e-05)
    top = top * y + np.float32(6.37261928875436e-04)
    top = (top * y + np.float32(4.89352455891786e-03)) * x
    low = np.float32(1.19825839466702e-06)
    low = low * y + np.float32(1.18534705686654e-04)
    low = low * y + np.float32(2.26843463243900e-03)
    low = low * y + np.float32(4.89352518554385e-03)
    return top / low


# SiLU and ELU are written in terms of the vectorisable tanh.
@njit_layer
def _apply_activation(rows: Any, kind: int) -> None:
    """Apply a non-linearity to `[O, N]` in place."""
    flat = rows.reshape(-1)
    if kind == Activation.RELU:
        for i in range(flat.size):
            flat[i] = ZERO if flat[i] < ZERO else flat[i]
    elif kind == Activation.TANH:
        for i in range(flat.size):
            flat[i] = _tanh(flat[i])
    elif kind == Activation.SILU:
        for i in range(flat.size):  # x σ(x) with σ(x) = (1 + tanh(x / 2)) / 2
            flat[i] = flat[i] * HALF * (ONE + _tanh(HALF * flat[i]))
    else:
        for i in range(flat.size):
            half = _tanh(HALF * flat[i])  # exp(x) - 1 = 2 t / (1 - t) with t = tanh(x / 2)
            flat[i] = (half + half) / (ONE - half) if flat[i] < ZERO else flat[i]


# Two passes (mean, then variance): the textbook's single pass loses float32's digits.
@njit_layer
def _normalise(rows: Any, width: int) -> None:
    """Normalise the first `width` of `[O, N]` in place, asset by asset, without an affine map."""
    count = rows.shape[1]
    share = ONE / np.float32(width)
    mean = np.zeros(count, np.float32)
    variance = np.zeros(count, np.float32)
    for o in range(width):
        for n in range(count):
            mean[n] += rows[o, n]
    for n in range(count):
        mean[n] *= share
    for o in range(width):
        for n in range(count):
            variance[n] += (rows[o, n] - mean[n]) * (rows[o, n] - mean[n])
    for n in range(count):
        variance[n] = ONE / np.sqrt(variance[n] * share + np.float32(1e-5))
    for o in range(width):
        for n in range(count):
            rows[o, n] = (rows[o, n] - mean[n]) * variance[n]


@njit_layer
def _scale_and_clip(value: Any, shift: Any, scale: Any) -> Any:
    x = (value - shift) * scale
    return -_CLIP if x < -_CLIP else (_CLIP if x > _CLIP else x)


# The observation is written out flat: the networks then read one array, wherever its parts came
# from.
@njit_layer
def _standardise(weights: Any, shift: int, private: Any, row: Any, obs: Any) -> None:
    """Write the flat observation `[D]`, standardised, to `obs`. Each column has a shift, and behind
    all of them a scale."""
    scale = shift + obs.size
    for i in range(private.size):
        obs[i] = _scale_and_clip(private[i], weights[shift + i], weights[scale + i])
    for i in range(row.size):
        at = private.size + i
        obs[at] = _scale_and_clip(row[i], weights[shift + at], weights[scale + at])


# Inputs are turned to `[P, N]` once, and two buffers swap their roles from layer to layer, so that
# nothing is allocated.
@njit_layer
def _run_per_asset(
    k: int, plan: Any, layers: Any, weights: Any, obs: Any, sizes: Any, buffers: Any, latent: Any
) -> None:
    """Run a `per_asset.PerAssetActor`: `latent [N (+ 1)]`."""
    account, count, features, context = sizes
    one, two, base, shared = buffers
    rows = account + count
    flags = rows + count * features
    for f in range(features):
        for n in range(count):
            one[f, n] = obs[rows + n * features + f]
    for n in range(count):
        one[features, n] = obs[account + n]
        one[features + 1, n] = obs[flags + n]
    for i in range(features + 2, layers[k, 0, Layer.OWN_IN]):
        one[i, :] = ZERO
    given = 0
    if plan[k, Plan.ACCOUNT]:
        shared[:account] = obs[:account]
        given = account
    shared[given : given + context] = obs[flags + count :]
    if given + context == 0:
        shared[0] = ZERO  # the network has one column that is always zero there
    x = one
    y = two
    for depth in range(plan[k, Plan.DEPTH]):
        wide = layers[k, depth, Layer.OWN_OUT]
        for o in range(wide):
            base[o] = weights[layers[k, depth, Layer.BIAS] + o]
        _add_vector(
            shared,
            layers[k, depth, Layer.COMMON_IN],
            weights,
            layers[k, depth, Layer.COMMON],
            wide,
            base,
        )
        for o in range(wide):
            y[o, :] = base[o]
        _multiply(x, weights, layers[k, depth, Layer.OWN], layers[k, depth, Layer.OWN_IN], wide, y)
        if plan[k, Plan.NORM]:
            _normalise(y, layers[k, depth, Layer.WIDTH])
        _apply_activation(y[:wide], plan[k, Plan.ACTIVATION])
        for o in range(wide):
            total = ZERO
            for n in range(count):
                total += y[o, n]
            shared[o] = total / np.float32(count)
        x, y = y, x
    head = plan[k, Plan.HEAD]
    wide = layers[k, plan[k, Plan.DEPTH] - 1, Layer.OWN_OUT]
    latent[:count] = weights[plan[k, Plan.HEAD_BIAS]]
    for o in range(wide):
        w = weights[head + o]
        for n in range(count):
            latent[n] += w * x[o, n]
    if plan[k, Plan.CASH] >= 0:
        total = weights[plan[k, Plan.CASH_BIAS]]
        for o in range(wide):
            total += weights[plan[k, Plan.CASH] + o] * shared[o]
        latent[count] = total


# A vector goes through the layers; here, too, two buffers swap their roles.
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
        for o in range(wide):
            y[o] = weights[layers[k, depth, Layer.BIAS] + o]
        _add_vector(
            x, layers[k, depth, Layer.OWN_IN], weights, layers[k, depth, Layer.OWN], wide, y
        )
        if depth < plan[k, Plan.DEPTH]:
            column = y[:wide].reshape(wide, 1)
            if plan[k, Plan.NORM]:
                _normalise(column, layers[k, depth, Layer.WIDTH])
            _apply_activation(column, plan[k, Plan.ACTIVATION])
        x = y
        y, z = z, y
    for i in range(latent.size):
        latent[i] = x[i]


# As `heads.ActionHead.decode`, but for `tilt`; logits are lessened by their highest, so that the
# exponential cannot overflow.
@njit_layer
def _decode(k: int, plan: Any, numbers: Any, latent: Any, action: Any) -> None:
    """Turn a latent into `action [N]`."""
    count = action.size
    if plan[k, Plan.SQUASH]:
        for i in range(latent.size):
            latent[i] = np.tanh(latent[i])
    if not plan[k, Plan.TARGETS]:
        for n in range(count):
            z = latent[n]
            action[n] = -ONE if z < -ONE else (ONE if z > ONE else z)
        return
    highest = numbers[k, Number.SCALE] * latent[count] + numbers[k, Number.CASH_LOGIT]
    latent[count] = highest
    for n in range(count):
        latent[n] *= numbers[k, Number.SCALE]
        highest = max(highest, latent[n])
    total = ZERO
    for n in range(count + 1):
        latent[n] = np.exp(latent[n] - highest)
        total += latent[n]
    for n in range(count):
        action[n] = latent[n] / total


# The only function that Python calls: all K networks in one call, since every call has its price.
@njit(nogil=True, error_model="numpy", cache=True)
def run_networks(
    private: Any, row: Any, sizes: Any, networks: Any, buffers: Any, actions: Any
) -> None:
    """Write the actions `[K, N]` of K networks for one observation: `private [A + N]` and the
    market's `row`, float32.

    `sizes`: A, N, F, M. `buffers`: two `[O, N]`, a bias, shared columns, the observation, the
    latent with and without cash; their contents mean nothing afterwards.
    """
    plan, layers, numbers, weights = networks
    obs = buffers[4]
    with_cash = buffers[5]
    without = buffers[6]
    for k in range(plan.shape[0]):
        latent = with_cash if plan[k, Plan.TARGETS] else without
        _standardise(weights, plan[k, Plan.STATISTICS], private, row, obs)
        if plan[k, Plan.KIND] == Kind.PER_ASSET:
            _run_per_asset(k, plan, layers, weights, obs, sizes, buffers[:4], latent)
        else:
            _run_mlp(k, plan, layers, weights, obs, buffers[:2], latent)
        _decode(k, plan, numbers, latent, actions[k])
