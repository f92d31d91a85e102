import copy
import json
import re
import shlex
import shutil
import string
import subprocess
from collections import Counter
from functools import lru_cache

import pytest
import yaml

from fintrader.tournament.prometheus import CATALOGUE
from tests import ROOT
from tests.engines.manifests import CLUSTER_WIDE, cluster_spec, matches, render, templates
from tests.quick import slow_but

kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="kubernetes-validate is missing: pip install '.[dev]'"
)
KUBERNETES = ROOT / "configs" / "kubernetes"
OVERLAYS = sorted(path.name for path in (KUBERNETES / "overlays").iterdir())
VERSIONS = ("1.30", "1.37")
"""Kubernetes versions every manifest must be valid for: an old one still in use, and the newest
known."""
UID = 10001
RAY = ("RayCluster", "RayJob")
SUSPICIOUS = re.compile(r"(?i)(secret|token|password|passwd|credential|api[-_]?key|access[-_]?key)")
COMPONENT = "app.kubernetes.io/component"
CONTAINER_FIELDS = ("resources", "securityContext", "env", "envFrom", "volumeMounts")
"""What a container's own schema knows of KubeRay's `autoscalerOptions`."""
every_overlay = pytest.mark.parametrize("name", OVERLAYS)
every_ray_overlay = pytest.mark.parametrize(
    "name", [name for name in OVERLAYS if name.startswith("ray-")]
)


@lru_cache
def overlay(name):
    """The rendered manifests of an overlay, for all tests; nobody may change them."""
    return render(KUBERNETES / "overlays" / name)


def one(manifests, kind, name=""):
    (found,) = [
        m for m in manifests if m["kind"] == kind and (not name or m["metadata"]["name"] == name)
    ]
    return found


def test_every_file_belongs_to_an_overlay():
    """No manifest lies around that no test renders."""
    used = set()

    def follow(folder):
        for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
            path = (folder / name).resolve()
            follow(path) if path.is_dir() else used.add(path)

    for name in OVERLAYS:
        follow(KUBERNETES / "overlays" / name)
    follow(KUBERNETES / "monitoring")
    files = {
        path.resolve() for path in KUBERNETES.rglob("*.yaml") if path.name != "kustomization.yaml"
    }
    assert files == used


@pytest.mark.slow
@every_overlay
def test_kubectl_renders_the_same(name):
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed, so only our own rendering was checked")
    words = ["kubectl", "kustomize", str(KUBERNETES / "overlays" / name)]
    rendered = yaml.safe_load_all(
        subprocess.run(words, capture_output=True, text=True, check=True).stdout
    )
    theirs, ours = (
        sorted(m, key=lambda m: (m["kind"], m["metadata"]["name"]))
        for m in (rendered, overlay(name))
    )
    assert theirs == ours


def pods(name):
    """Every pod template of an overlay, by where it stands."""
    return [
        (f"{m['kind']} {where}", template)
        for m in overlay(name)
        for where, template in templates(m)
    ]


def containers(name):
    found = [
        (f"{where} {container['name']}", container)
        for where, template in pods(name)
        for container in [
            *template["spec"]["containers"],
            *template["spec"].get("initContainers", []),
        ]
    ]
    assert found
    return found


def autoscaler(name):
    """The container that KubeRay adds to the head."""
    return [(name, cluster_spec(m)["autoscalerOptions"]) for m in overlay(name) if m["kind"] in RAY]


@pytest.mark.parametrize("name", slow_but(0, 4, 8, every=OVERLAYS))
def test_every_manifest_is_valid(name):
    """By Kubernetes' own schemas, an old version's and the newest one's; of Ray's resources, the
    pods in them."""
    for manifest in overlay(name):
        parts = [manifest]
        if manifest["kind"] in RAY:
            assert manifest["apiVersion"] == "ray.io/v1"
            templates_ = [template for _, template in templates(manifest)]
            fields = {
                k: v
                for k, v in cluster_spec(manifest)["autoscalerOptions"].items()
                if k in CONTAINER_FIELDS
            }
            templates_.append(
                {"spec": {"containers": [{"name": "autoscaler", "image": "ray", **fields}]}}
            )
            head = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "part"}}
            parts = [{**head, "template": template} for template in templates_]
        for part in parts:
            for version in VERSIONS:
                validate(json.dumps(part, sort_keys=True), version)


@lru_cache(maxsize=1000)
def validate(manifest, version):
    """Overlays share most of their manifests, and a look at the schemas takes a while."""
    kubernetes_validate.validate(json.loads(manifest), version, strict=True)


