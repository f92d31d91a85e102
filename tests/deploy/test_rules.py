"""The rules and the dashboard of deployments ask for gauges that there are."""

import json
import re
import shutil
import subprocess

import pytest
import yaml

from fintrader.deploy.gauges import MEANING
from tests import ROOT

RULES = ROOT / "configs" / "prometheus" / "deployments.yaml"
DASHBOARD = ROOT / "configs" / "grafana" / "deployments.json"
LABELS = {"deployment", "state"}


def list_queries():
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    dashboard = json.loads(DASHBOARD.read_text())
    variables = [item["query"] for item in dashboard["templating"]["list"]]
    return [
        *(rule["expr"] for rule in group["rules"]),
        *(target["expr"] for panel in dashboard["panels"] for target in panel["targets"]),
        *(query["query"] for query in variables if isinstance(query, dict)),
    ]


def test_every_query_names_a_gauge_that_exists():
    asked = set()
    for query in list_queries():
        names = set(re.findall(r"\bfintrader_deployment_(\w+)", query))
        assert names, query
        asked |= names
        assert set(re.findall(r"(\w+)\s*=~?\s*\"", query)) <= LABELS, query
    assert asked == {*MEANING, "orders"}


def test_kubernetes_takes_the_same_rules():
    path = ROOT / "configs" / "kubernetes" / "monitoring" / "rules.yaml"
    rules = {one["metadata"]["name"]: one["spec"] for one in yaml.safe_load_all(path.read_text())}
    assert rules["fintrader-deployments"] == yaml.safe_load(RULES.read_text())


def test_prometheus_takes_the_rules():
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    subprocess.run(["promtool", "check", "rules", str(RULES)], check=True)
