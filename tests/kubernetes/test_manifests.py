"""The manifests of configs/kubernetes: valid, confined, consistent; and a wrong one is caught."""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import string
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes import kuberay
from tests.kubernetes.policy import UID, allowed, problems, schema_problems, templates
from tests.kubernetes.render import patch, render

pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing: pip install '.[dev]'")
ROOT = Path(__file__).resolve().parents[2]
KUBERNETES = ROOT / "configs" / "kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
Manifests = list[dict[str, Any]]


def overlay(name: str) -> Manifests:
    return render(KUBERNETES / "overlays" / name)


def one(manifests: Manifests, kind: str, name: str = "") -> dict[str, Any]:
    (found,) = [m for m in manifests if m["kind"] == kind and (not name or m["metadata"]["name"] == name)]
    return found


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_overlay_is_well(name: str) -> None:
    assert problems(overlay(name)) == []


def test_every_file_belongs_to_an_overlay() -> None:
    """No manifest lies around that no test renders."""
    used: set[Path] = set()

    def follow(folder: Path) -> None:
        for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
            path = (folder / name).resolve()
            follow(path) if path.is_dir() else used.add(path)

    for name in OVERLAYS:
        follow(KUBERNETES / "overlays" / name)
    files = {path.resolve() for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml"}
    assert files == used


@pytest.mark.parametrize("name", OVERLAYS)
def test_kubectl_renders_the_same(name: str) -> None:
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed, so only our own rendering was checked")
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES / "overlays" / name)], capture_output=True, text=True, check=True
    )

    def sort(manifests: Manifests) -> Manifests:
        return sorted(manifests, key=lambda m: (m["kind"], m["metadata"]["name"]))

    assert sort(list(yaml.safe_load_all(done.stdout))) == sort(overlay(name))


# --- a wrong manifest fails ------------------------------------------------------------------------------------

RAYJOB, JOB, APP = "/rayjob", "/job", "/app"
HEAD = f"{RAYJOB}/spec/rayClusterSpec/headGroupSpec"
GPU = f"{RAYJOB}/spec/rayClusterSpec/workerGroupSpecs/1"
WORKER = f"{GPU}/template/spec"
RUN = f"{JOB}/spec/template/spec"
SECRET = [{"name": "RAY_AUTH_TOKEN", "value": "hunter2"}]

