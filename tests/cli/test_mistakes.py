"""Mistakes on the command line: each is one sentence that names what was typed, with exit status 2
and no traceback."""

import signal
import subprocess
import sys
import time

import pytest

from fintrader.cli.options import parse, parse_config
from fintrader.cli.start import AppSettings
from tests.cli.test_commands import QUICKSTART, complaint
from tests.engines.runs import write_config

FILES = {
    "bad.csv": "a,b\n1,2\n",
    "file": "x",
    "broken.yaml": "a: [",
    "type.yaml": "env: {num_envs: many}",
    "union.yaml": "env: {participation: often}",
    "agentless.yaml": "agent: []",
    "window.yaml": "data: {windows: {train: [2020-01-01]}}",
    "date.yaml": "data: {windows: {train: [2020-02-30, 2020-03-01]}}",
    "absent.yaml": "data: {path: absent.csv}",
    "badbars.yaml": "data: {path: bad.csv}",
}
MISTAKES = """
run | needs CONFIG
run nowhere.yaml | nowhere.yaml does not exist
runn Q | did you mean 'run'?
data | needs one of: build, quality, compare
bench env | 'bench' is no command
run Q --env.num-env 3 | --env.num-env: unknown setting; did you mean --env.num-envs?
run Q --env.num-envs 0 | --env.num-envs: input should be greater than or equal to 1
run Q --agent.algo magic | --agent.algo: 'magic' is unknown; choose one of
run Q --name ../x | --name: run name '../x' must be
run Q --device tpu9 | --device: expected auto, cpu, cuda or cuda:N
run Q --seed | --seed needs a value: N
run Q --runs-dir /proc/x | /proc/x/quickstart: No such file
run Q --runs-dir s3://bucket/runs | --runs-dir: s3:
data build Q --cache s3://bucket/tens | is a URL; give a local folder
data build Q --data.store nosuch://x | nosuch
run Q --data.windows.train 2020-01-01 | --data.windows.train: too few values, got ['2020-01-01']
run Q --data.windows.train 2020-13-01 2020-14-01 | --data.windows.train: expected a date like 2024-01-31
run Q --data.windows.fractions 0.5 0.5 | --data.windows.fractions: too few values
run Q --data.windows.fractions a b c | --data.windows.fractions: expected a number, got 'a'
run Q --data.windows 0.5 | --data.windows: a section of settings; give one of them, e.g. --data.windows.
run Q --env.num-envs many | --env.num-envs: expected a whole number, got 'many'
run Q --env.num-envs 1.5 | --env.num-envs: expected a whole number, got '1.5'
run Q --env.num-envs 4 5 | --env.num-envs takes one value, got '4' '5'
run Q --env.cost-bps -5 | --env.cost-bps: input should be greater than or equal to 0
run Q --env.cost-bps | --env.cost-bps needs a value: X
run Q --env.participation often | --env.participation: expected a number or 'none', got 'often'
run Q --backtest.null-model perhaps | --backtest.null-model: expected true, false or nothing after it
run Q --agent.network.kind huge | --agent.network.kind: choose one of 'auto', 'market_once'
run Q --agent.algo | --agent.algo needs a value: ppo, a2c
run Q --agent.alpha 1 | --agent.alpha: no setting of the present agent; choose another --agent.algo first
run Q --env.traders.teams 1 1 | --env.traders.teams: env.traders is not set; write it into the file: env.traders: {teams: ...}
run Q --data.source.label end | choose another --data.source.kind first
run Q --num-envs 4 | --num-envs: unknown setting; did you mean --env.num-envs?
run Q --from-run runs/a | --from-run: unknown setting; did you mean --from?
run Q --data.universe.aliases FB | --data.universe.aliases: expected NAME=VALUE, got 'FB'
run Q --operations.metrics 99999 | --operations.metrics: expected PORT or HOST:PORT, with a port of at most 65535
run Q --launcher.kind moon | --launcher.kind: 'moon' is unknown; choose one of local, package.module:name, ray
run Q --launcher.kind ray --launcher.gpus 1.5 | --launcher.gpus: a pod takes a part of one GPU or a whole number of them
run Q --store notaurl | --store: 'notaurl' is not a URL
run Q --runs-dir file | file/quickstart: Not a directory; choose a folder that can be written to (--runs-dir)
run Q --runs-dir file --cache file | Not a directory
run Q extra words | 'extra': `fintrader run` takes settings from here on
run Q -x | '-x': `fintrader run` takes settings from here on
run folder | folder is a folder; give the path of a YAML configuration
run bin.yaml | bin.yaml: not text in UTF-8
run broken.yaml | broken.yaml: not valid YAML at line 1
run type.yaml | type.yaml: env.num_envs: expected a whole number, got 'many'
run union.yaml | union.yaml: env.participation: expected a number or 'none', got 'often'
run agentless.yaml | agentless.yaml: agent: needs at least 1 value, got []
run window.yaml | window.yaml: data.windows.train: too few values
run date.yaml | date.yaml, line 1: 2020-02-30 is no date
data build absent.yaml | absent.csv: no bar file there
data build badbars.yaml --data.start soon | --data.start: expected a date like 2024-01-31, got 'soon'
backtest folder | folder: there is no run here
backtest nowhere | nowhere: no such folder
status nowhere | nowhere: no such folder
status file | file: a file; give the folder of a run
status | `fintrader status` needs RUN|NAME
status folder --lineage | --lineage needs a value
status folder --workers x | --workers: expected a whole number or 'settings', got 'x'
status folder --workers 0 | --workers: input should be greater than or equal to 1
status nobody --drift | holds no deployment 'nobody'
runs folder --delete --archived | --delete: cannot go with --archived
runs folder --yes | --yes goes with --delete
export folder --format csv | --format: choose one of 'onnx', 'html', 'tensorboard' or 'mlflow'
export folder --format tensorboard --policy best | --policy: an option of --format onnx
export folder --out folder | folder is a folder; --out names the file to write
looks --runs-dir nowhere | nowhere: no such folder
compare | `fintrader compare` needs RUN RUN
compare folder --out | --out needs a value
compare folder --out folder | --out: folder is a folder
verify | `fintrader verify` needs PATH
verify folder | folder: this folder has no run, market or bars; give the path of one
verify nowhere | nowhere: no such file or folder; give a run, a report.html, a market, bars or a configuration
verify nowhere.html | nowhere.html: No such file or directory; give the report.html
verify nowhere.yaml | nowhere.yaml does not exist
verify file --repair | --repair: an option for runs, and file is bars; leave it out
verify bad.csv --replay | --replay: an option for runs, and bad.csv is bars; leave it out
verify nowhere.html --preset lean | --preset: an option for bars, and nowhere.html is a report; leave it out
verify Q --data.start soon | --data.start: expected a date like 2024-01-31, got 'soon'
judge bad.csv --trials many | --trials: expected a whole number or 'unknown', got 'many'
init | needs FILE|FOLDER, TICKER ... or --index NAME
init nowhere.csv | nowhere.csv: no bar file there; give a Parquet or CSV file, a folder or a pattern as FILE|FOLDER
init bad.csv --preset nobody | --preset: choose one of 'lean', 'polygon'
data build --prune | `fintrader data build --prune` needs CONFIG
data build Q --yes | --yes goes with --prune
data build Q --dry-run --data.start soon | --data.start: expected a date like 2024-01-31
data compare bad.csv | needs A and B first
paper nowhere --freeze | nowhere: there is no run here
paper folder --feed smoke | --feed: choose one of 'replay', 'alpaca', 'binance'
halt nobody | holds no deployment 'nobody'
app --port x | --port: expected a whole number, got 'x'
app --headless maybe | --headless: expected true, false or nothing after it
lookahead Q --budget-minutes x | --budget-minutes: expected a number, got 'x'
--completion tcsh | --completion: 'tcsh' is unknown; choose one of bash, zsh, fish
--hlep | '--hlep' is no command
"""


