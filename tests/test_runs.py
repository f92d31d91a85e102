from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fintrader import files, runs, seeding
from fintrader.errors import CheckpointError, RunError
from fintrader.files import atomic_file, read_json, seal, unseal, write_bytes
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
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/b",
        "a\\b",
        "/etc",
        "a\0b",
        "a..b",
        ".hidden",
        "a b",
        "x" * 101,
        "é",
        "%2e%2e",
    ],
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
    return Manifest.create(
        path, name="r", seed=3, device="cpu", config_hash="00", command="fintrader run r"
    )


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


BODY: dict[str, Any] = {
    "text": '{"a": 1}\n',
    "rows": 3,
    "share": 0.1,
    "none": None,
    "nested": {"é": ["x", True]},
}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_sealed_body_comes_back(indent: int | None) -> None:
    data = seal(BODY, indent=indent)
    assert unseal(data, CheckpointError("damaged")) == BODY
    assert set(json.loads(data)) == {"sha256", *BODY}  # any reader of JSON sees what is in it
    assert seal(dict(reversed(BODY.items())), indent=indent) == data


def test_any_flipped_bit_breaks_the_seal() -> None:
    data = seal(BODY)
    for position in range(len(data)):
        for bit in range(8):
            harmed = bytearray(data)
            harmed[position] ^= 1 << bit
            with pytest.raises(CheckpointError, match=r"^the state is damaged$"):
                unseal(bytes(harmed), CheckpointError("the state is damaged"))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b'{"text": "a"}', b"\xff\xfe", seal(BODY)[:-9], seal(BODY) + b" "]
)
def test_what_was_never_sealed_or_is_not_whole(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        unseal(data, CheckpointError("damaged"))


def test_no_seal_holds_what_json_cannot() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        seal({"loss": float("nan")})


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_replaced_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool
) -> None:
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), real(handle))[1])
    path = tmp_path / "new" / "file"
    write_bytes(path, b"one", sync=sync)
    assert len(synced) == (2 if sync else 0)  # the file and its folder
    with pytest.raises(KeyboardInterrupt), atomic_file(path, sync=sync) as file:
        file.write(b"half of t")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"one"
    assert list(path.parent.iterdir()) == [path]


def test_derived_seeds_are_stable_and_depend_on_every_part():
    assert seeding.derive(0, "pod", 1) == 89610436291909831
    seeds = {
        seeding.derive(root, name, k)
        for root in range(20)
        for name in ("env", "agent")
        for k in range(20)
    }
    assert len(seeds) == 20 * 2 * 20


def test_generators_repeat_and_differ():
    def draw(*names: object) -> torch.Tensor:
        return torch.rand(8, generator=seeding.generator(3, *names))

    assert torch.equal(draw("env"), draw("env"))
    assert not torch.equal(draw("env"), draw("agent"))
    assert (
        seeding.numpy_generator(3, "a").random(4) == seeding.numpy_generator(3, "a").random(4)
    ).all()


def test_seeding_everything_repeats_layer_initialisation():
    def layer() -> torch.Tensor:
        seeding.seed_everything(5)
        return torch.nn.Linear(3, 3).weight.detach().clone()

    assert torch.equal(layer(), layer())
