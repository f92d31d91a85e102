from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fintrader import files, runs
from fintrader.errors import RunError
from fintrader.files import read_json
from fintrader.runs import Manifest


def test_damaged_and_missing_json_are_typed(tmp_path: Path):
    (tmp_path / "a.json").write_text('{"x": ')
    with pytest.raises(RunError, match="not valid JSON"):
        files.read_json(tmp_path / "a.json")
    with pytest.raises(RunError, match="does not exist"):
        files.read_json(tmp_path / "b.json")


def test_a_torn_last_line_is_dropped(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    for number in range(3):
        files.append_jsonl(path, {"n": number})
    with path.open("ab") as file:
        file.write(b'{"n": 3, "x')
    assert [record["n"] for record in files.read_jsonl(path)] == [0, 1, 2]
    assert files.read_jsonl(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", "/etc", "a\0b", "a..b", ".hidden", "a b", "x" * 101, "é", "%2e%2e"]
)
def test_only_plain_names_make_a_run_folder(name: str, tmp_path: Path):
    with pytest.raises(RunError, match="run name"):
        runs.RunFolder.named(name, tmp_path)


def test_a_run_is_held_by_one_process_and_freed_by_its_death(tmp_path: Path):
    folder = runs.RunFolder.named("r1", tmp_path)
    code = (
        "import signal, sys; from pathlib import Path; from fintrader.runs import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).lock():\n"
        "    print('held', flush=True); signal.pause()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(folder.root)], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"held\n"
    with pytest.raises(RunError, match="in use"), folder.lock():
        pass
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    with folder.lock():  # the kernel frees it before the parent may reap the child
        pass


def make(path: Path) -> Manifest:
    return Manifest.create(path, name="r", seed=3, device="cpu", config_hash="00", command="fintrader run r")


def test_a_stage_is_done_only_after_its_body_ended_well(tmp_path: Path):
    manifest = make(tmp_path / "manifest.json")
    with pytest.raises(ZeroDivisionError), manifest.stage("data"):
        assert read_json(manifest.path)["stages"]["data"]["done"] is False
        raise ZeroDivisionError
    again = Manifest.load(manifest.path)
    assert not again.done("data")
    with again.stage("data"):
        pass
    before = read_json(manifest.path)
    assert Manifest.load(manifest.path).done("data")
    with Manifest.load(manifest.path).stage("data"):
        pass
    assert read_json(manifest.path) == before, "passed again, it keeps its time"


def test_versions_are_there_and_the_end_is_noted_once(tmp_path: Path):
    manifest = make(tmp_path / "manifest.json")
    assert {"python", "torch", "fintrader"} <= set(manifest.values["versions"])
    manifest.finish()
    first = manifest.values["finished"]
    manifest.values["finished"] = "earlier"
    manifest.finish()
    assert first
    assert manifest.values["finished"] == "earlier"


def test_a_foreign_or_damaged_manifest_is_typed(tmp_path: Path):
    path = tmp_path / "manifest.json"
    path.write_text('{"format": "other"}')
    with pytest.raises(RunError, match="no manifest of this version"):
        Manifest.load(path)
    path.write_text("[1]")
    with pytest.raises(RunError):
        Manifest.load(path)
