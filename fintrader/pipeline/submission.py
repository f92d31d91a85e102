"""Start a run on another machine: as a job of a Ray cluster, or of a Kubernetes cluster.

The configuration is checked here and sent with the job, so the other machine needs no copy. The job
must be able to reach bars and results.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from fintrader.config import Settings, dump_yaml, is_url, list_shipped_configs
from fintrader.errors import ConfigError, install_command
from fintrader.pipeline.config import RunConfig
from fintrader.pipeline.inputs import list_named_files
from fintrader.yaml_text import parse_yaml

JOB_PORT = 8265
"""Port of Ray's job server, which `ray://HOST` means."""
NAMESPACE = "fintrader"
KUBECTL_SECONDS = 30
"""Patience with a cluster that does not answer."""
_FILE = "run.yaml"
_MOUNT = "/config"
_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?")


class SubmitOptions(Settings):
    """The machine to start a run on."""

    to: str | None = None
    """`ray://HOST` or the address of Ray's job server (`http://HOST:8265`); or `kubernetes`: the
    cluster of kubectl's present context, on which an overlay of configs/kubernetes was applied."""
    image: str = "fintrader:cpu"
    """Only with kubernetes: the image of the job."""


def submit(config: RunConfig, options: SubmitOptions) -> str:
    """Start the run there; return how to watch it. Raises ConfigError where the job could not
    reach its files, or the cluster refuses it."""
    if options.to is None:
        raise ConfigError("`fintrader submit` needs --to: ray://HOST, or kubernetes")
    to_ray = options.to != "kubernetes"
    if to_ray:
        _check_address(options.to)
    elif config.launcher.kind == "ray":
        raise ConfigError(
            "--to kubernetes starts a job of one machine; leave launcher.kind: ray out, or submit"
            " to the Ray cluster: --to ray://HOST"
        )
    problems = list(_find_unreachable(config, to_ray))
    if problems:
        raise ConfigError("; ".join(problems))
    if to_ray:
        return _submit_to_ray(config, options.to)
    return _submit_to_kubernetes(config, options.image)


def _check_address(address: str) -> None:
    """Raise ConfigError for an address that is no job server's, or holds a secret: the
    address is printed and kept in the shell's history."""
    parts = urlsplit(address)
    if "@" in parts.netloc or parts.query:
        raise ConfigError(
            f"--to {parts.scheme}://…: the address holds more than a host and a port; give Ray's"
            " client its credentials in RAY_JOB_HEADERS"
        )
    if parts.scheme not in ("ray", "http", "https") or not parts.hostname:
        raise ConfigError(f"--to {address}: expected ray://HOST, http://HOST:PORT or kubernetes")


def _find_unreachable(config: RunConfig, to_ray: bool) -> Iterator[str]:
    """List files that the job would not find, and results that would be lost with its folder."""
    data = config.data
    paths = {}
    if not config.is_classic and data.source.kind != "synthetic":
        paths = {
            "data.path": data.path,
            **{f"data.{k}": v for k, v in list_named_files(data).items()},
        }
    worked = None if config.is_classic else config.trading.execution
    if worked is not None:
        paths["env.execution.policy"] = worked.file
    for field, path in {**paths, "from_run": config.from_run}.items():
        if path is not None and not is_url(path) and not Path(path).is_absolute():
            yield (
                f"{field}: {path} is on this machine; give a URL, or an absolute path at which"
                " the other machine has it"
            )
    if to_ray and config.store is None and not config.runs_dir.is_absolute():
        yield (
            "runs_dir: a folder of the job's own would be lost with the job; give an absolute path"
            " on a disk that all nodes share, or set store to a URL"
        )


