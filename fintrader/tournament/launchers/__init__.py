"""Launchers: where pods run. A launcher takes a spec and gives a future of its result; nothing else knows processes."""

from fintrader.tournament.launchers.base import START_SECONDS, Launcher, PodFailure, PodProgress, settle
from fintrader.tournament.launchers.local import LocalLauncher, Slot, cuda_devices, slots_of
from fintrader.tournament.launchers.threads import ThreadLauncher

__all__ = [
    "START_SECONDS",
    "Launcher",
    "LocalLauncher",
    "PodFailure",
    "PodProgress",
    "Slot",
    "ThreadLauncher",
    "cuda_devices",
    "settle",
    "slots_of",
]
