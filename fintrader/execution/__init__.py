"""Executors: agents that learn to work the orders of another agent (`env.execution`)."""

from typing import TYPE_CHECKING

from fintrader.seams import import_on_use

if TYPE_CHECKING:
    from fintrader.execution.executor import TrainedExecutor, open_executor
    from fintrader.execution.training import train_executor

__all__ = ["TrainedExecutor", "open_executor", "train_executor"]

_HOMES = {
    "TrainedExecutor": "execution.executor",
    "open_executor": "execution.executor",
    "train_executor": "execution.training",
}

__getattr__, __dir__ = import_on_use(__name__, _HOMES)
