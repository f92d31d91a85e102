"""The CUDA kernel compiles for a GPU, without one: to PTX and machine code, with no product fused
to a sum."""

import re

import pytest

from fintrader.envs.fast.triton_step import is_interpreted

pytest.importorskip("triton", reason="triton is not installed: make test-triton")
if is_interpreted():
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fintrader.envs.fast import buffers as packed
from fintrader.envs.fast.triton_kernel import step_kernel

POINTERS = {
    "quotes": "fp32",
    "rows": "fp32",
    "last_bar": "i64",
    "risk_off": "u8",
    "rules": "fp64",
    "action": "fp32",
    "key": "i64",
    "give_cash": "fp64",
    "give_shares": "fp64",
    "give_bars": "i64",
    "ints_0": "i64",
    "floats_0": "fp64",
    "flags_0": "u8",
    "shares_0": "fp64",
    "ints_1": "i64",
    "floats_1": "fp64",
    "flags_1": "u8",
    "shares_1": "fp64",
    "obs": "fp32",
    "final_obs": "fp32",
    "thinness": "fp32",
    "spreads": "fp64",
    "event_row": "i64",
    "splits": "fp64",
    "dividends": "fp64",
}
NUMBERS = ("row_stride", "B", "T")


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("resets", [True, False])
@pytest.mark.parametrize("target", [True, False])
def test_it_compiles_and_rounds_as_torch_does(dtype, resets, target):
    constants = {
        "N": 100,
        "WIDTH": 900,
        "BLOCK_N": 128,
        "BLOCK_W": 1024,
        "RESETS": resets,
        "FLAT": True,
        "TARGET": target,
        "SAME_BAR": False,
        "RANDOM_START": True,
        "TURBULENT": True,
        "INTERVAL": 1 + target,
        "ENDS": True,
        "WORTH": packed.LOG_RETURN,
        "EVERY_FINAL": not target,
        "WHOLE": target,
        "EACH": target,
        "EVENTS": target,
    }
    observed = {"rows", "obs", "final_obs"}
    signature = {
        name: "*" + (dtype if name in observed else POINTERS[name])
        if name in POINTERS
        else "i32"
        if name in NUMBERS
        else "constexpr"
        for name in step_kernel.arg_names
    }
    source = ASTSource(fn=step_kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(
        source, target=GPUTarget("cuda", 90, 32), options={"enable_fp_fusion": False}
    )
    ptx = compiled.asm["ptx"]
    # Correctly rounded divisions are made of fused operations, but inside one instruction of PTX.
    assert not re.search(r"\bfma\.rn\.f(32|64)", ptx)
    assert not re.search(r"\bdiv\.(full|approx)", ptx)
    assert len(compiled.asm["cubin"]) > 0
