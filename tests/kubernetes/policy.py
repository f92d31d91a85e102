"""What a manifest of ours must be beyond valid: confined, bounded, watched, reachable by those who should, no secrets.

`problems(manifests)` is a list of sentences; empty means well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import kubernetes_validate
from pydantic import ValidationError

from tests.kubernetes import kuberay

VERSIONS = ("1.30", "1.37")
"""Kubernetes versions every manifest must be valid for: an old one still in use, and the newest known."""
KUBERAY = {"RayCluster": kuberay.RayCluster, "RayJob": kuberay.RayJob}
UID = 10001
SUSPICIOUS = re.compile(r"(?i)(secret|token|password|passwd|credential|api[-_]?key|access[-_]?key)")
LONG_RUNNING = {"Deployment", "Job", "RayCluster", "RayJob"}
Manifest = dict[str, Any]


def problems(manifests: list[Manifest]) -> list[str]:
    """Everything that is wrong with a set of manifests that is applied together."""
    found: list[str] = []
    for one in manifests:
        name = f"{one.get('kind')}/{one.get('metadata', {}).get('name')}"
        invalid = list(schema_problems(one))
        found += [f"{name}: {problem}" for problem in invalid]
        if not invalid:
            found += [f"{name}: {problem}" for problem in _own_problems(one)]
    if not found:
        found += list(_together(manifests))
    return found


# --- the schemas -----------------------------------------------------------------------------------------------


def schema_problems(one: Manifest) -> Iterator[str]:
    """Unknown fields, wrong types, missing fields: Kubernetes' schemas, strictly, and KubeRay's fields."""
    if one.get("kind") in KUBERAY:
        try:
            KUBERAY[one["kind"]].model_validate(one)
        except ValidationError as error:
            for problem in error.errors():
                yield f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
            return
        parts = list(kuberay.core_parts(one))
    else:
        parts = [one]
    for part in parts:
        text = json.dumps(part)
        found = next((problem for version in VERSIONS if (problem := _invalid(text, version))), "")
        if found:
            yield found


@lru_cache(maxsize=1000)
def _invalid(text: str, version: str) -> str:
    """What is wrong with one manifest by the schemas of one version of Kubernetes; remembered, for it takes a while."""
    try:
        kubernetes_validate.validate(json.loads(text), version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(map(str, error.path))}: {error.message[:300]}"
    except kubernetes_validate.utils.SchemaNotFoundError as error:
        return str(error.message)
    return ""


# --- one manifest ----------------------------------------------------------------------------------------------


def templates(one: Manifest) -> Iterator[tuple[str, Manifest]]:
    """Every pod template of a manifest, by where it stands."""
    if one["kind"] in KUBERAY:
        spec = kuberay.cluster_spec(one)
        if spec:
            yield "head", spec["headGroupSpec"]["template"]
            for group in spec.get("workerGroupSpecs", []):
                yield group["groupName"], group["template"]
        if "submitterPodTemplate" in one["spec"]:
            yield "submitter", one["spec"]["submitterPodTemplate"]
    elif one["kind"] in {"Deployment", "Job"}:
        yield "pod", one["spec"]["template"]


def _own_problems(one: Manifest) -> Iterator[str]:
    if one["kind"] == "Secret":
        yield "secrets are made by hand or by a vault, never from a file of this repository"
    if one["kind"] == "Ingress" and not one["spec"].get("tls"):
        yield "no TLS"
    if one["kind"] == "Service" and one["spec"].get("type", "ClusterIP") != "ClusterIP":
        yield "opened to the world: only an Ingress may do that"
    if one["kind"] == "ConfigMap":
        yield from (f"{key} looks like a secret" for key in one.get("data", {}) if SUSPICIOUS.search(key))
    for where, template in templates(one):
        yield from (f"{where}: {problem}" for problem in _pod_problems(template))
    if one["kind"] in KUBERAY:
        yield from _ray_problems(one)
    if one["kind"] == "Job" and not one["spec"].get("activeDeadlineSeconds"):
        yield "no deadline: a run that hangs would cost for ever"


def _pod_problems(template: Manifest) -> Iterator[str]:
    spec = template["spec"]
    confined = spec.get("securityContext", {})
    if confined.get("runAsNonRoot") is not True:
        yield "may run as root (securityContext.runAsNonRoot)"
    for field in ("runAsUser", "runAsGroup", "fsGroup"):
        if confined.get(field) != UID:
            yield f"securityContext.{field} is {confined.get(field)}, not the image's {UID}"
    if confined.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        yield "no seccomp profile"
    for field in ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"):
        if spec.get(field):
            yield f"{field} is set"
    if not spec.get("serviceAccountName"):
        yield "runs as the default service account"
    if "automountServiceAccountToken" not in spec:
        yield "does not say whether it gets a token of the API server"
    volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
    for name, volume in volumes.items():
        if "hostPath" in volume:
            yield f"volume {name} is the node's own disk"
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield f"volume {name} has no size limit"
    for container in [*spec["containers"], *spec.get("initContainers", [])]:
        yield from (f"{container['name']}: {problem}" for problem in _container_problems(container, volumes))


def _container_problems(container: Manifest, volumes: Manifest) -> Iterator[str]:
    yield from _confinement(container.get("securityContext", {}))
    resources = container.get("resources", {})
    for kind in ("requests", "limits"):
        for what in ("cpu", "memory", "ephemeral-storage"):
            if what not in resources.get(kind, {}):
                yield f"no {kind}.{what}"
    if resources.get("requests", {}).get("memory") != resources.get("limits", {}).get("memory") and (
        container["name"] != "app"
    ):
        yield "may use more memory than was set aside for it"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        if probe not in container:
            yield f"no {probe}"
        else:
            port = container[probe].get("httpGet", {}).get("port")
            if port not in {known["name"] for known in container.get("ports", [])}:
                yield f"{probe} asks port {port}, which the container does not have"
    for mount in container.get("volumeMounts", []):
        if mount["name"] not in volumes:
            yield f"mounts {mount['name']}, which is no volume"
    if "/tmp" not in {mount["mountPath"] for mount in container.get("volumeMounts", [])}:
        yield "has a read-only root and nowhere to write (/tmp)"
    tag = container["image"].partition(":")[2]
    if tag in ("", "latest"):
        yield f"image {container['image']} names no version"
    if container.get("imagePullPolicy") is None:
        yield "no imagePullPolicy"
    for variable in container.get("env", []):
        if SUSPICIOUS.search(variable["name"]) and "valueFrom" not in variable:
            yield f"{variable['name']} holds a secret in the open"
    for word in [*container.get("args", []), *container.get("command", [])]:
        if SUSPICIOUS.search(word) and "=" in word:
            yield f"{word} holds a secret in the open"


def _confinement(context: Manifest) -> Iterator[str]:
    if context.get("allowPrivilegeEscalation") is not False:
        yield "may gain privileges"
    if context.get("readOnlyRootFilesystem") is not True:
        yield "may write to its image"
    if context.get("capabilities") != {"drop": ["ALL"]}:
        yield "keeps capabilities"
    if context.get("privileged"):
        yield "is privileged"
    if context.get("runAsUser") == 0 or context.get("runAsNonRoot") is False:
        yield "runs as root"


def _ray_problems(one: Manifest) -> Iterator[str]:
    spec = kuberay.cluster_spec(one)
    if spec is None:
        return
    if spec.get("authOptions", {}).get("mode") != "token":
        yield "anybody who reaches the head may run code (authOptions.mode)"
    elif tuple(map(int, spec.get("rayVersion", "0.0.0").split("."))) < (2, 52, 0):
        yield "rayVersion is older than token authentication (2.52)"
    if spec.get("enableInTreeAutoscaling") is not True:
        yield "no autoscaling"
    yield from (
        f"autoscaler: {problem}" for problem in _confinement(spec["autoscalerOptions"].get("securityContext", {}))
    )
    if "limits" not in spec["autoscalerOptions"].get("resources", {}):
        yield "autoscaler: no limits"
    if spec["headGroupSpec"]["rayStartParams"].get("num-cpus") != "0":
        yield "pods of the tournament could crowd out the orchestrator on the head (num-cpus)"
    for group in spec.get("workerGroupSpecs", []):
        if group["minReplicas"] != 0:
            yield f"{group['groupName']}: costs while idle (minReplicas)"
        if group["template"]["spec"].get("restartPolicy") != "Never":
            yield f"{group['groupName']}: a restarted container would be taken for another Ray node (restartPolicy)"
        limits = group["template"]["spec"]["containers"][0].get("resources", {}).get("limits", {})
        if "nvidia.com/gpu" in limits:
            tolerated = {toleration.get("key") for toleration in group["template"]["spec"].get("tolerations", [])}
            if "nvidia.com/gpu" not in tolerated:
                yield f"{group['groupName']}: cannot be placed on a GPU node (tolerations)"
            if not group["template"]["spec"]["containers"][0]["image"].endswith(":cuda"):
                yield f"{group['groupName']}: asks for a GPU with an image that has no CUDA"


# --- all together ----------------------------------------------------------------------------------------------


def matches(selector: Manifest, labels: dict[str, str]) -> bool:
    """Does a label selector choose these labels?"""
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for rule in selector.get("matchExpressions", []):
        inside = labels.get(rule["key"]) in rule.get("values", [])
        if {"In": inside, "NotIn": not inside, "Exists": rule["key"] in labels}[rule["operator"]] is False:
            return False
    return True


def allowed(manifests: list[Manifest], source: dict[str, str], target: dict[str, str], port: int) -> bool:
    """Do the network policies let pods with `source` labels reach `port` of those with `target` labels?"""
    policies = [one["spec"] for one in manifests if one["kind"] == "NetworkPolicy"]

    def open_for(direction: str, pod: dict[str, str], peer: dict[str, str]) -> bool:
        own = [p for p in policies if matches(p["podSelector"], pod) and direction.capitalize() in p["policyTypes"]]
        if not own:
            return True  # no policy means no rule
        key = "from" if direction == "ingress" else "to"
        return any(
            any(
                "podSelector" in one and "namespaceSelector" not in one and matches(one["podSelector"], peer)
                for one in rule[key]
            )
            and any(p["port"] <= port <= p.get("endPort", p["port"]) for p in rule["ports"])
            for policy in own
            for rule in policy.get(direction, [])
        )

    return open_for("egress", source, target) and open_for("ingress", target, source)


def _together(manifests: list[Manifest]) -> Iterator[str]:
    by_kind: dict[str, list[Manifest]] = {}
    for one in manifests:
        by_kind.setdefault(one["kind"], []).append(one)
    names = {(one["kind"], one["metadata"]["name"]) for one in manifests}
    if len(names) != len(manifests):
        yield "two manifests of one kind have the same name"
    for one in manifests:
        if one["kind"] != "Namespace" and one["metadata"].get("namespace") != "fintrader":
            yield f"{one['kind']}/{one['metadata']['name']} lies in another namespace"
    enforced = by_kind.get("Namespace", [{}])[0].get("metadata", {}).get("labels", {})
    if enforced.get("pod-security.kubernetes.io/enforce") != "restricted":
        yield "the namespace does not enforce the restricted pod security standard"
    deny = [p["spec"] for p in by_kind.get("NetworkPolicy", []) if p["spec"]["podSelector"] == {}]
    if not any(
        set(p["policyTypes"]) == {"Ingress", "Egress"} and not p.get("ingress") and not p.get("egress") for p in deny
    ):
        yield "no policy denies everything by default"
    for one in manifests:
        for where, template in templates(one):
            yield from _references(f"{one['kind']}/{one['metadata']['name']}: {where}", template, names)
    pods = [template for one in manifests for _, template in templates(one)]
    for one in [*by_kind.get("PodDisruptionBudget", []), *by_kind.get("Service", [])]:
        selector = one["spec"]["selector"]
        selector = selector if one["kind"] == "PodDisruptionBudget" else {"matchLabels": selector}
        if not any(matches(selector, pod["metadata"]["labels"]) for pod in pods):
            yield f"{one['kind']}/{one['metadata']['name']} selects no pod"
    for pod in pods:
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        budgets = [
            b
            for b in by_kind.get("PodDisruptionBudget", [])
            if matches(b["spec"]["selector"], pod["metadata"]["labels"])
        ]
        if component in ("app", "orchestrator") and len(budgets) != 1:
            yield f"{component} has {len(budgets)} disruption budgets"
    text = json.dumps(manifests)
    if "AKIA" in text or "BEGIN PRIVATE KEY" in text or "BEGIN RSA" in text:
        yield "there is a key in it"


def _references(where: str, template: Manifest, names: set[tuple[str, str]]) -> Iterator[str]:
    """Everything a pod refers to is there, except secrets, which are made by hand."""
    spec = template["spec"]
    if ("ServiceAccount", spec["serviceAccountName"]) not in names:
        yield f"{where}: no service account {spec['serviceAccountName']}"
    for volume in spec.get("volumes", []):
        claim = volume.get("persistentVolumeClaim", {}).get("claimName")
        if claim and ("PersistentVolumeClaim", claim) not in names:
            yield f"{where}: no claim {claim}"
    for container in spec["containers"]:
        for variable in container.get("env", []):
            source = variable.get("valueFrom", {}).get("configMapKeyRef")
            if source and ("ConfigMap", source["name"]) not in names:
                yield f"{where}: no settings {source['name']}"
