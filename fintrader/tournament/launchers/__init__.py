"""Launchers: where pods run. A launcher takes a spec and gives a future of its result; nothing else knows processes."""

from fintrader.tournament.launchers.base import (
    START_SECONDS,
    ElasticLauncher,
    Launcher,
    LauncherFactory,
    PodFailure,
    PodProgress,
    RunAccess,
    settle,
)
from fintrader.tournament.launchers.local import LocalLauncher, Slot, cuda_devices, on_this_machine, slots_of
from fintrader.tournament.launchers.ray.cluster import RaySettings
from fintrader.tournament.launchers.ray.launcher import RayLauncher, on_ray

__all__ = ["START_SECONDS", "ElasticLauncher", "Launcher", "LauncherFactory", "LocalLauncher", "PodFailure"]
__all__ += ["PodProgress", "RayLauncher", "RaySettings", "RunAccess", "Slot", "cuda_devices"]
__all__ += ["on_ray", "on_this_machine", "settle", "slots_of"]
