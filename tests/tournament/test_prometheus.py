import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing
from types import SimpleNamespace

import psutil
import pytest

from fintrader.config import split_address
from fintrader.errors import ConfigError
from fintrader.logs import FORMAT_VARIABLE
from fintrader.pipeline.config import RunConfig
from fintrader.pipeline.session import observing, watching
from fintrader.runs import RunFolder
from fintrader.tournament.launchers import PodProgress
from fintrader.tournament.settings import OperationsSettings
from tests import ROOT
from tests.engines import stubs
from tests.engines.races import settings
from tests.engines.waiting import PATIENCE_SECONDS

pytest.importorskip(
    "prometheus_client", reason="prometheus-client is missing: pip install '.[observe]'"
)
from fintrader.tournament.prometheus import CATALOGUE, STALE_SECONDS, Endpoint, Watch

DASHBOARD = ROOT / "configs" / "grafana" / "tournament.json"
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def get(endpoint, path):
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{endpoint.port}{path}", timeout=PATIENCE_SECONDS
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def parse(text):
    from prometheus_client.parser import text_string_to_metric_families

    samples = (
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    )
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}


def scrape(endpoint):
    status, text = get(endpoint, "/metrics")
    assert status == 200
    return parse(text)


def by_label(samples, name, label):
    return {
        dict(labels)[label]: value for (found, labels), value in samples.items() if found == name
    }


@pytest.fixture
def endpoint():
    with closing(Endpoint("127.0.0.1", 0)) as server:
        yield server


def test_the_endpoint_tells_the_truth_at_every_turn(race, tmp_path, endpoint):
    run = RunFolder(tmp_path / "run")
    stubs.plant(run, "p0003", "nan")
    scraped = threading.Event()
    turns = []
    wanted = settings(pods=8, workers=2)

    with endpoint.observe("run", wanted) as watch:

        def body(spec, context):
            if spec.pod != "p0005":
                return stubs.body(spec, context)
            context.report(0.5, 50, "half way")
            assert scraped.wait(PATIENCE_SECONDS)
            scraped.clear()
            raise MemoryError("no memory left")

        def watched(orchestrator):
            at = orchestrator.launcher.report_progress().get("p0005", PodProgress())
            watch(orchestrator)
            turns.append(scrape(endpoint))
            if at.env_steps == 50 and "p0005" in orchestrator.running:
                scraped.set()

        result = race("run", pods=8, workers=2, retries=1, body=body, how={"watch": watched})

    assert len(turns) > 2
    for number, samples in enumerate(turns, 1):
        states = by_label(samples, "fintrader_pods", "state")
        assert sum(states.values()) == 8, states
        assert set(states) == {
            "planned",
            "waiting",
            "running",
            "arrived",
            "done",
            "failed",
        }
        assert samples["fintrader_reconcile_seconds_count", (("run", "run"),)] == number
    steps = [samples["fintrader_env_steps_total", (("run", "run"),)] for samples in turns]
    assert steps == sorted(steps), "a counter never falls"
    last = turns[-1]
    assert by_label(last, "fintrader_submissions_total", "status") == {"done": 7, "failed": 1}
    assert by_label(last, "fintrader_pod_losses_total", "reason") == {"nan": 1, "oom": 2}
    assert last["fintrader_launches_total", (("run", "run"),)] == 8 + 1 + 1
    assert steps[-1] == 7 * 100 + 50, (
        "the failed pod had done 50 steps, and its second attempt repeated them"
    )
    assert last["fintrader_capacity_pods", (("run", "run"),)] == 2
    board = result.leaderboard
    assert last["fintrader_best_score", (("metric", "sharpe"), ("run", "run"))] == board[0].score
    assert last["fintrader_leaderboard_rows", (("run", "run"),)] == len(board)
    assert last["fintrader_reconcile_seconds_bucket", (("le", "+Inf"), ("run", "run"))] == len(
        turns
    )
    assert list(by_label(last, "fintrader_build_info", "torch").values()) == [1]


def test_counts_survive_a_restart_but_the_rate_does_not_jump(race, endpoint):
    race("run", pods=4)
    with endpoint.observe("run", settings(pods=6, workers=2)) as watch:
        race("run", pods=6, how={"watch": watch})
    samples = scrape(endpoint)
    assert by_label(samples, "fintrader_submissions_total", "status") == {"done": 6}
    assert samples["fintrader_launches_total", (("run", "run"),)] == 6
    assert samples["fintrader_env_steps_total", (("run", "run"),)] == 600
    assert watch._marks[0][1] >= 400, "the first four pods' steps are not this process's work"


def test_the_rate_is_that_of_the_last_half_minute(monkeypatch):
    """100 steps a second for 50 seconds, then none; a mark a second, so that half a minute has 31
    of them."""
    now = 0.0
    rates = []
    monkeypatch.setattr(
        "fintrader.tournament.prometheus.time", SimpleNamespace(monotonic=lambda: now)
    )
    watch = Watch("run", settings(), lambda seconds: None)
    watch._marks.append((now, 0))
    for second in range(1, 101):
        now = float(second)
        watch.env_steps = 100 * min(second, 50)
        watch._mark()
        rates.append(watch.rate())
    assert rates[:50] == pytest.approx([100.0] * 50)
    assert (rates[64], rates[-1]) == (pytest.approx(100 * (50 - 34) / 31), 0.0)


