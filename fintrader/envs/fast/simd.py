"""Intrinsics that numba lacks: prefetching, block copies, and stores past the caches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_LINE = 64
"""Bytes of a cache line, which processors fetch and store as a whole."""
_COLUMNS = 16
"""Numbers of a vector of `map_columns`: one register of AVX-512, two of AVX2."""
_FUSED = ("contract",)
"""A product and its sum are rounded once, where the processor can."""


def _pointer(context: Any, builder: Any, kind: Any, array: Any, offset: Any) -> Any:
    """Compute the address `offset` bytes into an array."""
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(data, cgutils.voidptr_t), [offset])


def _between_arrays(copy: Callable[..., None]) -> Any:
    """Generate the code of `copy(builder, target, source, bytes)` between two arrays."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        to = _pointer(context, builder, sig.args[0], args[0], args[1])
        origin = _pointer(context, builder, sig.args[2], args[2], args[3])
        copy(builder, to, origin, args[4])
        return context.get_dummy_value()

    return generate


@intrinsic
def prefetch(typing_context: Any, array: Any, offset: Any) -> Any:
    """Ask for the cache line at `array.data + offset` bytes."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        import llvmlite.ir as ir

        kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, *[ir.IntType(32)] * 3])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        number = ir.IntType(32)
        target = _pointer(context, builder, sig.args[0], args[0], args[1])
        # 0: for reading; 3: into the nearest cache; 1: data, not instructions.
        builder.call(function, [target, number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(array, offset), generate


@intrinsic
def copy_bytes(
    typing_context: Any, target: Any, target_offset: Any, source: Any, source_offset: Any, size: Any
) -> Any:
    """Copy bytes between two arrays."""
    copy = partial(cgutils.raw_memcpy, itemsize=1)
    return types.void(target, target_offset, source, source_offset, size), _between_arrays(copy)


@intrinsic
def stream_bytes(
    typing_context: Any, target: Any, target_offset: Any, source: Any, source_offset: Any, size: Any
) -> Any:
    """Copy 4-byte words, whole cache lines past the caches: the processor then need not read a line
    before writing it, which is half of the cost for targets larger than the caches."""

    def copy(builder: Any, *places: Any) -> None:
        builder.call(_stream_function(builder.module), places)

    return types.void(target, target_offset, source, source_offset, size), _between_arrays(copy)


def _stream_function(module: Any) -> Any:
    """Build `void (target, source, bytes)`: copy words up to the target's first whole line, then
    lines, then the remaining words."""
    import llvmlite.ir as ir

    name = "fintrader_stream_bytes"
    if name in module.globals:
        return module.globals[name]
    size = ir.IntType(64)
    word = ir.IntType(32)
    line = ir.VectorType(word, _LINE // 4)
    kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, cgutils.voidptr_t, size])
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    target, source, count = function.args

    def copy(first: Any, number: Any, unit: Any, shift: int, align: int, *, past: bool) -> Any:
        """Copy `number` units from byte `first` on; return the byte behind them."""
        with cgutils.for_range(builder, number, intp=size) as loop:
            offset = builder.add(first, builder.shl(loop.index, size(shift)))
            origin = builder.bitcast(builder.gep(source, [offset]), unit.as_pointer())
            to = builder.bitcast(builder.gep(target, [offset]), unit.as_pointer())
            store = builder.store(builder.load(origin, align=4), to, align=align)
            if past:
                store.set_metadata("nontemporal", module.add_metadata([word(1)]))
        return builder.add(first, builder.shl(number, size(shift)))

    # -target mod 64: bytes up to the next whole line.
    ahead = builder.and_(builder.neg(builder.ptrtoint(target, size)), size(_LINE - 1))
    ahead = builder.select(builder.icmp_unsigned("<", count, ahead), count, ahead)
    lines = builder.lshr(builder.sub(count, ahead), size(6))
    done = copy(size(0), builder.lshr(ahead, size(2)), word, 2, 4, past=False)
    done = copy(done, lines, line, 6, _LINE, past=True)
    copy(done, builder.lshr(builder.sub(count, done), size(2)), word, 2, 4, past=False)
    builder.ret_void()
    return function


# A plain loop loads and stores each number of `out` once for every few inputs. Here sixteen columns
# of four outputs stay in registers for all inputs, which are added in their order.
@intrinsic
def map_columns(
    typing_context: Any, x: Any, weights: Any, start: Any, inputs: Any, bias: Any, out: Any
) -> Any:
    """Write bias `[O]` + weights `[I, O]`ᵀ x `[I, N]` to `out [O, N]`, float32. `weights` is flat,
    from number `start` on; I and O are multiples of four, N of sixteen."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        import llvmlite.ir as ir

        size = ir.IntType(64)
        row = ir.VectorType(ir.FloatType(), _COLUMNS)
        mask = ir.Constant(ir.VectorType(ir.IntType(32), _COLUMNS), None)
        arrays = {
            k: context.make_array(sig.args[k])(context, builder, args[k]) for k in (0, 1, 4, 5)
        }
        outputs, columns = cgutils.unpack_tuple(builder, arrays[5].shape)
        sums = [cgutils.alloca_once(builder, row) for _ in range(4)]

        def find_row(k: int, line: Any, column: Any) -> Any:
            at = builder.add(builder.mul(line, columns), column)
            return builder.bitcast(builder.gep(arrays[k].data, [at]), row.as_pointer())

        def spread(k: int, at: Any) -> Any:
            number = builder.load(builder.gep(arrays[k].data, [at]))
            vector = builder.insert_element(ir.Constant(row, ir.Undefined), number, size(0))
            return builder.shuffle_vector(vector, vector, mask)

        def each(stop: Any, step: int) -> Any:
            return cgutils.for_range_slice(builder, size(0), stop, size(step), size)

        with each(columns, _COLUMNS) as (column, _), each(outputs, 4) as (first, _):
            lines = [builder.add(first, size(o)) for o in range(4)]
            for line, total in zip(lines, sums, strict=True):
                builder.store(spread(4, line), total)
            with each(args[3], 4) as (j, _):
                for line, total in zip(lines, sums, strict=True):
                    value = builder.load(total)
                    for i in range(4):
                        k = builder.add(j, size(i))
                        at = builder.add(args[2], builder.add(builder.mul(k, outputs), line))
                        values = builder.load(find_row(0, k, column), align=4)
                        product = builder.fmul(spread(1, at), values, flags=_FUSED)
                        value = builder.fadd(value, product, flags=_FUSED)
                    builder.store(value, total)
            for line, total in zip(lines, sums, strict=True):
                builder.store(builder.load(total), find_row(5, line, column), align=4)
        return context.get_dummy_value()

    return types.void(x, weights, start, inputs, bias, out), generate
