"""Compiled loops for `market_once` networks with relu: the forward pass of actor and critic, and
the parts of a gradient step, which `descent` combines.

As tensor operations, a network of this size takes dozens of calls, each of which takes longer to
start than to run. Here one block of bars at a time goes through all layers, so that its numbers
stay in the processor's caches. Arrays have the shape `[width, columns]` (features first), with a
column for each asset and bar, bars innermost. So inner loops run over whole vectors, with four
inputs and two outputs in registers. All weights are in one vector; rows of 0 pad matrices to a
multiple of four.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numba import njit
from torch import Tensor, nn

from fintrader.agents.fast.loops import ZERO, njit_layer, njit_pass, to_arrays

COLUMNS_AT_ONCE = 1024
"""Approximate number of columns of a block: as many as an L2 cache holds at the usual widths."""
HEAD = 4
"""Largest number of outputs of a head. Columns of 0 pad smaller heads."""
WIDEST = 128
"""Largest width of hidden layers at which these loops are at least as fast as torch's products."""


class LayerColumn(IntEnum):
    """Columns of `WeightPlan.layers`: a layer's widths, and the positions at which its weights
    begin."""

    OWN_IN = 0
    COMMON_IN = 1
    OUT = 2
    OWN_WEIGHT = 3
    OWN_BIAS = 4
    COMMON_WEIGHT = 5
    COMMON_BIAS = 6


class WeightPlan(NamedTuple):
    """Positions of each network's weights in the vector of all weights."""

    layers: Any
    """`[networks, depth, len(LayerColumn)]` int64"""
    heads: Any
    """`[networks, 2, 3]` int64: positions of weights and biases, and the number of outputs, of the
    head that reads each asset and of the head that reads their mean."""


class Scratch(NamedTuple):
    """Memory for a block of at most B bars; W is the largest width, rounded up to a multiple of
    four."""

    outputs: Any
    """`[depth + 1, W, B N]`: inputs, then the output of each layer."""
    means: Any
    """`[depth + 1, W, B]`: common inputs, then the mean output of each layer."""
    common: Any
    """`[W, B]`: the common part of a layer's outputs, and its gradient."""
    each: Any
    """`[HEAD, B N]`: outputs of the head that reads each asset, then their gradients; 0 in the rows
    after the last output."""
    top: Any
    """`[HEAD, B]`: outputs of the head that reads the mean, then their gradients."""
    bars: Any
    """`[B]` int64: the block's bars."""


# Eight weights stay in registers for a whole row of columns. By its strides, the matrix is read
# either as stored (for outputs) or transposed (for gradients of inputs).
@njit_layer
def _add_product(w: Any, matrix: Any, x: Any, out: Any) -> None:
    """Add to each row o of `out [O, C]` the sum over i of w[i, o] times row i of `x [I, C]`.

    matrix: its position in `w`; the strides to the next input and to the next output; I and O, both
    multiples of four; C.
    """
    start, by_in, by_out, wide_in, wide_out, columns = matrix
    for o in range(0, wide_out, 2):
        for i in range(0, wide_in, 4):
            k = start + i * by_in + o * by_out
            a0 = w[k]
            a1 = w[k + by_in]
            a2 = w[k + 2 * by_in]
            a3 = w[k + 3 * by_in]
            k += by_out
            b0 = w[k]
            b1 = w[k + by_in]
            b2 = w[k + 2 * by_in]
            b3 = w[k + 3 * by_in]
            for c in range(columns):
                out[o, c] += (a0 * x[i, c] + a1 * x[i + 1, c]) + (
                    a2 * x[i + 2, c] + a3 * x[i + 3, c]
                )
                out[o + 1, c] += (b0 * x[i, c] + b1 * x[i + 1, c]) + (
                    b2 * x[i + 2, c] + b3 * x[i + 3, c]
                )


