from __future__ import annotations

from pathlib import Path

import pytest

from fintrader.errors import RunError
from fintrader.files import read_json
from fintrader.runs import Manifest


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
