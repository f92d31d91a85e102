import errno
import hashlib
import multiprocessing
import sys
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest
from fsspec.registry import _registry

from fintrader.config import check_no_secret, check_url, refuse_url
from fintrader.errors import (
    ConfigError,
    DataError,
    StorageAccessError,
    StorageDamagedError,
    StorageError,
    StorageFullError,
    StorageOfflineError,
)
from fintrader.storage import objects as module
from fintrader.storage.objects import ObjectStore, open_file_system, read_csv, read_whole
from fintrader.system import is_locked
from tests.engines.object_stores import SECRET, forget
from tests.engines.waiting import free_port


def test_whole_objects(url, tmp_path):
    store = ObjectStore(url)
    store.check_access()
    assert store.get("a/b") is None
    assert store.list_names() == []
    store.put("a/b", b"one")
    store.put("a/b", b"two")
    assert store.get("a/b") == b"two"
    assert store.exists("a/b")
    assert not store.exists("a")
    store.put("a/c/d", b"")
    assert store.list_names() == ["a/b", "a/c/d"]
    assert store.list_names("a/c") == ["a/c/d"]
    assert store.list_names("nothing") == []
    assert store.list_folders() == ["a"]
    assert store.open_below("a").get("b") == b"two"
    store.remove("a/b", "never/there")
    assert store.list_names() == ["a/c/d"]
    big = tmp_path / "big"
    big.write_bytes(bytes(range(256)) * 4000)
    store.put_file("files/big", big)
    copy = tmp_path / "copy" / "big"
    assert store.get_file("files/big", copy, hashlib.sha256(big.read_bytes()).hexdigest())
    assert copy.read_bytes() == big.read_bytes()
    assert not store.get_file("files/none", tmp_path / "none", "0")
    with pytest.raises(StorageDamagedError, match="files/big"):
        store.get_file("files/big", tmp_path / "other", "0")
    assert [path.name for path in copy.parent.iterdir()] == ["big"]
    assert not (tmp_path / "other").exists()


def test_one_of_many_creates(url):
    """The one thing that leases and results are built on."""
    store = ObjectStore(url)
    assert store.is_exclusive
    for round_ in range(3):
        with ThreadPoolExecutor(8) as pool:
            won = list(
                pool.map(
                    lambda writer, r=round_: store.create(f"round/{r}", b"%d" % writer), range(8)
                )
            )
        assert sum(won) == 1
        assert store.get(f"round/{round_}") == b"%d" % won.index(True)
    assert store.create(
        "round/0", store.get("round/0") or b""
    )  # an equal one is ours: an answer may have been lost
    assert not store.create("round/0", b"another")


def test_many_fetch_one_file_at_once(url, tmp_path):
    """Pods that came to equal curves share one object, and a pull fetches it for all of them side
    by side."""
    store = ObjectStore(url)
    data = bytes(range(256)) * 4096
    digest = hashlib.sha256(data).hexdigest()
    store.put("one", data)
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(lambda n: store.get_file("one", tmp_path / f"{n}", digest), range(64)))


@pytest.mark.parametrize(
    "url",
    ["runs", "https://a.test/runs", "s3://key:secret@bucket/runs", "s3://bucket/runs?token=secret"],
)
def test_urls_that_are_none_or_hold_a_secret(url):
    with pytest.raises(ConfigError) as caught:
        check_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "read", [check_url, check_no_secret, ObjectStore], ids=["store", "path", "objects"]
)
def test_a_file_url_names_no_machine(read, tmp_path):
    with pytest.raises(
        ConfigError, match=r"names a machine, here runs; write file:///folder .*\(runs/x\)"
    ):
        read("file://runs/x")
    read(f"file://{tmp_path}/x")
    read(f"file://localhost{tmp_path}/x")


