"""Options and constants that all compiled loops share.

Sums may be taken in any order and fused with products, so that loops become vector instructions;
NaN and infinity keep their meaning, so that a diverged network shows.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from fintrader.envs.fast.compiled import njit_entry, njit_inner

njit_pass = partial(njit_entry, _nrt=False, fastmath={"reassoc", "contract", "nsz", "arcp"})
"""Passes of learning."""
# Not a function of its own in compiled code: each caller would hold a copy that sums in its own
# order, and the copy that a process loads first would serve all callers. A run that compiles would
# then differ from one that loads the compiled functions.
njit_layer = partial(
    njit_inner, forceinline=True, _nrt=False, fastmath={"reassoc", "contract", "nsz"}
)
"""Parts of the forward pass; divisions stay exact, not products with a reciprocal (`arcp`)."""
ZERO = np.float32(0.0)
HALF = np.float32(0.5)
ONE = np.float32(1.0)


def to_arrays(*tensors: Tensor) -> list[Any]:
    """View tensors as contiguous arrays."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]