def _submit_to_ray(config: RunConfig, address: str) -> str:
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError:
        raise ConfigError(f"--to {address} needs Ray: {install_command('ray')}") from None
    parts = urlsplit(address)
    if parts.scheme == "ray":
        address = f"http://{parts.hostname}:{JOB_PORT}"
    command = f"fintrader run {_FILE}"
    if config.launcher.kind != "ray":
        command += " --launcher.kind ray"
    with tempfile.TemporaryDirectory(prefix="submit-") as folder:
        (Path(folder) / _FILE).write_text(dump_yaml(config), encoding="utf-8")
        try:
            headers = json.loads(os.environ.get("RAY_JOB_HEADERS", "{}"))
            job = JobSubmissionClient(address, headers=headers).submit_job(
                entrypoint=command,
                # A run may be submitted again to go on; its lease prevents two at once.
                submission_id=f"{config.name}-{time.time_ns() // 10**6}",
                runtime_env={"working_dir": folder},
            )
        except (ConnectionError, RuntimeError, JSONDecodeError) as error:
            text = str(error).strip().splitlines()[0]
            raise ConfigError(
                f"--to {address}: the job server does not take the job: {text}"
            ) from None
    home = config.store or config.runs_dir
    return (
        f"{config.name} is job {job} of {address}\n"
        f"  watch:   ray job logs {job} --follow --address {address}\n"
        f"           fintrader status {home}/{config.name}\n"
        f"  stop:    ray job stop {job} --address {address}\n"
        "  go on:   this command again"
    )


def _submit_to_kubernetes(config: RunConfig, image: str) -> str:
    if shutil.which("kubectl") is None:
        raise ConfigError("--to kubernetes needs kubectl, which is not installed here")
    name = f"fintrader-{config.name}"
    if not _DNS_NAME.fullmatch(config.name):
        raise ConfigError(
            f"name: {config.name!r} cannot name a job of Kubernetes; choose lower-case letters,"
            " digits and hyphens, at most 42 (--name)"
        )
    manifests = build_manifests(config, name, image)
    done = subprocess.run(
        ["kubectl", "-n", NAMESPACE, f"--request-timeout={KUBECTL_SECONDS}s", "apply", "-f", "-"],
        input=yaml.safe_dump_all(manifests, sort_keys=False),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ConfigError(
            f"kubectl does not take the job: {' '.join(done.stderr.split())}; the namespace and its"
            " disk come with an overlay: kubectl apply -k configs/kubernetes/overlays/app"
        )
    kubectl = f"kubectl -n {NAMESPACE}"
    home = (
        ""
        if config.store is None
        else f"           fintrader status {config.store}/{config.name}\n"
    )
    return (
        f"{config.name} is job/{name} in namespace {NAMESPACE}\n"
        f"  watch:   {kubectl} logs -f job/{name}\n{home}"
        f"  stop:    {kubectl} delete job {name}; its results stay\n"
        "  go on:   stop it, then this command again"
    )


def build_manifests(config: RunConfig, name: str, image: str) -> tuple[Any, Any]:
    """Build the ConfigMap of the configuration and its Job, by the shipped manifest of a run on one
    machine."""
    template = list_shipped_configs()["quickstart"].parent / "kubernetes" / "job" / "job.yaml"
    first, _, _ = template.read_text(encoding="utf-8").partition("\n---\n")
    job: Any = parse_yaml(first, template.name)
    job["metadata"]["name"] = name
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    container["image"] = image
    own_workers = config.tournament.workers is not None
    container["args"] = [
        "run",
        f"{_MOUNT}/{_FILE}",
        # The manifest's workers are its CPUs: a container sees all cores of its node.
        *(
            word
            for word in container["args"]
            if word.startswith("--")
            and not (own_workers and word.startswith("--tournament.workers"))
        ),
    ]
    container["volumeMounts"].append({"name": "config", "mountPath": _MOUNT, "readOnly": True})
    pod["volumes"].append({"name": "config", "configMap": {"name": name}})
    settings = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": job["metadata"]["labels"]},
        "data": {_FILE: dump_yaml(config)},
    }
    return settings, job