def test_a_missing_extra_is_named(monkeypatch):
    for package, scheme in (("s3fs", "s3"), ("gcsfs", "gs")):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(_registry, scheme, raising=False)
        with pytest.raises(StorageError, match=rf"pip install .{package}"):
            ObjectStore(f"{scheme}://bucket/runs")
    with pytest.raises(StorageError, match="nosuch"):
        ObjectStore("nosuch://bucket/runs")


def test_a_wrong_bucket(s3):
    store = ObjectStore("s3://no-such-bucket/runs", patience=0)
    for call in (
        store.check_access,
        lambda: store.get("a"),
        lambda: store.put("a", b""),
        store.list_names,
    ):
        with pytest.raises(StorageAccessError, match="bucket does not exist"):
            call()


def test_no_right_and_no_credentials(s3, monkeypatch):
    store = ObjectStore("s3://bucket/runs", patience=0)

    def refuse(*_, **__):
        raise PermissionError(f"Forbidden for {SECRET}")

    with monkeypatch.context() as patch:
        patch.setattr(store._fs, "pipe_file", refuse)
        with pytest.raises(StorageAccessError, match="access denied") as caught:
            store.put("a", b"")
        assert SECRET not in str(caught.value)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", "/nonexistent")
    forget()
    with pytest.raises(StorageAccessError, match="AWS_ACCESS_KEY_ID"):
        ObjectStore("s3://bucket/runs", patience=0).get("a")


@pytest.mark.slow
def test_a_server_that_does_not_answer(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    forget()
    store = ObjectStore("s3://bucket/runs", patience=0)
    store._fs.retries = 1
    with pytest.raises(StorageOfflineError, match="does not answer"):
        store.get("a")


def test_a_server_that_comes_back_is_waited_for(tmp_path, monkeypatch):
    store = ObjectStore(f"file://{tmp_path}/store")
    calls = []
    write = module.write_bytes

    def sometimes(path, data, **_):
        calls.append(path)
        if len(calls) < 3:
            raise ConnectionResetError
        write(path, data)

    monkeypatch.setattr(module, "write_bytes", sometimes)
    store.put("a", b"1")
    assert store.get("a") == b"1"
    assert len(calls) == 3


def test_full_and_forbidden_disks(tmp_path, monkeypatch):
    store = ObjectStore(f"file://{tmp_path}/store", patience=0)
    store.put("a", b"1")

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "write_bytes", full)
    with pytest.raises(StorageFullError, match="full"):
        store.put("a", b"2")
    assert store.get("a") == b"1"
    monkeypatch.setattr(module.shutil, "copyfile", full)
    with pytest.raises(StorageFullError, match=f"{tmp_path}: the disk is full"):
        store.get_file("a", tmp_path / "a", "0")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageAccessError):
        ObjectStore(f"file://{tmp_path}/file/below", patience=0).check_access()


def test_a_path_is_a_store_like_a_url(tmp_path):
    for where in (tmp_path / "a", str(tmp_path / "a"), f"file://{tmp_path}/a", f"{tmp_path}/a/"):
        store = ObjectStore(where)
        store.put("x/y", str(where).encode(), sync=False)
        assert (tmp_path / "a" / "x" / "y").read_bytes() == str(where).encode()
        assert store.is_exclusive
        assert store.list_names() == ["x/y"]
        assert not str(store).endswith("/")
    assert str(ObjectStore(tmp_path / "a").open_below("x")) == str(tmp_path / "a" / "x")


def test_everything_goes_at_once(url):
    store = ObjectStore(f"{url}/below")
    beside = ObjectStore(f"{url}/beside")
    beside.put("a", b"1")
    for name in ("a", "b/c"):
        store.put(name, b"1")
    store.clear()
    assert store.list_names() == []
    assert beside.list_names() == ["a"]
    store.clear()  # nothing is there, and that is no error


def _held(folder):
    with (folder / ".lock").open("a") as file:
        return is_locked(file)


