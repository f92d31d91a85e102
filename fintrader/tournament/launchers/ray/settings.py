"""Settings of the Ray launcher."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, field_validator

from fintrader.config import SECRET_NAME, Count, list_texts, refuse_secret
from fintrader.tournament.settings import LauncherSettings


class RaySettings(LauncherSettings):
    """Pods on a Ray cluster. None of these settings alters a result, so a resumed run may change
    them."""

    kind: Literal["ray"] = "ray"

    address: str = "auto"
    """`HOST:PORT` of the cluster's head; `auto`: `RAY_ADDRESS`, else the cluster of this machine;
    `local`: a cluster of this machine alone, on loopback, that ends with the command."""
    gpus: NonNegativeFloat | None = None
    """GPUs of a pod: a part of one, or a whole number. None: 0 if the cluster has no GPU when the
    run starts or `device` is `cpu`; else 1, or a part of one if `tournament.devices` names a device
    several times."""
    cpus: PositiveFloat = 1.0
    """CPUs of a pod."""
    nodes: Count = 1
    """Nodes that a pod spans. It takes its CPUs, GPUs and further resources on each of them, and
    its `tournament.replicas` learners are spread over them."""
    resources: dict[str, float] = Field(default_factory=dict)
    """Further resources of a pod by Ray's names, e.g. `accelerator_type:A100: 0.001`."""
    evaluator_cpus: PositiveFloat = 1.0
    """CPUs of an evaluator."""
    evaluator_resources: dict[str, float] = Field(default_factory=dict)
    """Further resources of an evaluator."""
    wait_seconds: NonNegativeFloat = 120.0
    """Seconds to wait for a node that can hold a pod, at the start and when all have vanished."""
    drain_seconds: NonNegativeFloat = 15.0
    """Seconds before a leaving node's deadline at which its pods are moved."""
    runtime_env: dict[str, Any] = Field(default_factory=dict)
    """Ray's runtime environment of the pods (`env_vars`, `pip`, ...). Empty: the nodes have
    fintrader installed."""
    allow_insecure: bool = False
    """Use a cluster without authentication. A cluster on loopback needs no permission."""

    @field_validator("runtime_env")
    @classmethod
    def _no_secrets(cls, runtime_env: dict[str, Any]) -> dict[str, Any]:
        variables = runtime_env.get("env_vars") or {}
        if not isinstance(variables, dict) or not all(
            isinstance(part, str) for pair in variables.items() for part in pair
        ):
            raise ValueError("env_vars maps names to texts; write numbers in quotes")
        secret = sorted(name for name in variables if SECRET_NAME.search(name))
        if secret:
            raise ValueError(
                f"env_vars holds {', '.join(secret)}: settings are stored and shown, so secrets"
                " belong into the nodes' own environment (a Kubernetes secret, an instance's role)"
            )
        for text in list_texts(runtime_env):
            refuse_secret(text)
        return runtime_env

    @field_validator("gpus")
    @classmethod
    def _whole(cls, gpus: float | None) -> float | None:
        if gpus is not None and gpus > 1 and gpus != int(gpus):
            raise ValueError("a pod takes a part of one GPU or a whole number of them")
        return gpus

    @field_validator("address")
    @classmethod
    def _reachable(cls, address: str) -> str:
        if "://" in address:
            raise ValueError(
                "give HOST:PORT, and run the command on a node of the cluster (`ray job submit`)"
            )
        if address not in ("auto", "local") and not address.rpartition(":")[2].isdigit():
            raise ValueError("expected auto, local or HOST:PORT")
        return address
