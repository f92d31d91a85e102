"""Libraries whose training loops `borrowed.py` measures, from libraries.yaml."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from fintrader.config import read_yaml

PENDULUM = "Pendulum-v1"


class Library(NamedTuple):
    """A library, its script in `examples/`, and the two environments of its loop."""

    title: str
    package: str
    environment: str
    script: str
    through: str
    limitation: str
    loop: str
    reference: str


TABLE = read_yaml(Path(__file__).with_name("libraries.yaml"))
LIBRARIES = {name: Library(**words) for name, words in TABLE.items()}
