import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from fintrader import files, runs, seeding
from fintrader.errors import CheckpointError, RunError, UnsafePathError
from fintrader.files import read_json, seal, unseal, write_bytes
from fintrader.results.tournament_events import NoCapacityEvent
from fintrader.runs import Manifest, RunFolder
from fintrader.storage.objects import ObjectStore
from fintrader.tournament.events import EventLog
from fintrader.tournament.leaderboard import LeaderboardIndex


def test_damaged_and_missing_json_are_typed(tmp_path):
    (tmp_path / "a.json").write_text('{"x": ')
    with pytest.raises(RunError, match="not valid JSON"):
        files.read_json(tmp_path / "a.json")
    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(RunError, match="not valid JSON"):
        files.read_json(tmp_path / "a.json")
    with pytest.raises(RunError, match="does not exist"):
        files.read_json(tmp_path / "b.json")


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
def test_only_plain_names_make_a_run_folder(name, tmp_path):
    with pytest.raises(RunError, match="run name"):
        runs.RunFolder.named(name, tmp_path)


def make(path):
    return Manifest.create(
        path, name="r", seed=3, device="cpu", config_hash="00", command="fintrader run r"
    )


def test_a_stage_is_done_only_after_its_body_ended_well(tmp_path):
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


def test_versions_are_there_and_the_end_is_noted_once(tmp_path):
    manifest = make(tmp_path / "manifest.json")
    assert {"python", "torch", "fintrader"} <= set(manifest.values["versions"])
    manifest.finish()
    first = manifest.values["finished"]
    manifest.values["finished"] = "earlier"
    manifest.finish()
    assert first
    assert manifest.values["finished"] == "earlier"