@pytest.mark.parametrize(
    "line", MISTAKES.strip().splitlines(), ids=lambda line: line.partition("|")[0].strip()
)
def test_a_mistake_is_one_sentence_that_names_it(line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "bin.yaml").write_bytes(b"\x00\xff\xfe")
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    typed, _, expected = line.partition(" | ")
    said = complaint(*(QUICKSTART if word == "Q" else word for word in typed.split()))
    assert expected.strip() in said
    for leaked in ("Errno", "invalid literal", "RunConfig", "Value error", "Traceback", "NoneType"):
        assert leaked not in said


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], False),
        (["--headless"], True),
        (["--headless", "--port", "8600"], True),
        (["--headless", "true"], True),
        (["--headless", "True"], True),
        (["--headless=no"], False),
        (["--headless", "false"], False),
    ],
)
def test_a_flag_needs_no_value_and_takes_one(words, expected):
    assert parse(AppSettings(), words, "app").headless is expected


def test_an_option_of_several_values_may_be_given_several_times():
    words = ["--allow-host", "a", "b", "--port", "8600", "--allow-host=c"]
    assert parse(AppSettings(), words, "app").allow_host == ("a", "b", "c")
    assert parse(AppSettings(), ["--port", "1", "--port", "2"], "app").port == 2


