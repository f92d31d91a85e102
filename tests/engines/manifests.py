"""What `kubectl kustomize` makes of a folder, and what the manifests then say.

Rendered are the parts of kustomize that configs/kubernetes uses: resources, JSON patches (RFC 6902)
with a target, images and namespace. Anything else is an error, so that no manifest quietly means
something that no test has seen. Where kubectl is at hand a test compares the two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

Manifest = dict[str, Any]
KNOWN = {"apiVersion", "kind", "namespace", "resources", "patches", "images"}
CLUSTER_WIDE = {"Namespace", "PriorityClass"}


def render(folder: Path) -> list[Manifest]:
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
            jsonpatch.apply_patch(one, yaml.safe_load(rule["patch"]), in_place=True)
    for image in settings.get("images", []):
        at = rf'"image": "{re.escape(image["name"])}(?=[:"])'  # the tag stays
        found = json.loads(re.sub(at, f'"image": "{image["newName"]}', json.dumps(found)))
    for one in found:
        if "namespace" in settings and one["kind"] not in CLUSTER_WIDE:
            one["metadata"]["namespace"] = settings["namespace"]
    return found


def _meant(one: Manifest, target: dict[str, str]) -> bool:
    return one["kind"] == target["kind"] and one["metadata"]["name"] == target.get(
        "name", one["metadata"]["name"]
    )


def cluster_spec(manifest: Manifest) -> Manifest:
    """The Ray cluster of a RayCluster or a RayJob."""
    spec = manifest["spec"]
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


def matches(selector: Manifest, labels: dict[str, str]) -> bool:
    """Does a label selector (of `matchLabels` alone, else KeyError) choose these labels?"""
    return selector["matchLabels"].items() <= labels.items()
