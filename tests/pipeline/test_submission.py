"""Runs that are started elsewhere: Ray's own client before a server that speaks its REST, and a
kubectl that writes down what it is given."""

import io
import json
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from fintrader.cli import main
from fintrader.config import validate
from fintrader.pipeline.config import RunConfig
from fintrader.pipeline.submission import SubmitOptions, build_manifests, submit
from tests import ROOT


@pytest.fixture
def job_server():
    """A server that takes packages and jobs as Ray's dashboard does; yields its address and what it
    has got."""
    got = {"packages": {}, "jobs": []}

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def answer(self, status, value):
            body = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def read(self):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def do_GET(self):
            if self.path == "/api/version":
                version = {"version": "4", "ray_version": "2.60.0", "ray_commit": "x"}
                self.answer(200, version | {"session_name": "s"})
            else:
                self.answer(200 if self.path in got["packages"] else 404, {})

        def do_PUT(self):
            got["packages"][self.path] = self.read()
            self.answer(200, {})

        def do_POST(self):
            job = json.loads(self.read())
            if any("not welcome" in str(value) for value in job.values()):
                self.answer(500, {"error": "no"})
                return
            got["jobs"].append(job)
            self.answer(200, {"job_id": "x", "submission_id": job["submission_id"]})

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()


def test_a_ray_cluster_gets_the_configuration_and_the_command(job_server, tmp_path, capsys):
    pytest.importorskip("ray.job_submission", reason="ray is missing: pip install '.[ray]'")
    address, got = job_server
    words = ["--name", "far", "--runs-dir", str(tmp_path), "--tournament.pods", "3"]
    main(["submit", "quickstart", "--to", address, *words])
    shown = capsys.readouterr().out
    (job,) = got["jobs"]
    assert job["entrypoint"] == "fintrader run run.yaml --launcher.kind ray"
    assert f"ray job logs {job['submission_id']} --follow --address {address}" in shown
    assert f"fintrader status {tmp_path}/far" in shown
    (package,) = got["packages"].values()
    with zipfile.ZipFile(io.BytesIO(package)) as files:
        (name,) = [one for one in files.namelist() if one.endswith("run.yaml")]
        there = validate(RunConfig, yaml.safe_load(files.read(name)), "run.yaml")
    assert (there.name, there.runs_dir, there.tournament.pods) == ("far", tmp_path, 3)
    main(["submit", "quickstart", "--to", address, *words])
    assert len({one["submission_id"] for one in got["jobs"]}) == 2, "a run can be submitted again"


def test_a_server_that_does_not_answer_is_named():
    pytest.importorskip("ray.job_submission", reason="ray is missing: pip install '.[ray]'")
    config = RunConfig(store="s3://bucket/runs")
    with pytest.raises(SystemExit):
        main(["submit", "quickstart", "--to", "ray://127.0.0.1", "--runs-dir", "relative"])
    from fintrader.errors import ConfigError

    with pytest.raises(ConfigError, match=r"http://127.0.0.1:9: the job server does not take"):
        submit(config, SubmitOptions(to="http://127.0.0.1:9"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "needs --to"),
        (["--to", "somewhere"], "expected ray://HOST"),
        (["--to", "https://me:canary@head"], "--to https://…: the address holds more than a host"),
        (["--to", "ray://head?token=canary"], "--to ray://…: the address holds more than a host"),
        (["--to", "s3://bucket/runs"], "expected ray://HOST, http://HOST:PORT or kubernetes"),
        (["--to", "ray://"], "expected ray://HOST"),
        (["--to", "kubernetes", "--launcher.kind", "ray"], "leave launcher.kind: ray out"),
        (["--to", "ray://head"], "runs_dir: a folder of the job's own would be lost"),
        (["--to", "kubernetes", "--from", "runs/old"], "from_run: runs/old is on this machine"),
    ],
)
def test_what_cannot_run_there_is_refused_here(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["submit", "quickstart", *words])
    assert stop.value.code == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert "canary" not in shown


def test_files_of_this_machine_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.yaml").write_text(
        "data: {path: bars, source: {kind: files}}\n"
        "env: {decision_interval: 9, execution: {policy: mine, bars: 9}}\n"
    )
    with pytest.raises(SystemExit):
        main(["submit", "own.yaml", "--to", "kubernetes"])
    refused = capsys.readouterr().err
    assert "data.path: bars is on this machine" in refused
    assert "env.execution.policy: mine is on this machine" in refused


@pytest.fixture
def kubectl(tmp_path, monkeypatch):
    """A kubectl that keeps its input and succeeds, or fails where a file `refuse` lies."""
    program = tmp_path / "bin" / "kubectl"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys, pathlib\n"
        f"home = pathlib.Path({str(tmp_path)!r})\n"
        "(home / 'words').write_text(' '.join(sys.argv[1:]))\n"
        "(home / 'got.yaml').write_text(sys.stdin.read())\n"
        "sys.exit('namespaces \"fintrader\" not found' if (home / 'refuse').exists() else 0)\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    return tmp_path


def test_kubernetes_gets_a_job_with_its_configuration(kubectl, capsys):
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing")
    words = ["--to", "kubernetes", "--image", "registry.example.com/fintrader:1", "--name", "far"]
    main(["submit", "quickstart", *words, "--tournament.pods", "3"])
    assert (kubectl / "words").read_text() == "-n fintrader --request-timeout=30s apply -f -"
    settings, job = yaml.safe_load_all((kubectl / "got.yaml").read_text())
    for manifest in (settings, job):
        validator.validate(manifest, "1.30", strict=True)
    there = validate(RunConfig, yaml.safe_load(settings["data"]["run.yaml"]), "run.yaml")
    assert there.tournament.pods == 3
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "registry.example.com/fintrader:1"
    assert container["args"][:2] == ["run", "/config/run.yaml"]
    assert "--runs-dir=/data/runs" in container["args"]
    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert mounted["config"] == "/config"
    (volume,) = [one for one in pod["volumes"] if one["name"] == "config"]
    assert volume["configMap"]["name"] == settings["metadata"]["name"] == "fintrader-far"
    assert "kubectl -n fintrader logs -f job/fintrader-far" in capsys.readouterr().out
    (kubectl / "refuse").touch()
    with pytest.raises(SystemExit):
        main(["submit", "quickstart", *words])
    assert 'namespaces "fintrader" not found; the namespace' in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["submit", "quickstart", "--to", "kubernetes", "--name", "Not_a_name"])
    assert "name: 'Not_a_name' cannot name a job" in capsys.readouterr().err


def test_own_workers_replace_those_of_the_manifest():
    manifest = yaml.safe_load(
        (ROOT / "configs/kubernetes/job/job.yaml").read_text().split("---")[0]
    )
    (theirs,) = manifest["spec"]["template"]["spec"]["containers"]
    assert any(word.startswith("--tournament.workers") for word in theirs["args"])
    for workers in (None, 7):
        config = RunConfig.model_validate({"tournament": {"workers": workers}})
        _, job = build_manifests(config, "x", "i")
        words = job["spec"]["template"]["spec"]["containers"][0]["args"]
        assert any("workers" in word for word in words) == (workers is None)
