"""Options and numbers of the compiled loops, which all of them share.

Sums may be taken in any order and fused with products, so that loops become vector instructions;
NaN and infinity keep their meaning, so that a diverged network shows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from torch import Tensor

njit_pass = njit(
    fastmath={"reassoc", "contract", "nsz", "arcp"}, error_model="numpy", nogil=True, cache=True
)
"""Passes of learning; they run without the GIL."""
njit_layer = njit(fastmath={"reassoc", "contract", "nsz"}, error_model="numpy", cache=True)
"""Parts of the forward pass, which divides as it says."""
ZERO = np.float32(0.0)
HALF = np.float32(0.5)
ONE = np.float32(1.0)


def to_arrays(*tensors: Tensor) -> list[Any]:
    """View tensors as arrays whose numbers lie side by side."""
    return [tensor.detach().contiguous().numpy() for tensor in tensors]
