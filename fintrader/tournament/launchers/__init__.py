"""Launchers: where pods run. A launcher takes a spec and gives a future of its result; nothing else knows processes."""

from fintrader.tournament.launchers.base import (
    START_SECONDS,
    ElasticLauncher,
    Launcher,
    LauncherFactory,
    PodFailure,
    PodProgress,
    settle,
)
from fintrader.tournament.launchers.devices import Slot, cuda_devices, slots_of
from fintrader.tournament.launchers.local import LocalLauncher
from fintrader.tournament.launchers.ray.launcher import RayLauncher, on_ray
from fintrader.tournament.launchers.ray.settings import RaySettings
from fintrader.tournament.launchers.threads import ThreadLauncher

__all__ = [
    "START_SECONDS",
    "ElasticLauncher",
    "Launcher",
    "LauncherFactory",
    "LocalLauncher",
    "PodFailure",
    "PodProgress",
    "RayLauncher",
    "RaySettings",
    "Slot",
    "ThreadLauncher",
    "cuda_devices",
    "on_ray",
    "settle",
    "slots_of",
]
