"""Launchers: where pods run. A launcher takes a spec and gives a future of its result; nothing else knows processes."""

from fintrader.tournament.launchers.base import ElasticLauncher, Launcher, LauncherFactory, PodFailure, PodProgress
from fintrader.tournament.launchers.local import LocalLauncher, Slot, cuda_devices, slots_of
from fintrader.tournament.launchers.ray.cluster import RaySettings
from fintrader.tournament.launchers.ray.launcher import RayLauncher, on_ray

__all__ = ["ElasticLauncher", "Launcher", "LauncherFactory", "LocalLauncher", "PodFailure", "PodProgress"]
__all__ += ["RayLauncher", "RaySettings", "Slot", "cuda_devices", "on_ray", "slots_of"]
