"""KubeRay's two resources, field by field as its API reference documents them (ray.io/v1, KubeRay 1.5).

https://ray-project.github.io/kuberay/reference/api/. The resource definitions themselves are not part of any package,
so their fields are written down here, strictly: one that is not is an error. Pod templates, containers' parts and
services are Kubernetes' own and are validated against its schemas.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Name = Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]
Words = dict[str, str]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class AuthOptions(_Strict):
    mode: Literal["disabled", "token"] = "token"


class AutoscalerOptions(_Strict):
    resources: dict[str, Any] | None = None
    image: str | None = None
    imagePullPolicy: Literal["Always", "IfNotPresent", "Never"] | None = None
    securityContext: dict[str, Any] | None = None
    idleTimeoutSeconds: int | None = Field(None, ge=0)
    upscalingMode: Literal["Default", "Aggressive", "Conservative"] | None = None
    version: Literal["v1", "v2"] | None = None
    env: list[dict[str, Any]] | None = None
    envFrom: list[dict[str, Any]] | None = None
    volumeMounts: list[dict[str, Any]] | None = None


class HeadGroup(_Strict):
    template: dict[str, Any]
    rayStartParams: Words
    serviceType: Literal["ClusterIP", "NodePort", "LoadBalancer"] | None = None
    headService: dict[str, Any] | None = None
    enableIngress: bool | None = None


class ScaleStrategy(_Strict):
    workersToDelete: list[str] | None = None


class WorkerGroup(_Strict):
    groupName: Name
    template: dict[str, Any]
    rayStartParams: Words
    replicas: int = Field(0, ge=0)
    minReplicas: int = Field(ge=0)
    maxReplicas: int = Field(ge=0)
    numOfHosts: int = Field(1, ge=1)
    idleTimeoutSeconds: int | None = Field(None, ge=0)
    suspend: bool | None = None
    scaleStrategy: ScaleStrategy | None = None

    @model_validator(mode="after")
    def _ordered(self) -> WorkerGroup:
        if not self.minReplicas <= self.replicas <= self.maxReplicas:
            raise ValueError(f"{self.groupName}: minReplicas <= replicas <= maxReplicas")
        return self


class RayClusterSpec(_Strict):
    headGroupSpec: HeadGroup
    workerGroupSpecs: list[WorkerGroup] = Field(default_factory=list)
    rayVersion: str | None = Field(None, pattern=r"^\d+\.\d+\.\d+$")
    authOptions: AuthOptions | None = None
    enableInTreeAutoscaling: bool | None = None
    autoscalerOptions: AutoscalerOptions | None = None
    headServiceAnnotations: Words | None = None
    gcsFaultToleranceOptions: dict[str, Any] | None = None
    managedBy: Literal["ray.io/kuberay-operator", "kueue.x-k8s.io/multikueue"] | None = None
    suspend: bool | None = None

    @model_validator(mode="after")
    def _distinct(self) -> RayClusterSpec:
        names = [group.groupName for group in self.workerGroupSpecs]
        if len(set(names)) != len(names):
            raise ValueError("two worker groups have the same name")
        return self


class RayJobSpec(_Strict):
    entrypoint: str = Field(min_length=1)
    rayClusterSpec: RayClusterSpec | None = None
    clusterSelector: Words | None = None
    submissionMode: Literal["K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"] = "K8sJobMode"
    submitterPodTemplate: dict[str, Any] | None = None
    submitterConfig: dict[str, Any] | None = None
    activeDeadlineSeconds: int | None = Field(None, ge=1)
    backoffLimit: int = Field(0, ge=0)
    metadata: Words | None = None
    jobId: str | None = None
    runtimeEnvYAML: str | None = None
    entrypointNumCpus: float | None = None
    entrypointNumGpus: float | None = None
    entrypointResources: str | None = None
    ttlSecondsAfterFinished: int = Field(0, ge=0)
    shutdownAfterJobFinishes: bool = False
    suspend: bool = False

    @model_validator(mode="after")
    def _one_cluster(self) -> RayJobSpec:
        if (self.rayClusterSpec is None) == (self.clusterSelector is None):
            raise ValueError("give either rayClusterSpec or clusterSelector")
        return self


class Metadata(_Strict):
    name: Name
    namespace: Name | None = None
    labels: Words | None = None
    annotations: Words | None = None


class RayCluster(_Strict):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayCluster"]
    metadata: Metadata
    spec: RayClusterSpec


class RayJob(_Strict):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayJob"]
    metadata: Metadata
    spec: RayJobSpec


def cluster_spec(manifest: dict[str, Any]) -> dict[str, Any] | None:
    """The cluster inside a RayCluster or a RayJob."""
    spec: dict[str, Any] = manifest["spec"]
    return spec if manifest["kind"] == "RayCluster" else spec.get("rayClusterSpec")


def core_parts(manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Kubernetes' own parts of a KubeRay resource, each as a manifest that its schemas know (a PodTemplate)."""
    spec = cluster_spec(manifest) or {}
    for group in [spec["headGroupSpec"], *spec.get("workerGroupSpecs", [])] if spec else []:
        yield pod_template(group["template"])
    options = spec.get("autoscalerOptions") or {}
    fields = {
        key: options[key]
        for key in ("resources", "securityContext", "env", "envFrom", "volumeMounts")
        if key in options
    }
    yield pod_template({"spec": {"containers": [{"name": "autoscaler", "image": "ray", **fields}]}})
    if template := manifest["spec"].get("submitterPodTemplate"):
        yield pod_template(template)


def pod_template(template: dict[str, Any]) -> dict[str, Any]:
    """A pod's template as a manifest of its own."""
    return {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "part"}, "template": template}
