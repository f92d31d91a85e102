from __future__ import annotations

import fcntl
import multiprocessing
from pathlib import Path

import fsspec
import pytest

from fintrader.config import refuse_url
from fintrader.errors import DataError, StorageAccessError
from fintrader.storage.objects import Objects, file_system, read_csv, read_whole


def test_a_path_is_a_store_like_a_url(tmp_path: Path) -> None:
    for where in (tmp_path / "a", str(tmp_path / "a"), f"file://{tmp_path}/a", f"{tmp_path}/a/"):
        store = Objects(where)
        store.put("x/y", str(where).encode(), sync=False)
        assert (tmp_path / "a" / "x" / "y").read_bytes() == str(where).encode()
        assert store.exclusive
        assert store.names() == ["x/y"]
        assert not str(store).endswith("/")
    assert str(Objects(tmp_path / "a").below("x")) == str(tmp_path / "a" / "x")


def test_everything_goes_at_once(url: str) -> None:
    store = Objects(f"{url}/below")
    beside = Objects(f"{url}/beside")
    beside.put("a", b"1")
    for name in ("a", "b/c"):
        store.put(name, b"1")
    store.clear()
    assert store.names() == []
    assert beside.names() == ["a"]
    store.clear()  # nothing is there, and that is no error


def _held(folder: Path) -> bool:
    with (folder / ".lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def test_a_lock_keeps_other_processes_out_and_is_no_object(tmp_path: Path) -> None:
    store = Objects(tmp_path / "new")
    with multiprocessing.get_context("fork").Pool(1) as pool:
        with store.lock():
            assert pool.apply(_held, (tmp_path / "new",))
        assert not pool.apply(_held, (tmp_path / "new",))
    assert store.names() == []
    with Objects("memory://locked").lock():  # no lock, and no error
        pass
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(StorageAccessError, match="check the path"), Objects(tmp_path / "file").lock():
        pass


def test_a_file_server_gets_its_folders_first(tmp_path: Path) -> None:
    """Unlike an object store, a server of files knows folders, and refuses a file in one that is missing."""
    store = Objects(f"local://{tmp_path}/new")
    assert store.local is None
    assert not store.exclusive
    store.put("deep/a", b"1")
    assert store.create("deep/er/b", b"2")
    assert not store.create("deep/er/b", b"3")
    assert store.names() == ["deep/a", "deep/er/b"]


def test_small_files_of_settings(tmp_path: Path) -> None:
    content = "\ufeffticker,day\nAAA,2016-01-04\n".encode()
    (tmp_path / "list.csv").write_bytes(content)
    fsspec.filesystem("memory").pipe_file("/small/list.csv", content)
    for home in (str(tmp_path), f"file://{tmp_path}", "memory://small"):
        assert read_whole(f"{home}/list.csv", "data.list") == content
        assert list(read_csv(f"{home}/list.csv", "data.list")) == [(2, {"ticker": "AAA", "day": "2016-01-04"})]
        with pytest.raises(DataError, match=r"none.csv: no such file; see data.list"):
            read_whole(f"{home}/none.csv", "data.list")
    with pytest.raises(DataError, match=r"Is a directory; .*; see data.list"):
        read_whole(str(tmp_path), "data.list")
    (tmp_path / "list.csv").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(DataError, match="no UTF-8 text"):
        list(read_csv(str(tmp_path / "list.csv"), "data.list"))
    with pytest.raises(DataError, match=r"see data.list"):
        read_whole("nosuch://bucket/list.csv", "data.list")
    fsspec.filesystem("memory").rm("/small", recursive=True)


def test_urls_and_paths_are_told_apart() -> None:
    fs, path = file_system("memory://bucket/a")
    assert (fs.protocol, path) == ("memory", "/bucket/a")
    for url in ("s3://bucket/runs", "s3:/bucket/runs"):  # pathlib makes one slash of two
        with pytest.raises(DataError, match=r"^cache: s3:.* is a URL"):
            refuse_url(url, "cache")
    for folder in ("data/tensors", "C:/tensors", "/a/b"):
        refuse_url(folder, "cache")
