"""One root seed, and named streams below it that never depend on the order in which they are asked
for."""

from __future__ import annotations

import hashlib
import random
import secrets
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

_MASK = (1 << 63) - 1


def derive(seed: int, *names: object) -> int:
    """Derive an independent 63-bit seed for a named purpose, e.g. `derive(seed, "pod", 3, "env")`.

    A hash instead of `seed + k`: neighbouring roots share no stream, and a new consumer changes no
    other stream.
    """
    text = "/".join([str(int(seed)), *(str(name) for name in names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") & _MASK


def draw_seed() -> int:
    """Draw a 63-bit seed from the system's entropy, where none was given."""
    return secrets.randbits(63)


def create_generator(
    seed: int, *names: object, device: torch.device | str = "cpu"
) -> torch.Generator:
    """Create a torch generator on `device` for a named purpose."""
    import torch  # here, because much that draws numbers needs no torch

    return torch.Generator(device=device).manual_seed(derive(seed, *names))


def create_numpy_generator(seed: int, *names: object) -> np.random.Generator:
    """Create a numpy generator for a named purpose."""
    return np.random.default_rng(derive(seed, *names))


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch (layers draw their first weights from
    torch's)."""
    import torch

    random.seed(seed)
    np.random.seed(seed % (1 << 32))
    torch.manual_seed(seed)