@every_overlay
def test_no_pod_is_root_or_sees_its_node(name):
    for where, template in pods(name):
        spec = template["spec"]
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True, where
        assert {context["runAsUser"], context["runAsGroup"], context["fsGroup"]} == {UID}, where
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}, where
        assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & set(spec), where
        assert not [volume for volume in spec["volumes"] if "hostPath" in volume], where
        assert "automountServiceAccountToken" in spec, where
    for where, container in [*containers(name), *autoscaler(name)]:
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False, where
        assert context["readOnlyRootFilesystem"] is True, where
        assert context["capabilities"] == {"drop": ["ALL"]}, where
        assert not context.get("privileged"), where
        assert context.get("runAsUser") != 0, where
        assert context.get("runAsNonRoot") is not False, where
    enforced = one(overlay(name), "Namespace")["metadata"]["labels"]
    assert enforced["pod-security.kubernetes.io/enforce"] == "restricted"


@every_overlay
def test_everything_is_bounded_watched_and_of_a_version(name):
    for where, container in containers(name):
        ports = {port["name"] for port in container["ports"]}
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container[probe]["httpGet"]["port"] in ports, (where, probe)
        assert container["image"].partition(":")[2] not in ("", "latest"), where
        assert "imagePullPolicy" in container, where
        resources = container["resources"]
        for kind in ("requests", "limits"):
            assert {"cpu", "memory", "ephemeral-storage"} <= set(resources[kind]), where
        if (
            container["name"] != "app"
        ):  # the others must never be killed for memory that was lent to them
            assert resources["requests"]["memory"] == resources["limits"]["memory"], where
        assert "/tmp" in {mount["mountPath"] for mount in container["volumeMounts"]}, where
    for where, template in pods(name):
        for volume in template["spec"]["volumes"]:
            assert "emptyDir" not in volume or "sizeLimit" in volume["emptyDir"], where
    for where, options in autoscaler(name):
        assert "limits" in options["resources"], where
    for manifest in overlay(name):
        assert manifest["kind"] != "Job" or manifest["spec"]["activeDeadlineSeconds"] > 0


@every_overlay
def test_no_secret_lies_in_the_open_and_nothing_is_reachable_that_need_not_be(name):
    manifests = overlay(name)
    deny = one(manifests, "NetworkPolicy", "deny-all")["spec"]
    assert deny == {"podSelector": {}, "policyTypes": deny["policyTypes"]}
    assert set(deny["policyTypes"]) == {"Ingress", "Egress"}
    assert not re.search(r"AKIA|BEGIN (RSA |EC )?PRIVATE KEY", json.dumps(manifests))
    for manifest in manifests:
        assert manifest["kind"] != "Secret", (
            "made by hand or by a vault, never from a file of this repository"
        )
        assert manifest["kind"] != "Ingress" or manifest["spec"]["tls"]
        assert (
            manifest["kind"] != "Service"
            or manifest["spec"].get("type", "ClusterIP") == "ClusterIP"
        )
        if manifest["kind"] == "ConfigMap":
            assert not [key for key in manifest["data"] if SUSPICIOUS.search(key)]
    for where, container in containers(name):
        for variable in container.get("env", []):
            assert "valueFrom" in variable or not SUSPICIOUS.search(variable["name"]), where
        for word in [*container.get("args", []), *container.get("command", [])]:
            assert "=" not in word or not SUSPICIOUS.search(word), where


@every_overlay
def test_manifests_fit_together(name):
    manifests = overlay(name)
    names = [(m["kind"], m["metadata"]["name"]) for m in manifests]
    assert len(set(names)) == len(names)
    for manifest in manifests:
        is_wide = manifest["kind"] in CLUSTER_WIDE
        assert manifest["metadata"].get("namespace") == (None if is_wide else "fintrader")
    for where, template in pods(name):
        spec = template["spec"]
        wanted = [
            ("ServiceAccount", spec["serviceAccountName"]),
            ("PriorityClass", spec["priorityClassName"]),
        ]
        claims = [
            v["persistentVolumeClaim"]["claimName"]
            for v in spec["volumes"]
            if "persistentVolumeClaim" in v
        ]
        wanted += [("PersistentVolumeClaim", claim) for claim in claims]
        for container in spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= {
                v["name"] for v in spec["volumes"]
            }, where
            sources = [variable.get("valueFrom", {}) for variable in container.get("env", [])]
            wanted += [
                ("ConfigMap", s["configMapKeyRef"]["name"])
                for s in sources
                if "configMapKeyRef" in s
            ]
        assert set(wanted) <= set(names), where
    labels = [template["metadata"]["labels"] for _, template in pods(name)]
    budgets = [m["spec"]["selector"] for m in manifests if m["kind"] == "PodDisruptionBudget"]
    services = [{"matchLabels": m["spec"]["selector"]} for m in manifests if m["kind"] == "Service"]
    for selector in [*budgets, *services]:
        assert any(matches(selector, found) for found in labels), selector
    for found in labels:
        if found[COMPONENT] in ("app", "orchestrator"):
            assert sum(matches(budget, found) for budget in budgets) == 1, found[COMPONENT]


