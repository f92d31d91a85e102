"""What `kubectl kustomize` makes of a folder, and what the manifests then say.

Rendered are the parts of kustomize that configs/kubernetes uses: resources, JSON patches (RFC 6902) with a target,
images and namespace. Anything else is an error, so that no manifest quietly means something that no test has seen.
Where kubectl is at hand a test compares the two.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
KNOWN = {"apiVersion", "kind", "namespace", "resources", "patches", "images"}
CLUSTER_WIDE = {"Namespace"}


def render(folder: Path) -> list[Manifest]:
    """All manifests of a kustomization."""
    settings = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = set(settings) - KNOWN
    if unknown:
        raise ValueError(f"{folder}: {sorted(unknown)} is not rendered here")
    found: list[Manifest] = []
    for name in settings["resources"]:
        path = (folder / name).resolve()
        if path.is_dir():
            found += render(path)
        else:
            found += [one for one in yaml.safe_load_all(path.read_text()) if one]
    for rule in settings.get("patches", []):
        chosen = [one for one in found if _meant(one, rule["target"])]
        if not chosen:
            raise ValueError(f"{folder}: no resource is {rule['target']}")
        for one in chosen:
            for operation in yaml.safe_load(rule["patch"]):
                patch(one, operation)
    for image in settings.get("images", []):
        for one in found:
            _rename(one, image["name"], image["newName"])
    for one in found:
        if "namespace" in settings and one["kind"] not in CLUSTER_WIDE:
            one["metadata"]["namespace"] = settings["namespace"]
    return found


def _meant(one: Manifest, target: dict[str, str]) -> bool:
    return one["kind"] == target["kind"] and one["metadata"]["name"] == target.get("name", one["metadata"]["name"])


def patch(document: Any, operation: dict[str, Any]) -> None:
    """One operation of RFC 6902: add, replace, remove or test."""
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    at = document
    for part in path:
        at = at[int(part)] if isinstance(at, list) else at[part]
    key: Any = int(last) if isinstance(at, list) and last != "-" else last
    value = copy.deepcopy(operation.get("value"))
    match operation["op"]:
        case "add" if isinstance(at, list):
            at.insert(len(at) if key == "-" else key, value)
        case "add":
            at[key] = value
        case "replace":
            at[key]  # it must be there
            at[key] = value
        case "remove":
            del at[key]
        case "test":
            if at[key] != value:
                raise ValueError(f"{operation['path']} is {at[key]!r}, not {value!r}")
        case other:
            raise ValueError(f"unknown operation {other}")


def _rename(node: Any, name: str, new: str) -> None:
    """Images of all containers at any depth; the tag stays."""
    if isinstance(node, list):
        for below in node:
            _rename(below, name, new)
    elif isinstance(node, dict):
        for key, below in node.items():
            if key in ("containers", "initContainers"):
                for container in below:
                    repository, colon, tag = container["image"].partition(":")
                    if repository == name:
                        container["image"] = new + colon + tag
            _rename(below, name, new)


def cluster_spec(manifest: Manifest) -> Manifest:
    """The Ray cluster of a RayCluster or a RayJob."""
    spec: Manifest = manifest["spec"]
    return spec if manifest["kind"] == "RayCluster" else spec["rayClusterSpec"]


def templates(manifest: Manifest) -> Iterator[tuple[str, Manifest]]:
    """Every pod template of a manifest, by where it stands."""
    if manifest["kind"] in ("RayCluster", "RayJob"):
        spec = cluster_spec(manifest)
        yield "head", spec["headGroupSpec"]["template"]
        for group in spec["workerGroupSpecs"]:
            yield group["groupName"], group["template"]
    elif manifest["kind"] in ("Deployment", "Job"):
        yield "pod", manifest["spec"]["template"]


# --- labels and networks ---------------------------------------------------------------------------------------


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