def test_a_foreign_or_damaged_manifest_is_typed(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text('{"format": "other"}')
    with pytest.raises(
        RunError, match="of another version; go on with the version of fintrader that wrote it"
    ):
        Manifest.load(path)
    path.write_text("[1]")
    with pytest.raises(RunError):
        Manifest.load(path)


BODY = {
    "text": '{"a": 1}\n',
    "rows": 3,
    "share": 0.1,
    "none": None,
    "nested": {"é": ["x", True]},
}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_sealed_body_comes_back(indent):
    data = seal(BODY, indent=indent)
    assert unseal(data, CheckpointError("damaged")) == BODY
    assert set(json.loads(data)) == {"sha256", *BODY}  # any reader of JSON sees what is in it
    assert seal(dict(reversed(BODY.items())), indent=indent) == data


def test_any_flipped_bit_breaks_the_seal():
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
def test_what_was_never_sealed_or_is_not_whole(data):
    with pytest.raises(CheckpointError):
        unseal(data, CheckpointError("damaged"))


def test_no_seal_holds_what_json_cannot():
    with pytest.raises(ValueError, match="JSON compliant"):
        seal({"loss": float("nan")})


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_and_its_folder_are_brought_to_disk(tmp_path, monkeypatch, sync):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    write_bytes(tmp_path / "new" / "file", b"one", sync=sync)
    assert len(synced) == (2 if sync else 0)


def test_derived_seeds_are_stable_and_depend_on_every_part():
    assert seeding.derive(0, "pod", 1) == 89610436291909831
    seeds = {
        seeding.derive(root, name, k)
        for root in range(20)
        for name in ("env", "agent")
        for k in range(20)
    }
    assert len(seeds) == 20 * 2 * 20


# --- links, pipes and the like inside a run's folder ----------------------------------------------


@pytest.fixture
def two(tmp_path):
    """The folders of two runs, as far as anything tells that they are runs, each with a file in a
    folder."""
    for name in ("mine", "other"):
        folder = tmp_path / "runs" / name
        (folder / "inside").mkdir(parents=True)
        (folder / "inside" / "file").write_bytes(b"as it was")
        (folder / "manifest.json").write_text("{}")
        (folder / ".lock").touch()
    return tmp_path / "runs" / "mine", tmp_path / "runs" / "other"


def contents(folder):
    """All files below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def lock(path):
    with ObjectStore(path.parent).lock():
        pass


def fetch(path):
    store = ObjectStore(path.parents[3] / "store")
    store.put("a", b"x")
    store.get_file("a", path, files.hash_file(path.parents[3] / "store" / "a"))


WRITERS = {
    "write_bytes": lambda path: files.write_bytes(path, b"x"),
    "write_json": lambda path: files.write_json(path, {}),
    "publish": lambda path: files.publish(path, b"x"),
    "append_jsonl": lambda path: files.append_jsonl(path, {}),
    "open_file": lambda path: files.open_file(path, "ab"),
    "make_folder": files.make_folder,
    "put": lambda path: ObjectStore(path.parent).put(path.name, b"x"),
    "create": lambda path: ObjectStore(path.parent).create(path.name, b"x"),
    "put_file": lambda path: ObjectStore(path.parent).put_file(path.name, Path(__file__)),
    "get_file": fetch,
    "events": lambda path: EventLog(path).append(NoCapacityEvent()),
    "database": LeaderboardIndex,
}
"""What writes to a path."""
INSIDE = {
    "remove": files.remove,
    "remove_tree": lambda path: files.remove_tree(path.parent / "folder"),
    "move": lambda path: files.move(path, path.with_name("moved")),
    "objects remove": lambda path: ObjectStore(path.parent).remove(path.name),
    "objects sweep": lambda path: ObjectStore(path.parent).remove_temporaries(),
    "objects lock": lock,
    "run lock": lambda path: RunFolder(path.parent).lock().__enter__(),
}
"""What changes something in the folder of a path."""


@pytest.mark.parametrize("name", [*WRITERS, *INSIDE])
@pytest.mark.parametrize("passes", ["folder", "new folder"])
def test_nothing_is_changed_through_a_link_inside_a_run(two, name, passes):
    mine, other = two
    (other / "inside" / "folder").mkdir()
    (other / "inside" / ".left.tmp").touch()
    before = contents(other)
    shutil.rmtree(mine / "inside")
    (mine / "inside").symlink_to(other / "inside")
    place = mine / "inside" / "file" if passes == "folder" else mine / "inside" / "below" / "file"
    if passes == "new folder" and name in INSIDE:
        place = mine / "inside" / ".." / "inside" / "file"
    with pytest.raises(
        UnsafePathError, match=r"mine/.*inside is a symbolic link .*; remove the link"
    ) as refused:
        (WRITERS | INSIDE)[name](place)
    assert "\n" not in str(refused.value)
    assert contents(other) == before
    assert (other / "inside" / "folder").is_dir()
    assert not (other / "inside" / "below").exists()


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("target", ["file", "nowhere", "loop", "/dev/full"])
def test_nothing_is_written_over_a_link_inside_a_run(two, name, target):
    mine, other = two
    before = contents(other)
    place = mine / "inside" / "file"
    place.unlink()
    place.symlink_to({"file": other / "inside" / "file", "loop": place}.get(target, Path(target)))
    with pytest.raises(UnsafePathError, match="symbolic link"):
        WRITERS[name](place)
    assert contents(other) == before
    assert place.is_symlink()


@pytest.mark.parametrize("name", [*WRITERS, *INSIDE])
def test_a_run_and_what_lies_above_it_may_be_links(two, tmp_path, name):
    mine, _ = two
    (mine / "inside" / "file").unlink()
    (tmp_path / "linked").symlink_to(mine.parent)
    (mine.parent / "also").symlink_to(mine)
    place = tmp_path / "linked" / "also" / "inside" / "file"
    if name in ("remove", "move"):
        place.touch()
    (WRITERS | INSIDE)[name](place)


def make_pipe(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # the address of a socket is short
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


READERS = {
    "read_json": files.read_json,
    "read_jsonl": files.read_jsonl,
    "hash_file": files.hash_file,
    "get": lambda path: ObjectStore(path.parent).get(path.name),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", [name for name in (*WRITERS, *READERS) if name != "make_folder"])
@pytest.mark.parametrize(
    ("make", "kind"), [(make_pipe, "pipe"), (make_socket, "socket"), (Path.mkdir, "folder")]
)
def test_what_is_no_file_is_neither_waited_for_nor_replaced(two, name, make, kind):
    place = two[0] / "inside" / "file"
    place.unlink()
    make(place)
    mode = place.lstat().st_mode
    with pytest.raises(
        UnsafePathError, match=rf"inside/file is a {kind} where a file belongs; remove it"
    ):
        (WRITERS | READERS)[name](place)
    assert place.lstat().st_mode == mode


@pytest.mark.timeout(60)
def test_a_lock_that_is_a_pipe_is_not_waited_for(two):
    (two[0] / ".lock").unlink()
    os.mkfifo(two[0] / ".lock")
    with pytest.raises(RunError, match=r"\.lock is a pipe"), RunFolder(two[0]).lock():
        pass


def test_a_link_itself_is_removed_and_renamed_and_what_it_leads_to_stays(
    two,
):
    mine, other = two
    before = contents(other)
    for number, take in enumerate(
        (files.remove, files.remove_tree, lambda path: files.move(path, mine / "away"))
    ):
        link = mine / f"link{number}"
        link.symlink_to(other / "inside", target_is_directory=True)
        take(link)
        assert not link.is_symlink()
    assert (mine / "away").is_symlink()
    assert contents(other) == before


def test_log_and_database_that_another_run_shares_are_not_changed(two):
    mine, other = (RunFolder(root) for root in two)
    EventLog(other.events).append(NoCapacityEvent())
    LeaderboardIndex(other.leaderboard).close()
    for name in ("events.jsonl", "leaderboard.sqlite"):
        os.link(other.root / name, mine.root / name)
    before = contents(other.root)
    log = EventLog(mine.events)  # reading is no harm
    for change in (
        lambda: log.append(NoCapacityEvent()),
        lambda: LeaderboardIndex(mine.leaderboard),
    ):
        with pytest.raises(UnsafePathError, match=r"a hard link.* cp -p "):
            change()
    assert contents(other.root) == before