@every_overlay
def test_a_worker_goes_first_and_the_quota_holds_all_that_may_run(name):
    """Every pod there may be at once, of each kind, fits; the autoscaler runs in the head's pod."""
    manifests = overlay(name)
    ranks = {m["metadata"]["name"]: m for m in manifests if m["kind"] == "PriorityClass"}
    for where, template in pods(name):
        rank = ranks[template["spec"]["priorityClassName"]]
        is_worker = template["metadata"]["labels"][COMPONENT] == "worker"
        assert (rank["value"] < 1000) == is_worker, where
        assert rank["preemptionPolicy"] == "Never"
    needed = Counter()
    for manifest in manifests:
        counts = {where: 1 for where, _ in templates(manifest)}
        if manifest["kind"] in RAY:
            for group in cluster_spec(manifest)["workerGroupSpecs"]:
                counts[group["groupName"]] = group["maxReplicas"]
        for where, template in templates(manifest):
            needed["pods"] += counts[where]
            for container in template["spec"]["containers"]:
                for resource in ("cpu", "memory", "nvidia.com/gpu"):
                    amount = parse_quantity(container["resources"]["requests"].get(resource, 0))
                    needed[f"requests.{resource}"] += counts[where] * amount
    hard = one(manifests, "ResourceQuota")["spec"]["hard"]
    assert all(amount <= parse_quantity(hard[kind]) for kind, amount in needed.items()), needed


def parse_quantity(text):
    number, unit = re.fullmatch(r"([\d.]+)(m|Mi|Gi)?", str(text)).groups()
    return float(number) * {None: 1, "m": 1e-3, "Mi": 2**20, "Gi": 2**30}[unit]


