"""Tensors and a JSON header in one safetensors file, written atomically and checked when read; and
the state of agents, stored and inherited by name."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fintrader.agents.fast.graphs import ReplayedStep
from fintrader.envs.observation import StateDict, Tensors
from fintrader.errors import CheckpointError
from fintrader.files import atomic_file
from fintrader.market.market_file import preamble, stored_order
from fintrader.market.tensors import list_arrays, view_bytes

Json: TypeAlias = "dict[str, Any]"
"""A JSON object. The `format` of a file's header names its kind and version."""


def hash_content(tensors: Tensors, header: str) -> str:
    """Compute SHA-256 over the header and every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(header.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(view_bytes(tensor))
    return digest.hexdigest()


def write_tensors(path: Path, tensors: Tensors, header: Json) -> None:
    """Write `tensors` and `header` (plain JSON, no NaN) atomically; equal contents give equal
    bytes."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())}
    text = json.dumps(header, sort_keys=True, allow_nan=False)
    sealed = json.dumps({"content_hash": hash_content(plain, text), "header": text})
    order = stored_order(list_arrays(plain.items()))
    with atomic_file(Path(path)) as file:
        file.write(preamble(order, {"fintrader": sealed}))
        for entry in order:
            file.write(view_bytes(plain[entry.name]))


def read_tensors(path: Path, kind: str) -> tuple[StateDict, Json]:
    """Read a file of `write_tensors`, on the CPU; `kind` must equal the header's `format`.

    Raises CheckpointError when the file is missing, truncated, changed after writing, or of another
    format.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} does not exist; give the path of a stored {kind} file")
    try:
        with safe_open(str(path), framework="pt", device="cpu") as file:
            sealed = json.loads((file.metadata() or {})["fintrader"])
            names = file.keys()
            tensors = {name: file.get_tensor(name) for name in names}
            header = json.loads(sealed["header"])
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is truncated or damaged ({error}); restore it or train again"
        ) from None
    if header.get("format") != kind:
        raise CheckpointError(
            f"{path} holds {header.get('format')!r}, expected {kind!r} of this version"
        )
    if hash_content(tensors, sealed["header"]) != sealed.get("content_hash"):
        raise CheckpointError(
            f"{path} was changed after it was written; restore the original or train again"
        )
    return tensors, header


def add_prefix(prefix: str, tensors: Tensors) -> StateDict:
    """Put the tensors under `prefix.name`."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def select_below(prefix: str, tensors: Tensors) -> StateDict:
    """Select the tensors whose names begin with `prefix.`, and strip it."""
    return {
        name[len(prefix) + 1 :]: tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix + ".")
    }


def load_module(module: nn.Module, tensors: Tensors, where: str) -> None:
    """Copy `tensors` into `module`. Raises CheckpointError unless every name and shape agrees."""
    own = module.state_dict()
    if set(own) != set(tensors):
        odd = sorted(set(own) ^ set(tensors))[:3]
        raise CheckpointError(
            f"{where}: another architecture (differs in {', '.join(odd)}); use equal network"
            " settings"
        )
    for name, tensor in tensors.items():
        if own[name].shape != tensor.shape:
            raise CheckpointError(
                f"{where}: {name} has shape {tuple(tensor.shape)}, expected"
                f" {tuple(own[name].shape)}; it belongs to another market or to other network"
                " settings"
            )
    module.load_state_dict(dict(tensors))


def collect_optimiser_state(optimiser: torch.optim.Optimizer) -> StateDict:
    """Collect moments and step counts by parameter number, without hyper-parameters; the tensors
    are not copied."""
    state = optimiser.state_dict()["state"]
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, moments in state.items()
        for name, value in moments.items()
    }


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Restore the moments; hyper-parameters stay as they are. Raises CheckpointError on a
    wrong shape."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    state: dict[int, StateDict] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition(".")
        if not number.isdigit() or int(number) >= len(parameters):
            raise CheckpointError(
                f"optimiser state for unknown parameter {key}; use the network settings it was"
                " stored with"
            )
        if tensor.ndim and tensor.shape != parameters[int(number)].shape:
            raise CheckpointError(
                f"optimiser state {key} has the wrong shape; use the network settings it was stored"
                " with"
            )
        state.setdefault(int(number), {})[name] = tensor.clone()
    full = optimiser.state_dict()
    full["state"] = state
    optimiser.load_state_dict(full)


def load_generator(generator: torch.Generator, state: Tensor) -> None:
    """Restore a generator's state. Raises CheckpointError when it comes from another type of
    device."""
    try:
        generator.set_state(state.cpu().to(torch.uint8))
    except RuntimeError as error:
        raise CheckpointError(
            f"the random state does not fit ({error}); resume on the same device type"
        ) from None


class Resumable:
    """The state of an agent, by flat names.

    Names below `modules.` and `optimisers.` are inherited from a parent; names below `extra.`
    (running returns, replay buffers, counters) and the random stream belong to one training and are
    only resumed.
    """

    modules: nn.ModuleDict
    optimisers: dict[str, torch.optim.Optimizer]
    generator: torch.Generator
    replayed: ReplayedStep | None = None
    """The CUDA graphs of the gradient step; None on a CPU."""

    def pause(self) -> dict[str, float] | None:
        """Return None: this agent can be stored only right after an update (see `Agent.pause`)."""
        return None

    def state_dict(self) -> StateDict:
        """Collect everything that is needed to continue bit-exactly. Call it between updates.

        Tensors are copies, except the rows of a replay buffer, which may fill most of the memory:
        these are views, so store them before the next step.
        """
        extra = add_prefix("extra", self.collect_extra_state())
        return {
            **self.collect_inheritable_state(),
            **extra,
            "generator": self.generator.get_state(),
        }

    def collect_inheritable_state(self) -> StateDict:
        """Copy the part that a child takes over: networks, normalisers, optimiser moments."""
        state = add_prefix("modules", self.modules.state_dict())
        for name, optimiser in self.optimisers.items():
            state |= add_prefix(f"optimisers.{name}", collect_optimiser_state(optimiser))
        return {name: tensor.detach().clone() for name, tensor in state.items()}

    def load_state_dict(self, state: Tensors) -> None:
        """Continue from `state_dict()`. Raises CheckpointError when the state belongs to another
        architecture or market."""
        self.inherit(state)
        self.load_extra_state(select_below("extra", state))
        if "generator" not in state:
            raise CheckpointError(
                "the stored agent state has no random state: restore the file or train again"
            )
        load_generator(self.generator, state["generator"])

    def inherit(self, state: Tensors) -> None:
        """Take networks, optimiser moments and normalisers from a parent's `state_dict()`.

        Hyper-parameters and the random stream stay this agent's own. Raises CheckpointError when
        the parent has another architecture or was trained on another layout.
        """
        load_module(self.modules, select_below("modules", state), "agent state")
        for name, optimiser in self.optimisers.items():
            load_optimiser(optimiser, select_below(f"optimisers.{name}", state))
        if self.replayed is not None:
            self.replayed.forget()

    def collect_extra_state(self) -> StateDict:
        """Collect the state that belongs to one training only."""
        return {}

    def load_extra_state(self, state: Tensors) -> None:
        """Restore the values of `collect_extra_state()`."""