def test_a_lock_keeps_other_processes_out_and_is_no_object(tmp_path):
    store = ObjectStore(tmp_path / "new")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        with store.lock():
            assert pool.apply(_held, (tmp_path / "new",))
        assert not pool.apply(_held, (tmp_path / "new",))
    assert store.list_names() == []
    with ObjectStore("memory://locked").lock():  # no lock, and no error
        pass
    (tmp_path / "file").write_text("no folder")
    with (
        pytest.raises(StorageAccessError, match="check the path"),
        ObjectStore(tmp_path / "file").lock(),
    ):
        pass


def test_a_file_server_gets_its_folders_first(tmp_path):
    """Unlike an object store, a server of files knows folders, and refuses a file in one that is
    missing."""
    store = ObjectStore(f"local://{tmp_path}/new")
    assert store.local is None
    assert not store.is_exclusive
    store.put("deep/a", b"1")
    assert store.create("deep/er/b", b"2")
    assert not store.create("deep/er/b", b"3")
    assert store.list_names() == ["deep/a", "deep/er/b"]


def test_small_files_of_settings(tmp_path):
    content = "\ufeffticker,day\nAAA,2016-01-04\n".encode()
    (tmp_path / "list.csv").write_bytes(content)
    fsspec.filesystem("memory").pipe_file("/small/list.csv", content)
    for home in (str(tmp_path), f"file://{tmp_path}", "memory://small"):
        assert read_whole(f"{home}/list.csv", "data.list") == content
        assert list(read_csv(f"{home}/list.csv", "data.list")) == [
            (2, {"ticker": "AAA", "day": "2016-01-04"})
        ]
        with pytest.raises(DataError, match=r"none.csv does not exist; see data.list"):
            read_whole(f"{home}/none.csv", "data.list")
    with pytest.raises(DataError, match=r"Is a directory; .*; see data.list"):
        read_whole(str(tmp_path), "data.list")
    (tmp_path / "list.csv").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(DataError, match="is not UTF-8 text"):
        list(read_csv(str(tmp_path / "list.csv"), "data.list"))
    with pytest.raises(DataError, match=r"see data.list"):
        read_whole("nosuch://bucket/list.csv", "data.list")
    fsspec.filesystem("memory").rm("/small", recursive=True)


def test_urls_and_paths_are_told_apart():
    fs, path = open_file_system("memory://bucket/a")
    assert (fs.protocol, path) == ("memory", "/bucket/a")
    for url in ("s3://bucket/runs", "s3:/bucket/runs"):  # pathlib makes one slash of two
        with pytest.raises(DataError, match=r"^cache: s3:.* is a URL"):
            refuse_url(url, "cache")
    for folder in ("data/tensors", "C:/tensors", "/a/b"):
        refuse_url(folder, "cache")


def test_a_shared_disk_that_goes_away_does_not_answer(tmp_path):
    """What lay there is not gone, and nothing is written below the empty folder where it was
    mounted."""
    store = ObjectStore(tmp_path / "mounted" / "runs" / "one", patience=0.0)
    store.put("name", b"bytes")
    (tmp_path / "mounted").rename(tmp_path / "away")
    (tmp_path / "mounted").mkdir()
    for call in (
        lambda: store.get("name"),
        lambda: store.put("other", b""),
        lambda: store.create("name", b""),
        store.list_names,
    ):
        with pytest.raises(StorageOfflineError, match="does not answer"):
            call()
    assert list((tmp_path / "mounted").iterdir()) == []
    (tmp_path / "mounted").rmdir()
    (tmp_path / "away").rename(tmp_path / "mounted")
    assert store.get("name") == b"bytes"


def test_a_folder_that_is_expected_and_was_never_there_does_not_answer(tmp_path):
    store = ObjectStore(tmp_path / "one", patience=0.0)
    assert store.list_names() == []  # a new one is empty
    store.expect_folder()
    with pytest.raises(StorageOfflineError):
        store.put("name", b"")