def test_values_of_every_shape():
    search = "{agent.learning_rate: {low: 1.0e-4, high: 1.0e-2}}"
    words = [
        "--agent.network.hidden",
        "32",
        "16",
        "--data.universe.aliases",
        "FB=META",
        "--env.episode-bars",
        "None",
    ]
    words += ["--from", "runs/one", "--env.participation", "none", "--tournament.search", search]
    config = parse_config("run", [QUICKSTART, *words, "--backtest.window", "validation", "test"])
    assert config.agent.network.hidden == (32, 16)
    assert dict(config.data.universe.aliases) == {"FB": "META"}
    assert config.trading.episode_bars is None
    assert (config.from_run, config.trading.participation) == ("runs/one", "none")
    assert config.tournament.search["agent.learning_rate"].low == 1e-4
    assert config.backtest.window == ("validation", "test")


@pytest.mark.slow
def test_an_interruption_at_any_moment_is_one_line_and_its_status(tmp_path):
    command = [sys.executable, "-m", "fintrader", "run", str(write_config(tmp_path))]
    for seconds in (1.5, 3.0, 6.0, 9.0):
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
        )
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
        assert "Traceback" not in err
        if process.returncode == 0 or err.endswith("sealed\n"):  # it was faster
            break
        assert process.returncode in (130, -signal.SIGINT)  # a shell calls both 130
        assert (
            err.splitlines()[-1] == "fintrader: interrupted; run the same command again to resume"
        )


@pytest.mark.parametrize("then", ["time.sleep(60)", "raise RuntimeError", "raise ValueError"])
def test_an_interruption_that_a_callback_swallows_is_one_line_and_its_status(then):
    """LLVM calls numba back, and Python handles a signal in the first callback after it."""
    script = f"""
import ctypes, os, signal, time
from fintrader import cli

def work(argv):
    ctypes.CFUNCTYPE(None)(lambda: os.kill(os.getpid(), signal.SIGTERM))()
    {then}

cli.dispatch = work
cli.main([])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 143
    assert done.stderr == "fintrader: interrupted; run the same command again to resume\n"


def test_a_library_that_seems_to_be_missing_after_an_interruption_is_not_named():
    """numpy and torch turn an interruption while they are imported into an error of their own."""
    script = """
import os, signal, time
from fintrader import cli
from fintrader.errors import ConfigError

def work(argv):
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)
    except KeyboardInterrupt:
        raise ConfigError("torch is missing: pip install torch") from None

cli.dispatch = work
cli.main([])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 130
    assert done.stderr == "fintrader: interrupted; run the same command again to resume\n"
