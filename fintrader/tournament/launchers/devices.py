"""Which slots a machine has for pods: cores, GPUs, or parts of one."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fintrader.errors import ConfigError


@dataclass(frozen=True)
class Slot:
    """Room for one pod: what the pod calls its device, and the environment that makes it so."""

    name: str
    device: str = "cpu"
    variables: tuple[tuple[str, str], ...] = ()


CARDS = Path("/proc/driver/nvidia/gpus")
"""Where the driver lists its cards, a folder each."""
_UNKNOWN = "?"
"""In a card's UUID while the driver has not looked at it."""


def cuda_devices() -> list[str]:
    """Names of the CUDA devices that are there now, without waking a driver: `["0", "1"]`.

    Where `CUDA_VISIBLE_DEVICES` is set, those of its names that a new process would find: numbers count the cards that
    are present, so with one of two gone only 0 is left, whichever it was; UUIDs must be those of present cards.
    """
    cards = _cards()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(number) for number in range(len(cards))]
    found = []
    for name in (name.strip() for name in visible.split(",")):
        if name.lstrip("-").isdigit() and int(name) < 0:
            break  # CUDA reads no further, hence the custom of -1 for no device
        if name and _present(name, cards):
            found.append(name)
    return found


def _cards() -> list[str]:
    """UUIDs of the cards that the driver lists."""
    uuids = []
    for card in sorted(CARDS.iterdir()) if CARDS.is_dir() else []:
        text = ""
        with suppress(OSError):  # it vanishes as we look
            text = (card / "information").read_text()
        found = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("GPU UUID")]
        uuids.append(found[0] if found else _UNKNOWN)
    return uuids


def _present(name: str, cards: Sequence[str]) -> bool:
    """Whether a name from `CUDA_VISIBLE_DEVICES` is that of a card. A card of unknown UUID may be any."""
    if name.isdigit():
        return int(name) < len(cards)
    if name.startswith("MIG-"):  # a part of some card; only the driver could say of which
        return bool(cards)
    return any(uuid.lower().startswith(name.lower()) or _UNKNOWN in uuid for uuid in cards)


def slots_of(devices: Sequence[str], pods_per_device: int, probe: Callable[[], list[str]] = cuda_devices) -> list[Slot]:
    """`pods_per_device` slots a CUDA device, one a core for `cpu`; `auto` is CUDA if there is any, else the CPU."""
    found = probe()
    slots: list[Slot] = []
    for device in devices:
        if device == "cpu" or (device == "auto" and not found):
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            slots += [Slot(f"cpu-{number}", "cpu", (("CUDA_VISIBLE_DEVICES", ""),)) for number in range(cores)]
        elif device in ("auto", "cuda"):
            slots += [_cuda(name, number) for number in range(pods_per_device) for name in found]
        elif set(device.split("/")) == {"cpu"}:
            name = f"cpu-ranks-{len(slots)}"
            slots.append(Slot(name, device, (("CUDA_VISIBLE_DEVICES", ""),)))
        elif device.startswith("cuda:"):
            join = "/" if "/" in device else "+"
            names = device.removeprefix("cuda:").split(join)
            if set(names) <= set(found):
                slots += [_cuda(",".join(names), number, join) for number in range(pods_per_device)]
        else:
            known = "auto, cpu, cpu/cpu, cuda, cuda:0, cuda:0+1, cuda:0/1"
            raise ConfigError(f"tournament.devices: {device!r} is none of {known}")
    return slots


def _cuda(names: str, number: int, join: str = "+") -> Slot:
    count = len(names.split(","))
    inside = "cuda" if count == 1 else join.join(f"cuda:{card}" for card in range(count))
    return Slot(f"cuda-{names.replace(',', '+')}-{number}", inside, (("CUDA_VISIBLE_DEVICES", names),))