MISTAKES: list[tuple[str, str, Any, str]] = [
    # unknown fields and wrong types, at every depth
    ("add", f"{RUN}/containers/0/imagePolicy", "Always", "imagePolicy"),
    ("add", f"{JOB}/spec/retries", 3, "retries"),
    ("replace", f"{JOB}/spec/backoffLimit", "twenty", "backoffLimit"),
    ("add", f"{WORKER}/containers/0/resource", {}, "resource"),
    ("add", f"{RAYJOB}/spec/entryPoint", "x", "entryPoint"),
    ("add", f"{RAYJOB}/spec/rayClusterSpec/autoscaling", True, "autoscaling"),
    ("replace", f"{GPU}/maxReplicas", "16", "maxReplicas"),
    ("replace", f"{HEAD}/rayStartParams/num-cpus", 0, "num-cpus"),
    ("replace", f"{RAYJOB}/spec/submissionMode", "Http", "submissionMode"),
    ("replace", f"{HEAD}/template/spec/containers/0/ports/0/containerPort", "6379", "containerPort"),
    ("replace", f"{WORKER}/tolerations", {"key": "nvidia.com/gpu"}, "tolerations"),
    ("add", f"{RAYJOB}/spec/rayClusterSpec/autoscalerOptions/volumeMounts/0/readonly", True, "readonly"),
    ("remove", f"{WORKER}/containers", None, "containers"),
    ("remove", f"{RAYJOB}/spec/entrypoint", None, "entrypoint"),
    ("replace", f"{RAYJOB}/apiVersion", "ray.io/v2", "apiVersion"),
    ("replace", f"{JOB}/apiVersion", "batch/v9", "schema"),
    # root, privileges, the node
    ("replace", f"{RUN}/securityContext/runAsNonRoot", False, "may run as root"),
    ("remove", f"{WORKER}/securityContext", None, "may run as root"),
    ("add", f"{RUN}/containers/0/securityContext/runAsUser", 0, "runs as root"),
    ("replace", f"{HEAD}/template/spec/containers/0/securityContext/readOnlyRootFilesystem", False, "its image"),
    ("remove", f"{WORKER}/containers/0/securityContext/capabilities", None, "keeps capabilities"),
    ("replace", f"{RUN}/securityContext/seccompProfile/type", "Unconfined", "seccomp"),
    ("add", f"{RUN}/hostNetwork", True, "hostNetwork"),
    ("add", f"{WORKER}/volumes/-", {"name": "root", "hostPath": {"path": "/"}}, "node's own disk"),
    ("remove", f"{RAYJOB}/spec/rayClusterSpec/autoscalerOptions/securityContext", None, "autoscaler: may gain"),
    ("remove", f"{RUN}/serviceAccountName", None, "default service account"),
    # bounds
    ("remove", f"{RUN}/containers/0/resources/limits/memory", None, "no limits.memory"),
    ("remove", f"{WORKER}/containers/0/resources", None, "no limits.cpu"),
    ("remove", f"{RUN}/volumes/1/emptyDir/sizeLimit", None, "no size limit"),
    ("remove", f"{JOB}/spec/activeDeadlineSeconds", None, "no deadline"),
    ("replace", f"{GPU}/minReplicas", 1, "minReplicas"),
    ("replace", f"{RAYJOB}/spec/rayClusterSpec/enableInTreeAutoscaling", False, "no autoscaling"),
    ("remove", f"{HEAD}/rayStartParams/num-cpus", None, "crowd out the orchestrator"),
    # probes, images
    ("remove", f"{RUN}/containers/0/livenessProbe", None, "no livenessProbe"),
    ("replace", f"{WORKER}/containers/0/readinessProbe/httpGet/port", "web", "which the container does not have"),
    ("replace", f"{RUN}/containers/0/image", "registry.example.com/fintrader", "names no version"),
    ("replace", f"{WORKER}/containers/0/image", "registry.example.com/fintrader:cpu", "no CUDA"),
    ("replace", f"{WORKER}/tolerations", [], "cannot be placed on a GPU node"),
    ("replace", f"{WORKER}/restartPolicy", "Always", "another Ray node"),
    # secrets
    ("replace", f"{HEAD}/template/spec/containers/0/env", SECRET, "holds a secret in the open"),
    ("add", f"{RUN}/containers/0/args/-", "--password=hunter2", "holds a secret in the open"),
    ("replace", f"{RAYJOB}/spec/rayClusterSpec/authOptions/mode", "disabled", "anybody who reaches the head"),
    ("remove", f"{RAYJOB}/spec/rayClusterSpec/authOptions", None, "anybody who reaches the head"),
    ("replace", f"{RAYJOB}/spec/rayClusterSpec/rayVersion", "2.40.0", "older than token authentication"),
    # what does not fit together
    ("replace", f"{RUN}/volumes/0/persistentVolumeClaim/claimName", "other", "no claim other"),
    ("replace", f"{RUN}/containers/0/env/0/valueFrom/configMapKeyRef/name", "other", "no settings other"),
    ("replace", f"{WORKER}/serviceAccountName", "other", "no service account other"),
    ("replace", f"{APP}/spec/template/metadata/labels/app.kubernetes.io~1component", "web", "selects no pod"),
    ("replace", f"{JOB}/metadata/namespace", "default", "another namespace"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "path", "value", "expected"), MISTAKES, ids=[f"{m[0]}-{m[1].split('/', 2)[2]}" for m in MISTAKES]
)
def test_a_wrong_manifest_is_caught(operation: str, path: str, value: Any, expected: str) -> None:
    _, short, rest = path.split("/", 2)
    kind = {"rayjob": "RayJob", "job": "Job", "app": "Deployment"}[short]
    manifests = overlay("ray-gpu" if short == "rayjob" else "one-machine-cpu")
    before = copy.deepcopy(manifests)
    patch(one(manifests, kind), {"op": operation, "path": f"/{rest}", "value": value})
    assert manifests != before
    found = problems(manifests)
    assert any(expected in problem for problem in found), found


