"""What every system has to do: import, write files whole, keep others out, answer on the command
line. The workflow runs this file on macOS and Windows; it asks for nothing that they lack."""

import importlib
import os
import pkgutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

import fintrader
from fintrader.errors import RunError
from fintrader.files import (
    append_jsonl,
    atomic_file,
    hash_file,
    move,
    publish,
    read_bytes,
    read_json,
    read_jsonl,
    remove_tree,
    write_bytes,
    write_json,
)
from fintrader.runs import RunFolder
from fintrader.storage.objects import ObjectStore
from fintrader.system import is_locked, wait_for_lock
from fintrader.verdict.looks import Ledger
from tests import ROOT

EXTRAS = "alpaca ccxt gcsfs mcp mlflow pettingzoo prometheus_client ray s3fs skrl stable_baselines3"
EXTRAS += " streamlit tensorboard tensordict torchrl triton"
QUICKSTART = str(ROOT / "configs" / "quickstart.yaml")


def run(*words, folder=None):
    path = os.pathsep.join([str(ROOT), str(ROOT / "app"), os.environ.get("PYTHONPATH", "")])
    where = {"PYTHONPATH": path} | ({} if folder is None else {"FINTRADER_HOME": str(folder)})
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder or ROOT,
        env={**os.environ, **where},
        capture_output=True,
        text=True,
    )


def test_every_module_imports_or_names_its_extra():
    missing = {}
    for module in pkgutil.walk_packages(fintrader.__path__, "fintrader."):
        if not module.name.endswith("__main__"):
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                missing[module.name] = error.name.partition(".")[0]
    assert {module: name for module, name in missing.items() if name not in EXTRAS.split()} == {}


def test_files_are_whole_or_absent(tmp_path):
    path = tmp_path / "new" / "file"
    write_bytes(path, b"one\r\ntwo\n")
    with pytest.raises(ZeroDivisionError), atomic_file(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert read_bytes(path) == b"one\r\ntwo\n"
    assert not publish(path, b"again")
    assert publish(tmp_path / "new" / "other", b"other")
    move(tmp_path / "new" / "other", path)
    assert read_bytes(path) == b"other"
    assert [each.name for each in path.parent.iterdir()] == ["file"]
    assert len(hash_file(path)) == 64
    remove_tree(path.parent)
    assert not path.parent.exists()


def test_json_and_lines_come_back(tmp_path):
    write_json(tmp_path / "a.json", {"name": "é", "value": 1.5})
    assert read_json(tmp_path / "a.json") == {"name": "é", "value": 1.5}
    log = tmp_path / "log.jsonl"
    assert read_jsonl(log) == []
    append_jsonl(log, {"n": 1})
    with log.open("ab") as file:
        file.write(b'{"n": torn')
    assert read_jsonl(log) == [{"n": 1}]
    append_jsonl(log, {"n": 2})
    assert read_jsonl(log) == [{"n": 1}, {"n": 2}]


@contextmanager
def holding(folder):
    """A process that holds a run."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom fintrader.runs import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).lock():\n    print('held', flush=True)\n    input()\n"
    )
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", program, str(folder)]
    with subprocess.Popen(words, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_run_is_held_by_one_process_until_that_dies(tmp_path):
    run_folder = RunFolder(tmp_path / "run")
    with holding(run_folder.root) as process:
        with pytest.raises(RunError, match="in use by another process"), run_folder.lock():
            pass
        lock = run_folder.root / ".lock"
        with lock.open("rb") as asked:
            assert is_locked(asked)
            process.kill()
            process.wait()
            with lock.open("ab") as file:
                wait_for_lock(file)
                assert is_locked(asked)
            with run_folder.lock():
                pass
            assert not is_locked(asked)


def test_the_ledger_grows_line_by_line(tmp_path):
    for number in range(3):
        Ledger(tmp_path).note_seal("run", "test", number, "0" * 64)
    assert [line["line"] for line in Ledger(tmp_path).lines()] == [0, 1, 2]


def test_objects_have_the_same_names_everywhere(tmp_path):
    store = ObjectStore(tmp_path / "store")
    store.put("a/b/c", b"1")
    assert store.create("a/d", b"2")
    assert not store.create("a/d", b"3")
    with store.lock():
        assert store.list_names() == ["a/b/c", "a/d"]
    store.remove("a/d")
    assert store.get("a/d") is None


def test_the_command_line_answers(tmp_path):
    done = run("-m", "fintrader", "--help", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "run" in done.stdout
    done = run("-m", "fintrader", "run", QUICKSTART, "--env.cost-bps", "many", folder=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "--env.cost-bps: expected a number" in done.stderr


@pytest.mark.slow
def test_a_small_run_ends_with_a_backtest(tmp_path):
    pods = ("--tournament.pods", "2", "--tournament.workers", "1", "--tournament.pool-size", "1")
    small = ("--tournament.budget.env-steps", "640", "--data.source.num-sessions", "60")
    done = run("-m", "fintrader", "run", QUICKSTART, *pods, *small, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "runs" / "quickstart" / "backtest" / "metrics.json").is_file()
