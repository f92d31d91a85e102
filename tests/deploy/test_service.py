"""The files of a service: valid, without secrets, and the very command."""

import json
import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from fintrader.cli import main
from fintrader.deploy import broker
from tests import ROOT

WORDS = ("runs/my mine", "--feed", "alpaca", "--broker", "alpaca", "--limits.weight", "0.05")


@pytest.fixture
def folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(tmp_path / "my code")]))
    monkeypatch.setenv("FINTRADER_ALERT_URLS", "https://example.org/secret")
    main(["paper", *WORDS, "--install", "--name", "mine_1-paper"])
    made = tmp_path / "deployments" / "mine_1-paper" / "service"
    said = capsys.readouterr().out
    assert all(str(path) in said for path in made.iterdir())
    assert "enable --now" in said
    for path in made.iterdir():
        assert "secret" not in path.read_text().replace("secretRef", "")
        assert "made-up" not in path.read_text()  # the keys of the tests
    return made


@pytest.mark.slow
def test_the_unit_runs_this_command_and_starts_it_again(folder):
    (path,) = folder.glob("*.service")
    text = path.read_text()
    assert {"Restart=on-failure", "KillMode=mixed", f"WorkingDirectory={Path.cwd()}"} <= {
        *text.splitlines()
    }
    assert f'Environment="PYTHONPATH={os.environ["PYTHONPATH"]}"' in text
    command = shlex.split(re.search("^ExecStart=(.*)$", text, re.M)[1])
    assert command[4:] == ["paper", *WORDS, "--name", "mine_1-paper"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 2
    assert "runs/my mine" in found.stderr
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(path)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert str(path.name) not in checked.stderr, checked.stderr


def test_the_manifest_is_valid_and_runs_one_loop(folder):
    validate = pytest.importorskip("kubernetes_validate", reason="pip install '.[dev]'")
    found = list(yaml.safe_load_all((folder / "kubernetes.yaml").read_text()))
    for manifest in found:
        for version in ("1.30", "1.37"):
            validate.validate(manifest, version, strict=True)
    deployment, policy = found
    assert deployment["metadata"]["name"] == "fintrader-mine-1-paper"
    assert (deployment["spec"]["replicas"], deployment["spec"]["strategy"]) == (
        1,
        {"type": "Recreate"},
    )
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][:4] == ["paper", "runs/my mine", "--feed", "alpaca"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert container["args"][-2:] == ["--metrics", "0.0.0.0:9109"]
    (port,) = container["ports"]
    assert policy["spec"]["ingress"][0]["ports"] == [{"protocol": "TCP", "port": 9109}]
    assert port["containerPort"] == 9109
    monitors = ROOT / "configs" / "kubernetes" / "monitoring" / "monitors.yaml"
    spec = {one["metadata"]["name"]: one for one in yaml.safe_load_all(monitors.read_text())}[
        "fintrader-deployments"
    ]["spec"]
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert [one["port"] for one in spec["podMetricsEndpoints"]] == [port["name"]]


def test_real_money_runs_as_a_service_once_it_is_open(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    record = {"passed": True, "sources": broker.hash_sources(), "sessions": 40_000}
    (tmp_path / "record.json").write_text(json.dumps(record))
    monkeypatch.setattr(broker, "RECORD", tmp_path / "record.json")
    main(["live", "mine", "--install", "--cap-usd", "5000", "--metrics", "127.0.0.1:9200"])
    assert "copy the deployment to /data/deployments/mine of its disk" in capsys.readouterr().out
    service = tmp_path / "deployments" / "mine-live" / "service"
    assert (
        '"live" "mine" "--cap-usd" "5000" "--metrics" "127.0.0.1:9200"'
        in next(service.glob("*.service")).read_text()
    )
    deployment = next(yaml.safe_load_all((service / "kubernetes.yaml").read_text()))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["args"][:4] == ["live", "mine", "--cap-usd", "5000"]
    # Prometheus could not read this loopback's address.
    assert container["args"][-2:] == ["--metrics", "0.0.0.0:9200"]
    assert container["args"][-4:-2] == ["--deployments-dir", "deployments"]
    assert container["ports"][0]["containerPort"] == 9200


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("paper runs/mine --install", "a replay is no service"),
        ("paper runs/mine --install --feed alpaca --alerts.urls https://x.org/y", "no secrets"),
        ("live mine --install", "real-money trading is closed"),
    ],
)
def test_a_service_that_could_not_run_or_would_leak_is_refused(
    command, why, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        main(command.split())
    assert caught.value.code == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "deployments").exists()