def test_monitors_find_pods_and_rules_name_series_that_the_orchestrator_serves():
    manifests = render(KUBERNETES / "monitoring")
    for manifest in manifests:
        assert manifest["apiVersion"] == "monitoring.coreos.com/v1"
        assert manifest["metadata"]["namespace"] == "fintrader"
    found = [
        (template["metadata"]["labels"], {port["name"] for port in container["ports"]}, where)
        for name in OVERLAYS
        for where, template in pods(name)
        for container in template["spec"]["containers"]
    ]
    monitor = one(manifests, "PodMonitor", "fintrader-orchestrator")["spec"]
    scraped = [ports for labels, ports, _ in found if matches(monitor["selector"], labels)]
    assert scraped
    assert all(monitor["podMetricsEndpoints"][0]["port"] in ports for ports in scraped)
    ray = one(manifests, "PodMonitor", "fintrader-ray")["spec"]["podMetricsEndpoints"][0]
    nodes = [ports for _, ports, where in found if where.startswith(RAY)]
    assert nodes
    assert all(ray["port"] in ports for ports in nodes)
    groups = one(manifests, "PrometheusRule", "fintrader-tournament")["spec"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    page = (ROOT / "docs" / "observability.md").read_text()
    for rule in rules:
        assert f"`{rule['expr']}`" in page
        for series in re.findall(r"fintrader_\w+", rule["expr"]):
            assert series.removesuffix("_total") in CATALOGUE, series


@every_ray_overlay
def test_a_ray_cluster_is_closed_elastic_and_costs_nothing_while_idle(name):
    """Of KubeRay's own fields, those that our manifests rely on (ray.io/v1, KubeRay 1.5 and
    newer)."""
    (manifest,) = [m for m in overlay(name) if m["kind"] in RAY]
    spec = cluster_spec(manifest)
    assert spec["authOptions"] == {"mode": "token"}, (
        "else anybody who reaches the head may run code"
    )
    assert tuple(map(int, spec["rayVersion"].split("."))) >= (2, 52, 0), (
        "the first with token authentication"
    )
    assert spec["enableInTreeAutoscaling"] is True
    params = spec["headGroupSpec"]["rayStartParams"]
    assert params["num-cpus"] == "0", "pods of the tournament would crowd out the orchestrator"
    for group in spec["workerGroupSpecs"]:
        assert group["minReplicas"] == 0 <= group.get("replicas", 0) <= group["maxReplicas"]
        assert all(
            isinstance(value, str) for value in {**params, **group["rayStartParams"]}.values()
        )
        pod = group["template"]["spec"]
        assert pod["restartPolicy"] == "Never", (
            "a restarted container would be taken for another Ray node"
        )
        if "nvidia.com/gpu" in pod["containers"][0]["resources"]["limits"]:
            assert "nvidia.com/gpu" in {toleration["key"] for toleration in pod["tolerations"]}
            assert pod["containers"][0]["image"].endswith(":cuda")
    if manifest["kind"] == "RayJob":
        job = manifest["spec"]
        if name == "ray-gpu":
            assert spec == cluster_spec(one(overlay("ray-cluster"), "RayCluster")), (
                "one cluster, whoever starts it"
            )
        assert job["submissionMode"] == "HTTPMode", (
            "the head's network is closed to everybody but the operator"
        )
        assert job["shutdownAfterJobFinishes"] is True
        assert job["activeDeadlineSeconds"] > 0


@every_ray_overlay
def test_ray_reads_the_cluster_as_it_is_meant(name):
    """Ray's own autoscaler turns the resource into node types; this is what it will add and
    remove."""
    reader = pytest.importorskip(
        "ray.autoscaler._private.kuberay.autoscaling_config", reason="ray is not installed"
    )
    manifests = overlay(name)
    (manifest,) = [m for m in manifests if m["kind"] in RAY]
    resource = {
        "metadata": {"name": "fintrader", "namespace": "fintrader"},
        "spec": cluster_spec(manifest),
    }
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
        assert types["gpu"]["max_workers"] == 80, "the paper's largest run"
    assert config["idle_timeout_minutes"] == 2


def commands(manifests):
    """Every `fintrader` command line in a set of manifests, with its variables filled in."""
    pods = [pod["spec"] for m in manifests for _, pod in templates(m)]
    found = [
        container["args"] for pod in pods for container in pod["containers"] if "args" in container
    ]
    for m in manifests:
        if m["kind"] == "RayJob":
            line = string.Template(m["spec"]["entrypoint"]).substitute(
                one(manifests, "ConfigMap")["data"]
            )
            program, *words = shlex.split(line)
            assert program == "fintrader"
            found.append(words)
    return found


@every_overlay
def test_every_command_in_a_manifest_is_one_of_ours(name, monkeypatch):
    """The real command line parses it: each option exists, each value is allowed, each
    configuration is there."""
    from fintrader.cli.options import parse, parse_config
    from fintrader.cli.start import AppSettings

    monkeypatch.chdir(ROOT)
    lines = commands(overlay(name))
    assert lines
    for command, *words in lines:
        if command == "app":
            settings = parse(AppSettings(), words, "app")
            assert (settings.host, settings.port) == ("0.0.0.0", 8501)
        else:
            config = parse_config(command, words)
            assert config.operations.metrics == "0.0.0.0:9108"
            assert str(config.runs_dir).startswith("/data")
            assert str(config.cache).startswith("/data")
            if name.startswith("ray-"):
                assert config.launcher.kind == "ray"
                assert config.store == one(overlay(name), "ConfigMap")["data"]["FINTRADER_STORE"]
                assert config.launcher.gpus == (1 if "gpu" in name else 0), (
                    "there may be no GPU yet when the run starts"
                )


def test_images_are_those_of_the_dockerfile():
    dockerfile = (ROOT / "Dockerfile").read_text()
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.M))
    for name in OVERLAYS:
        for image in re.findall(r'"image": "([^"]+)"', json.dumps(overlay(name))):
            repository, _, tag = image.partition(":")
            assert repository == "registry.example.com/fintrader"
            assert tag in targets
    assert f"USER {UID}:{UID}" in dockerfile


def test_a_mistake_in_the_configuration_is_not_tried_twenty_times():
    rules = one(overlay("one-machine-cpu"), "Job")["spec"]["podFailurePolicy"]["rules"]
    assert rules[0]["onExitCodes"]["values"] == [
        2
    ]  # see tests/test_cli.py: a user's mistake is status 2
    assert rules[1] == {
        "action": "Ignore",
        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
    }


def test_the_app_knows_the_name_of_its_ingress_and_may_be_given_a_token():
    from fintrader_app.guard import TOKEN_VARIABLE

    manifests = overlay("app-ingress")
    container = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"][0]
    (rule,) = one(manifests, "Ingress")["spec"]["rules"]
    assert f"--allow-host={rule['host']}" in container["args"]
    assert "--no-token" not in container["args"]
    (token,) = [value for value in container["env"] if value["name"] == TOKEN_VARIABLE]
    assert token["valueFrom"]["secretKeyRef"]["optional"] is True  # else the app makes one
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["path"] == "/_stcore/health"  # open without the token