def test_every_family_of_the_catalogue_is_told(race, tmp_path, monkeypatch):
    tool = tmp_path / "nvidia-smi"  # answers as the real one does
    tool.write_text('#!/bin/sh\nprintf "0, 1024, 81559\\n1, [N/A], 81559\\n"\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    stubs.plant(RunFolder(tmp_path / "run"), "p0001", "nan")
    with closing(Endpoint()) as endpoint:
        with endpoint.observe("run", settings()) as watch:
            race("run", how={"watch": watch})
            samples = scrape(endpoint)
        after = {name for name, _ in scrape(endpoint)}
    told = {name for name, _ in samples}
    assert told - after == {"fintrader_last_reconcile_timestamp_seconds"}  # no turn is due
    for name, metric in CATALOGUE.items():
        suffix = {"counter": "_total", "histogram": "_count", "info": "_info", "gauge": ""}[
            metric.kind
        ]
        assert name + suffix in told, name
        assert metric.meaning
    assert samples["fintrader_gpu_memory_used_bytes", (("gpu", "0"),)] == 2**30
    assert "process_resident_memory_bytes" in told or sys.platform != "linux"


def test_health_fails_when_a_race_stands_still(endpoint):
    assert get(endpoint, "/healthz") == (200, "ok\n")
    with endpoint.observe("run", settings()) as watch:
        assert get(endpoint, "/healthz")[0] == 200, "it has not begun yet"
        watch.last_turn = time.time() - STALE_SECONDS - 60
        status, text = get(endpoint, "/healthz")
        assert status == 503
        assert "no turn of the reconcile loop" in text
    assert get(endpoint, "/healthz")[0] == 200, "a race that is over owes no turns"
    assert get(endpoint, "/secrets")[0] == 404


def test_a_search_of_a_run_is_observed_where_its_settings_say_so(tmp_path):
    wanted = {"runs_dir": tmp_path, "operations": {"metrics": 0}}
    config = RunConfig.model_validate(wanted)
    with observing(config) as served, watching(config, config.folder) as watch:
        assert isinstance(watch, Watch)
        assert watch.run == config.name
        assert get(served, "/healthz")[0] == 200


def test_a_taken_port_is_a_readable_error(endpoint):
    with pytest.raises(
        ConfigError, match=f"operations.metrics: 127.0.0.1:{endpoint.port} is taken"
    ):
        Endpoint("127.0.0.1", endpoint.port)
    with pytest.raises(ConfigError, match="cannot be used"):
        Endpoint("256.0.0.1", 0)


def test_it_binds_loopback_unless_told_otherwise(endpoint):
    assert RunConfig().operations.metrics is None
    assert split_address(OperationsSettings(metrics=0).metrics) == (endpoint.host, 0)
    bound = [
        found.laddr.ip
        for found in psutil.Process().net_connections()
        if found.laddr.port == endpoint.port
    ]
    assert set(bound) == {"127.0.0.1"}


@pytest.mark.slow
def test_a_tournament_from_the_command_line_can_be_scraped_and_logs_json(tmp_path):
    """Everything real: the process, the pods' processes, the endpoint, the logs."""
    options = {
        "runs-dir": tmp_path / "runs",
        "cache": tmp_path / "cache",
        "name": "seen",
        "operations.metrics": 0,
        "data.source.num-sessions": 25,
        "env.num-envs": 16,
        "env.episode-bars": 200,
        "env.decision-interval": 10,
        "tournament.pods": 3,
        "tournament.workers": 1,
        "tournament.budget.env-steps": 1000,
        "tournament.ensemble-size": 2,
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fintrader",
            "tournament",
            str(ROOT / "configs" / "quickstart.yaml"),
            *words,
        ],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, FORMAT_VARIABLE: "json"},
    )
    records = []
    url = ""
    scraped = Samples()
    for line in process.stderr:
        records.append(json.loads(line))
        url = records[-1].get("metrics_url", url)
        if records[-1].get("event") == "applied" and not scraped:
            scraped = parse(urllib.request.urlopen(url, timeout=PATIENCE_SECONDS).read().decode())
    assert process.wait(timeout=PATIENCE_SECONDS) == 0
    assert set(by_label(scraped, "fintrader_pods", "run")) == {"seen"}
    assert sum(by_label(scraped, "fintrader_pods", "state").values()) == 3
    assert all(record["run"] == "seen" for record in records if "event" in record)
    kinds = {record["event"] for record in records if "event" in record}
    assert {"started", "proposed", "launched", "applied", "finished"} <= kinds
    pods = []
    for log in (tmp_path / "runs" / "seen" / "logs").glob("worker-*.log"):
        pods += [json.loads(line) for line in log.read_text().splitlines()]
    done = [record for record in pods if record["message"] == "pod is done"]
    assert {record["pod"] for record in done} == {"p0000", "p0001", "p0002"}
    assert all(record["run"] == "seen" and record["attempt"] == 1 for record in done)


def queries():
    dashboard = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    return found + [
        item["query"]["query"]
        for item in dashboard["templating"]["list"]
        if item["type"] == "query"
    ]


def test_every_query_of_the_dashboard_names_a_metric_that_exists():
    suffixes = {
        "histogram": ("_bucket", "_count", "_sum"),
        "counter": ("_total",),
        "info": ("_info",),
        "gauge": ("",),
    }
    known = {
        name + suffix for name, metric in CATALOGUE.items() for suffix in suffixes[metric.kind]
    }
    known |= {"process_resident_memory_bytes", "process_cpu_seconds_total"}
    labels = {"job", "instance", "le"}.union(*(metric.labels for metric in CATALOGUE.values()))
    assert len(queries()) > 10
    for query in queries():
        names = set(re.findall(r"\b(?:fintrader|process)_\w+\b", query))
        assert names, query
        assert names <= known, query
        used = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", query)
        used += [
            label.strip()
            for group in re.findall(r"\bby \(([^)]*)\)", query)
            for label in group.split(",")
        ]
        assert set(used) <= labels, query