def test_a_whole_wrong_resource_is_caught() -> None:
    base = overlay("app-ingress")
    metadata = {"name": "s", "namespace": "fintrader"}
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": {"a": "Yg=="}}
    assert any("made by hand" in problem for problem in problems([*base, secret]))
    settings = copy.deepcopy(base)
    one(settings, "ConfigMap")["data"]["AWS_SECRET_ACCESS_KEY"] = "x"
    assert any("looks like a secret" in problem for problem in problems(settings))
    plain = copy.deepcopy(base)
    del one(plain, "Ingress")["spec"]["tls"]
    assert any("no TLS" in problem for problem in problems(plain))
    open_wide = copy.deepcopy(base)
    one(open_wide, "Service")["spec"]["type"] = "LoadBalancer"
    assert any("opened to the world" in problem for problem in problems(open_wide))
    assert any("denies everything" in p for p in problems([m for m in base if m["metadata"]["name"] != "deny-all"]))
    assert any("disruption budgets" in p for p in problems([m for m in base if m["kind"] != "PodDisruptionBudget"]))
    lax = copy.deepcopy(base)
    one(lax, "Namespace")["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "baseline"
    assert any("pod security standard" in problem for problem in problems(lax))
    assert list(schema_problems({"apiVersion": "v1", "kind": "Sevice", "metadata": {"name": "x"}}))


def test_the_renderer_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    def kustomization(**more: Any) -> Path:
        (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": ["a.yaml"], **more}))
        return tmp_path

    (tmp_path / "a.yaml").write_text("kind: Job\nmetadata: {name: a}\nspec: {x: [1, 2]}\n")
    assert render(kustomization())[0]["spec"] == {"x": [1, 2]}
    with pytest.raises(ValueError, match="is not rendered here"):
        render(kustomization(commonLabels={"a": "b"}))
    with pytest.raises(ValueError, match="no resource is"):
        render(kustomization(patches=[{"target": {"kind": "Jobb"}, "patch": "[]"}]))
    with pytest.raises(ValueError, match="not 3"):
        wrong = "[{op: test, path: /spec/x/0, value: 3}]"
        render(kustomization(patches=[{"target": {"kind": "Job"}, "patch": wrong}]))
    with pytest.raises(KeyError):
        render(
            kustomization(patches=[{"target": {"kind": "Job"}, "patch": "[{op: replace, path: /spec/y, value: 3}]"}])
        )


# --- what the manifests say is so ------------------------------------------------------------------------------


def test_the_job_and_the_standing_cluster_are_one_cluster() -> None:
    job, cluster = one(overlay("ray-gpu"), "RayJob"), one(overlay("ray-cluster"), "RayCluster")
    assert kuberay.cluster_spec(job) == kuberay.cluster_spec(cluster)


@pytest.mark.parametrize("name", [name for name in OVERLAYS if name.startswith("ray-")])
def test_ray_reads_the_cluster_as_it_is_meant(name: str) -> None:
    """Ray's own autoscaler turns the resource into node types; this is what it will add and remove."""
    reader = pytest.importorskip("ray.autoscaler._private.kuberay.autoscaling_config", reason="ray is not installed")
    manifests = overlay(name)
    (manifest,) = [m for m in manifests if m["kind"] in ("RayJob", "RayCluster")]
    resource = {"metadata": {"name": "fintrader", "namespace": "fintrader"}, "spec": kuberay.cluster_spec(manifest)}
    config = reader._derive_autoscaling_config_from_ray_cr(copy.deepcopy(resource))
    types = config["available_node_types"]
    assert types["headgroup"]["resources"]["CPU"] == 0
    assert (types["cpu"]["min_workers"], types["cpu"]["max_workers"]) == (0, 8)
    assert types["cpu"]["resources"]["CPU"] == 4
    assert "GPU" not in types["cpu"]["resources"]
    if name.startswith("ray-cpu"):
        assert set(types) == {"headgroup", "cpu"}
    else:
        assert types["gpu"]["resources"]["GPU"] == 1
        assert types["gpu"]["max_workers"] == (32 if "spot" in name else 16)
    assert config["idle_timeout_minutes"] == 2


def test_the_network_lets_through_what_ray_needs_and_nothing_else() -> None:
    manifests = overlay("ray-gpu")
    label = "app.kubernetes.io/component"
    head, worker, app = (
        {label: name, "app.kubernetes.io/name": "fintrader"} for name in ("orchestrator", "worker", "app")
    )
    spec = kuberay.cluster_spec(one(manifests, "RayJob"))
    assert spec is not None
    for group in [spec["headGroupSpec"], *spec["workerGroupSpecs"]]:
        params = group["rayStartParams"]
        ports = [int(value) for key, value in params.items() if key == "port" or (key.endswith("-port"))]
        assert len(ports) >= 8
        for port in [*ports, 10500]:
            assert allowed(manifests, worker, head, port), port
            assert allowed(manifests, head, worker, port), port
            assert allowed(manifests, worker, worker, port), port
    assert allowed(manifests, worker, head, 8265), "workers ask the dashboard"
    for port in (32768, 60999):  # what Linux gives to those who ask for any port
        assert allowed(manifests, worker, worker, port), "learners of a pod that spans nodes"
        for source, target in ((worker, head), (head, worker), (app, worker), (worker, app), ({}, worker)):
            assert not allowed(manifests, source, target, port)
    for port in (22, 5432, 8501, 20000):
        assert not allowed(manifests, worker, head, port), port
    for port in (6379, 8265, 10001, 52365, 9108):
        assert not allowed(manifests, app, head, port), "the app reads a disk, it talks to nobody"
        assert not allowed(manifests, {}, head, port), "a stranger's pod"
    assert not allowed(manifests, worker, app, 8501)


def commands(manifests: Manifests) -> list[list[str]]:
    """Every `fintrader` command line in a set of manifests, with its variables filled in."""
    found = [
        container["args"]
        for m in manifests
        for _, pod in templates(m)
        for container in pod["spec"]["containers"]
        if "args" in container
    ]
    for m in manifests:
        if m["kind"] == "RayJob":
            line = string.Template(m["spec"]["entrypoint"]).substitute(one(manifests, "ConfigMap")["data"])
            program, *words = shlex.split(line)
            assert program == "fintrader"
            found.append(words)
    return found


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_command_in_a_manifest_is_one_of_ours(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real command line parses it: each option exists, each value is allowed, each configuration is there."""
    from fintrader.cli.commands import AppSettings
    from fintrader.cli.options import parse, parse_config

    monkeypatch.chdir(ROOT)
    lines = commands(overlay(name))
    assert lines
    for command, *words in lines:
        if command == "app":
            settings = parse(AppSettings, AppSettings(), words, "app")
            assert (settings.host, settings.port) == ("0.0.0.0", 8501)
        else:
            config = parse_config(command, words)
            assert (config.metrics_host, config.metrics_port) == ("0.0.0.0", 9108)
            assert str(config.runs_dir).startswith("/data")
            assert str(config.cache).startswith("/data")
            if name.startswith("ray-"):
                assert config.launcher == "ray"
                assert config.store == one(overlay(name), "ConfigMap")["data"]["FINTRADER_STORE"]
                assert config.ray.gpus == (1 if "gpu" in name else 0), "there may be no GPU yet when the run starts"


def test_probes_ask_for_what_is_served() -> None:
    from fintrader.tournament.prometheus import _Handler

    manifests = overlay("one-machine-cpu")
    container = one(manifests, "Job")["spec"]["template"]["spec"]["containers"][0]
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert "/healthz" in (_Handler.do_GET.__code__.co_consts or ())
    ray = pytest.importorskip("ray", reason="ray is not installed")
    agent = (Path(ray.__file__).parent / "dashboard" / "http_server_agent.py").read_text()
    public = re.findall(r'"(/[^"]+)"', agent.partition("PUBLIC_EXACT_PATHS = [")[2].partition("]")[0])
    for m in overlay("ray-gpu"):
        if m["kind"] == "RayJob":
            for _, pod in templates(m):
                path = pod["spec"]["containers"][0]["livenessProbe"]["httpGet"]["path"]
                assert path in public, "answers without a token"


def test_images_are_those_of_the_dockerfile() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.M))
    for name in OVERLAYS:
        for image in re.findall(r'"image": "([^"]+)"', json.dumps(overlay(name))):
            repository, _, tag = image.partition(":")
            assert repository == "registry.example.com/fintrader"
            assert tag in targets
    assert f"USER {UID}:{UID}" in dockerfile


def test_a_mistake_in_the_configuration_is_not_tried_twenty_times() -> None:
    rules = one(overlay("one-machine-cpu"), "Job")["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["onExitCodes"]["values"] == [2]  # see tests/test_cli.py: a user's mistake is status 2
    assert rules[1] == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
