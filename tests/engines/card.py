"""A device with the GPU's code paths: its tensors are on the CPU, and it records every operation
for which the host would wait.

torch calls it `card`. Code that asks whether a tensor is on the CPU gets the GPU's answer.
"""

from __future__ import annotations

import functools
import traceback
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils import backend_registration
from torch.utils._python_dispatch import return_and_correct_aliasing

aten = torch.ops.aten

WAITING = {
    aten._local_scalar_dense,
    aten.equal,
    aten.is_nonzero,
    aten.masked_select,
    aten.nonzero,
    aten._unique2,
    aten.unique_consecutive,
    aten.unique_dim,
    aten.repeat_interleave,
}
"""Operations whose result, or the size of it, the host reads."""

IMPLEMENTED = (
    "empty.memory_format",
    "empty_strided",
    "copy_",
    *("arange", "arange.start", "arange.start_step"),
)
"""Operations that the device must provide; all others reach `CardTensor` or are composed."""

waits: list[str] = []
"""Functions of the package that waited, with the operation, in order."""


class Memory:
    """Bytes of the card's tensors: alive, and at most."""

    def __init__(self) -> None:
        self.users: Counter[int] = Counter()
        self.now = 0
        self.most = 0

    def hold(self, inner: Tensor) -> Share:
        """Count the storage of a tensor, once for all its views."""
        storage = inner.untyped_storage()
        share = Share(self, storage._cdata, storage.nbytes())
        if not self.users[share.key]:
            self.now += share.size
            self.most = max(self.most, self.now)
        self.users[share.key] += 1
        return share

    def release(self, share: Share) -> None:
        """Release one tensor of a storage."""
        self.users[share.key] -= 1
        if not self.users[share.key]:
            self.now -= share.size


@dataclass
class Share:
    """A tensor's part in a storage; ends with the tensor."""

    memory: Memory
    key: int
    size: int

    def __del__(self) -> None:
        self.memory.release(self)


memory = Memory()


class CardTensor(Tensor):
    """A tensor on the card."""

    inner: Tensor
    share: Share

    @staticmethod
    def __new__(cls, inner: Tensor) -> CardTensor:
        made = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=torch.device("card", 0),
        )
        made.inner = inner
        made.share = memory.hold(inner)
        return made

    def tolist(self) -> Any:
        """Copy to the host; torch itself refuses subclasses."""
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return run(func, *args, **(kwargs or {}))


def run(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operation on the CPU."""
    given = [part for part in pytree.tree_leaves((args, kwargs)) if isinstance(part, Tensor)]
    is_there = any(isinstance(part, CardTensor) for part in given)
    plain_args, plain_kwargs = pytree.tree_map_only(
        CardTensor, lambda part: part.inner, (args, kwargs)
    )
    goes_there = is_there
    if plain_kwargs.get("device") is not None:
        goes_there = torch.device(plain_kwargs["device"]).type == "card"
        plain_kwargs["device"] = torch.device("cpu")
    if is_waiting(func, args, given, is_there, goes_there):
        waits.append(find_caller(func))
    result = func(*plain_args, **plain_kwargs)
    assert all(part.shape == part.inner.shape for part in given if isinstance(part, CardTensor))
    if not goes_there:
        return result
    wrapped = pytree.tree_map_only(Tensor, CardTensor, result)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)


def is_waiting(func: Any, args: Any, given: list[Tensor], is_there: bool, goes_there: bool) -> bool:
    """Report whether the host would wait for a GPU."""
    packet = func.overloadpacket
    if packet in WAITING:
        return is_there
    if packet in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_):
        return any(place is not None and place.dtype == torch.bool for place in args[1])
    if packet is aten.copy_:
        return len({isinstance(part, CardTensor) for part in given}) == 2
    # A copy between host and device from unpinned memory.
    return packet is aten._to_copy and is_there != goes_there


def find_caller(func: Any) -> str:
    """Find the innermost function of the package, and the operation."""
    frames = [frame for frame in traceback.extract_stack() if "/fintrader/" in frame.filename]
    place = f"{frames[-1].name}: " if frames else ""
    return f"{place}{func.overloadpacket.__name__}"


@functools.cache
def open_card() -> torch.library.Library:
    """Register the device, once in a process."""
    backend_registration._setup_privateuseone_for_python_backend("card")
    library = torch.library.Library("aten", "IMPL")
    for name in IMPLEMENTED:
        packet, _, overload = name.partition(".")
        func = getattr(getattr(aten, packet), overload or "default")
        library.impl(name, functools.partial(run, func), "PrivateUse1")
    return library


class CardGenerator(torch.Generator):
    """A generator that reports the card as its device."""

    @property
    def device(self) -> torch.device:
        return torch.device("card", 0)
