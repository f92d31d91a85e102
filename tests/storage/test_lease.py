import os
import signal
import threading
import time
from uuid import uuid4

import pytest

from fintrader.errors import RunError, StorageDamagedError, StorageError
from fintrader.storage import lease
from fintrader.storage.lease import find_newest_token, hold, is_held
from fintrader.storage.objects import ObjectStore


def elsewhere(patch):
    """From now on this process looks like one of another machine, and holds nothing."""
    name = uuid4().hex
    patch.setattr(lease, "name_process_space", lambda: name)
    lease._held.clear()


def test_held_once_and_again(url):
    store = ObjectStore(url)
    assert not is_held(store)
    with hold(store) as one:
        assert one.token == 1
        assert is_held(store)
        with hold(store) as again:  # the same process may go deeper
            assert again is one
        one.check()
    assert not is_held(store)
    with hold(store) as two:
        assert two.token == 2
    with hold(store, above=7) as later:
        assert later.token == 8
    assert store.list_names("lease") == ["lease/000008.json"]


@pytest.mark.usefixtures("hasty")
def test_a_living_holder_elsewhere_is_left_alone(tmp_path, monkeypatch):
    store = ObjectStore(f"file://{tmp_path}")
    monkeypatch.setattr(lease, "LAPSE_SECONDS", 300.0)
    with hold(store) as held:
        elsewhere(monkeypatch)
        with pytest.raises(RunError, match="in use by process"), hold(store):
            pass
        held.check()
        assert find_newest_token(store) == held.token


@pytest.mark.usefixtures("hasty")
def test_a_holder_that_slept_finds_itself_superseded(url, monkeypatch):
    store = ObjectStore(url)
    asleep = lease.StoreLease(
        store, lease._acquire_token(store, 0)
    )  # never started: it does not beat
    asleep.check()
    elsewhere(monkeypatch)
    with hold(store) as awake:
        assert awake.token == asleep.token + 1
        time.sleep(lease.LEASE_SECONDS)
        with pytest.raises(RunError, match="taken this run over"):
            asleep.check()
        awake.check()


def test_a_killed_holder_of_this_machine_is_known_to_be_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(lease, "LAPSE_SECONDS", 3600.0)  # nobody has to wait for that
    store = ObjectStore(f"file://{tmp_path}")
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        with hold(store):
            os.write(tell, b"1")
            time.sleep(3600)
        os._exit(0)
    os.read(ready, 1)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with hold(store) as mine:
        assert mine.token == 2


def test_a_store_without_conditional_writes_says_so(tmp_path, monkeypatch, capsys):
    store = ObjectStore(f"file://{tmp_path}")
    monkeypatch.setattr(lease, "BEAT_SECONDS", 0.05)

    def overwrite(name, data):
        store.put(name, data)
        return True

    monkeypatch.setattr(store, "create", overwrite)
    with hold(store) as held:
        held.check()
    assert "no conditional writes" in capsys.readouterr().err


def test_a_store_that_is_silent_for_a_while(tmp_path, hasty, monkeypatch):
    store = ObjectStore(f"file://{tmp_path}", patience=0)
    names = store.list_names

    def silent(*_):
        raise StorageError("no answer")

    with hold(store) as held:
        monkeypatch.setattr(store, "list_names", silent)
        time.sleep(2 * lease.LEASE_SECONDS)
        with pytest.raises(StorageError, match="no answer"):
            held.check()  # it cannot know, so it may not act
        monkeypatch.setattr(store, "list_names", names)
        held.check()
    assert threading.active_count() < 20


def test_a_damaged_lease_is_told(tmp_path):
    store = ObjectStore(f"file://{tmp_path}")
    store.put("lease/000003.json", b"half a")
    with pytest.raises(StorageDamagedError, match="000003"), hold(store):
        pass