# Four sums at once, so that each number is read once for two products.
@njit_layer
def _add_outer(x: Any, d: Any, grad: Any, matrix: Any) -> None:
    """Add the products of the rows of `x [I, C]` with those of `d [O, C]` to the gradients of the
    `matrix`, described as in `_add_product`."""
    start, stride, _, wide_in, wide_out, columns = matrix
    for i in range(0, wide_in, 2):
        for o in range(0, wide_out, 2):
            s00 = ZERO
            s01 = ZERO
            s10 = ZERO
            s11 = ZERO
            for c in range(columns):
                s00 += x[i, c] * d[o, c]
                s01 += x[i, c] * d[o + 1, c]
                s10 += x[i + 1, c] * d[o, c]
                s11 += x[i + 1, c] * d[o + 1, c]
            k = start + i * stride + o
            grad[k] += s00
            grad[k + 1] += s01
            grad[k + stride] += s10
            grad[k + stride + 1] += s11


@njit_layer
def clear(rows: Any, width: int, columns: int) -> None:
    """Set `width` rows to 0."""
    for h in range(width):
        for c in range(columns):
            rows[h, c] = ZERO


# The non-linearity and the mean over assets share a pass: each output is read once.
@njit_layer
def _rectify(out: Any, common: Any, mean: Any, width: int, bars: int, assets: int) -> None:
    """Replace rows of `out [W, B N]` by max(out + common, 0), and write their mean over the assets
    to `mean [W, B]`; rows from number `width` to a multiple of four become 0."""
    share = out.dtype.type(1.0) / assets
    for h in range((width + 3) // 4 * 4):
        total = mean[h]
        for b in range(bars):
            total[b] = ZERO
        for n in range(assets):
            part = out[h, n * bars : (n + 1) * bars]
            for b in range(bars):
                value = max(part[b] + common[h, b], ZERO) if h < width else ZERO
                part[b] = value
                total[b] += value
        for b in range(bars):
            total[b] *= share


# The same pass backward: gradients of output and mean add up at the non-linearity, and their sum
# over the assets is the gradient of the common part.
@njit_layer
def _rectify_back(
    out: Any, slopes: Any, mean_slopes: Any, common: Any, width: int, bars: int, assets: int
) -> None:
    """Turn the gradients `slopes [W, B N]` of `out` and `mean_slopes [W, B]` of its mean into those
    of the non-linearity's argument, in place, and write their sums over the assets to
    `common [W, B]`."""
    share = out.dtype.type(1.0) / assets
    for h in range((width + 3) // 4 * 4):
        total = common[h]
        for b in range(bars):
            total[b] = ZERO
            mean_slopes[h, b] *= share
        for n in range(assets):
            part = out[h, n * bars : (n + 1) * bars]
            slope = slopes[h, n * bars : (n + 1) * bars]
            for b in range(bars):
                # Rows from number `width` on are 0, so that their slopes become 0.
                at_input = slope[b] + mean_slopes[h, b] if part[b] > ZERO else ZERO
                slope[b] = at_input
                total[b] += at_input


@njit_layer
def _fill_biases(out: Any, w: Any, bias: int, width: int, columns: int) -> None:
    """Fill row h of `out` with bias h, and the rows that pad it to a multiple of four with 0."""
    for h in range((width + 3) // 4 * 4):
        value = w[bias + h] if h < width else ZERO
        for c in range(columns):
            out[h, c] = value


@njit(inline="always")
def _describe_product(start: int, wide_in: int, wide_out: int, columns: int) -> Any:
    """Describe a matrix `[I, O]` as `_add_product` reads it."""
    padded_in = (wide_in + 3) // 4 * 4
    return start, np.int64(wide_out), np.int64(1), padded_in, (wide_out + 3) // 4 * 4, columns


@njit(inline="always")
def _describe_products(layer: Any, bars: int, columns: int) -> Any:
    """Describe a layer's two matrices, own and common, as `_add_product` reads them; also returns
    the layer."""
    width = layer[LayerColumn.OUT]
    own = _describe_product(
        layer[LayerColumn.OWN_WEIGHT], layer[LayerColumn.OWN_IN], width, columns
    )
    shared = _describe_product(
        layer[LayerColumn.COMMON_WEIGHT], layer[LayerColumn.COMMON_IN], width, bars
    )
    return own, shared, layer


# Heads and layers share these loops over the gradients of a product.
@njit_layer
def _run_back(
    weights: Any,
    product: Any,
    bias: int,
    width: int,
    x: Any,
    slopes: Any,
    below: Any,
    has_below: bool,
) -> None:
    """Add the gradients of a matrix and of its `width` biases, from the gradients `slopes` of its
    outputs; if `has_below`, also write the gradients of its inputs `x` to `below`."""
    w, grad = weights
    start, by_in, by_out, wide_in, wide_out, columns = product
    _add_outer(x, slopes, grad, product)
    for h in range(width):
        total = ZERO
        for c in range(columns):
            total += slopes[h, c]
        grad[bias + h] += total
    if has_below:
        clear(below, wide_in, columns)
        _add_product(w, (start, by_out, by_in, wide_out, wide_in, columns), slopes, below)


# Inlined, because numba compiles a function and all that it calls anew for each call of it.
@njit(inline="always")
def run_trunk(w: Any, layers: Any, heads: Any, scratch: Scratch, bars: int, assets: int) -> None:
    """Run a trunk and its two heads over the inputs in `scratch`; write `each` and `top`."""
    columns = bars * assets
    common = scratch.common
    outputs = scratch.outputs
    means = scratch.means
    last = len(layers)
    for d in range(last):
        own, shared, layer = _describe_products(layers[d], bars, columns)
        width = layer[LayerColumn.OUT]
        _fill_biases(outputs[d + 1], w, layer[LayerColumn.OWN_BIAS], width, columns)
        _fill_biases(common, w, layer[LayerColumn.COMMON_BIAS], width, bars)
        _add_product(w, own, outputs[d], outputs[d + 1])
        _add_product(w, shared, means[d], common)
        _rectify(outputs[d + 1], common, means[d + 1], width, bars, assets)
    width = layers[last - 1, LayerColumn.OUT]
    _fill_biases(scratch.each, w, heads[0, 1], heads[0, 2], columns)
    _fill_biases(scratch.top, w, heads[1, 1], heads[1, 2], bars)
    _add_product(
        w, _describe_product(heads[0, 0], width, HEAD, columns), outputs[last], scratch.each
    )
    if heads[1, 2] > 0:  # some actors have no head for all assets together
        product = _describe_product(heads[1, 0], width, HEAD, bars)
        _add_product(w, product, means[last], scratch.top)


# Inlined for the same reason as `run_trunk`.
@njit(inline="always")
def run_trunk_back(
    weights: Any, layers: Any, heads: Any, scratch: Scratch, slopes: Any, bars: int, assets: int
) -> None:
    """Add the gradients of a network's weights, from those of `each` and `top`.

    `weights`: the weights and their gradients; `slopes`: memory for the gradients of a layer's
    outputs and inputs, `[2, W, B N]`, and of their means, `[2, W, B]`.
    """
    grads, mean_grads = slopes
    columns = bars * assets
    common = scratch.common
    outputs = scratch.outputs
    means = scratch.means
    last = len(layers)
    width = layers[last - 1, LayerColumn.OUT]
    at = last % 2
    own = _describe_product(heads[0, 0], width, HEAD, columns)
    shared = _describe_product(heads[1, 0], width, HEAD, bars)
    head = heads[0]
    _run_back(weights, own, head[1], head[2], outputs[last], scratch.each, grads[at], True)
    head = heads[1]
    if head[2] > 0:
        _run_back(weights, shared, head[1], head[2], means[last], scratch.top, mean_grads[at], True)
    else:
        clear(mean_grads[at], width, bars)
    for d in range(last - 1, -1, -1):
        own, shared, layer = _describe_products(layers[d], bars, columns)
        width = layer[LayerColumn.OUT]
        at = (d + 1) % 2
        _rectify_back(outputs[d + 1], grads[at], mean_grads[at], common, width, bars, assets)
        bias = layer[LayerColumn.OWN_BIAS]
        _run_back(weights, own, bias, width, outputs[d], grads[at], grads[1 - at], d > 0)
        bias = layer[LayerColumn.COMMON_BIAS]
        _run_back(weights, shared, bias, width, means[d], common, mean_grads[1 - at], d > 0)


@njit_layer
def transpose_inputs(own: Any, common: Any, bars: Any, count: int, inputs: Any, means: Any) -> None:
    """Write the inputs of `count` bars, features first, to `inputs` and `means`."""
    for p in range(own.shape[2]):
        for n in range(own.shape[1]):
            for b in range(count):
                inputs[p, n * count + b] = own[bars[b], n, p]
    for g in range(common.shape[1]):
        for b in range(count):
            means[g, b] = common[bars[b], g]


# One call for all bars: a block's numbers stay in the caches from layer to layer.
@njit_pass
def _evaluate(inputs: Any, plan: WeightPlan, w: Any, scratch: Scratch, each: Any, top: Any) -> None:
    """Run the first network of `plan` over U bars with inputs own `[U, N, P]` and common `[U, G]`;
    write the outputs of its heads to `each [K, U, N]` and `top [U, E]`."""
    own, common = inputs
    assets = own.shape[1]
    begin = 0
    while begin < len(own):
        bars = min(len(scratch.bars), len(own) - begin)
        for b in range(bars):
            scratch.bars[b] = begin + b
        transpose_inputs(own, common, scratch.bars, bars, scratch.outputs[0], scratch.means[0])
        run_trunk(w, plan.layers[0], plan.heads[0], scratch, bars, assets)
        for b in range(bars):
            for k in range(each.shape[0]):
                for n in range(assets):
                    each[k, begin + b, n] = scratch.each[k, n * bars + b]
            for k in range(top.shape[1]):
                top[begin + b, k] = scratch.top[k, b]
        begin += bars


def list_weights(networks: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the weights of networks, in the order of `PackedWeights`."""
    for trunk, *heads in networks:
        pairs = zip(trunk.layers.own, trunk.layers.common, strict=True)
        for layer in (*(one for pair in pairs for one in pair), *heads):
            if layer is not None:
                yield layer.weight
                yield layer.bias


class PackedWeights:
    """The weights of several networks in one vector, and the memory for a block."""

    def __init__(self, networks: Iterable[Any], assets: int, vectors: int, *last: Tensor) -> None:
        """networks: each a trunk, the head that reads each asset, and the head that reads their
        mean (or None); assets: N; vectors: number of equal vectors to make; last: tensors that are
        laid out after the networks."""
        self.places: list[tuple[torch.Size, int, int]] = []
        """Shape of each tensor of weights, its position, and the length of its rows."""
        self.length = 0
        layers = []
        heads = []
        for trunk, *pair in networks:
            layers.append(list(map(self._place_layer, trunk.layers.own, trunk.layers.common)))
            heads.append(list(map(self._place_head, pair)))
            dtype = trunk.layers.own[0].weight.dtype
        self.plan = WeightPlan(np.array(layers), np.array(heads))
        for tensor in last:
            self._place(tensor)
        # Products read up to three numbers beyond the end of a matrix.
        self.vectors = [torch.zeros(self.length + HEAD, dtype=dtype) for _ in range(vectors)]
        self.views = [[_view(vector, *place) for place in self.places] for vector in self.vectors]
        self.scratch = self._make_scratch(assets, self.vectors[0].numpy().dtype)

    def _place(self, weight: Tensor, width: int = 0) -> int:
        """Reserve a place for a tensor, with rows of `width` numbers; return its position."""
        begin = self.length
        width = width or weight.shape[-1]
        self.places.append((weight.shape, begin, width))
        self.length += width * (pad(weight.shape[0]) if weight.ndim > 1 else 1)
        return begin

    def _place_layer(self, own: Any, common: Any) -> list[int]:
        weights = (own.weight, own.bias, common.weight, common.bias)
        sizes = [own.weight.shape[0], common.weight.shape[0], own.weight.shape[1]]
        return sizes + [self._place(weight) for weight in weights]

    def _place_head(self, head: Any) -> list[int]:
        if head is None:
            return [0, 0, 0]
        return [self._place(head.weight, HEAD), self._place(head.bias), head.weight.shape[1]]

    def _make_scratch(self, assets: int, dtype: Any) -> Scratch:
        bars = max(16, COLUMNS_AT_ONCE // assets // 8 * 8)
        depth = self.plan.layers.shape[1] + 1
        wide = pad(int(self.plan.layers[:, :, : LayerColumn.OUT + 1].max()))
        shapes = {
            "outputs": (depth, wide, bars * assets),
            "means": (depth, wide, bars),
            "common": (wide, bars),
            "each": (HEAD, bars * assets),
            "top": (HEAD, bars),
        }
        arrays = {name: np.zeros(shape, dtype) for name, shape in shapes.items()}
        return Scratch(**arrays, bars=np.zeros(bars, np.int64))


def _view(vector: Tensor, shape: torch.Size, begin: int, width: int) -> Tensor:
    """View a part of `vector` as a tensor."""
    return vector.as_strided(shape, (width, 1)[-len(shape) :], begin)


class _ThreadMemory(threading.local):
    """Memory of one thread: the loops run without the GIL, and two threads may use one network."""

    def __init__(self) -> None:
        self.packed: WeakKeyDictionary[nn.Module, PackedWeights] = WeakKeyDictionary()
        """First head of a network -> its weights."""


_MEMORY = _ThreadMemory()


def run_market_once(rows: Tensor, trunk: Any, head: Any, top: Any) -> Any:
    """Compute `networks.run_market_once` if no gradient is needed; else return NotImplemented."""
    if torch.is_grad_enabled() or not covers(trunk, rows, head, top):
        return NotImplemented
    own, common = trunk.assets(rows)
    bars, assets = own.shape[:2]
    networks = [(trunk, head, top)]
    packed = _MEMORY.packed.get(head)
    if packed is None:
        packed = _MEMORY.packed[head] = PackedWeights(networks, assets, 1)
    # Copied at each call, since training may have changed or replaced the weights.
    torch._foreach_copy_(packed.views[0], list(list_weights(networks)))
    each = own.new_empty(head.weight.shape[1], bars, assets)
    of_mean = own.new_empty(bars, 0 if top is None else top.weight.shape[1])
    vector = packed.vectors[0].numpy()
    outputs = (each.numpy(), of_mean.numpy())
    _evaluate(tuple(to_arrays(own, common)), packed.plan, vector, packed.scratch, *outputs)
    return each, None if top is None else of_mean


# Each account looks up its bar's coefficients, so that they are not copied for each account.
@njit_pass
def _sum_values(each: Any, top: Any, row_index: Any, private: Any, value: Any) -> None:
    """Write each account's value to `value [R]`: top + mean over assets of (linear + square · held)
    · held."""
    assets = each.shape[2]
    first_asset = private.shape[1] - assets
    share = np.float32(1.0 / assets)
    for r in range(len(value)):
        bar = row_index[r]
        held = private[r, first_asset:]
        linear = each[0, bar]
        square = each[1, bar]
        total = ZERO
        for n in range(assets):
            total += (linear[n] + square[n] * held[n]) * held[n]
        value[r] = top[bar, 0] + share * total


def quadratic_value(each: Tensor, top: Tensor, batch: Any) -> Any:
    """Compute `networks.quadratic_value` if no gradient is needed; else return NotImplemented."""
    private = batch.private
    if torch.is_grad_enabled() or private.ndim != 2:
        return NotImplemented
    row_index = batch.row_index
    if row_index is None:
        row_index = torch.arange(len(private))
    value = private.new_empty(len(private))
    _sum_values(*to_arrays(each, top, row_index, private), value.numpy())
    return value


def covers(trunk: Any, rows: Tensor, *heads: Any) -> bool:
    """Report whether these loops can compute a network with this trunk and these heads."""
    return (
        trunk.assets.encoder is None
        and rows.ndim == 2
        and all(hidden.fused == "relu" for hidden in trunk.layers.hidden)
        and all(own.weight.shape[1] <= WIDEST for own in trunk.layers.own)
        and all(head is None or head.weight.shape[1] <= HEAD for head in heads)
    )


def pad(width: int) -> int:
    """Round up to a multiple of four."""
    return -(-width // 4) * 4
