"""Two machines that both drive one tournament for a while: a head that slept, and its successor."""

import errno
import os
import signal

import pytest

from fintrader import system
from fintrader.config import Settings
from fintrader.errors import TournamentError
from fintrader.files import read_jsonl
from fintrader.runs import RunFolder
from fintrader.storage import lease
from fintrader.storage.mirror import attach, find_mirror
from fintrader.storage.objects import ObjectStore
from fintrader.tournament.lease import read_token
from fintrader.tournament.mirrored_store import open_store
from fintrader.tournament.run_tournament import replay
from fintrader.tournament.status import compare
from fintrader.tournament.store import RunStore
from tests.engines import emptied, stubs
from tests.engines.chaos import DONE, REFUSED, events_of, everything, fork
from tests.engines.races import OPERATIONS, ORDER, settings, stub_race
from tests.engines.thread_launcher import ThreadLauncher

PODS = 12
FOUNDERS = 2


class Sleeper(ThreadLauncher):
    """Stops its process after the lease was checked and before specs are made, once so many results
    are there."""

    results = -1

    def check_pods(self):
        if 0 <= self.results <= len(list(self.run.pods.glob("*/result.json"))):
            self.results = -1
            os.kill(os.getpid(), signal.SIGSTOP)


def head(run, *, machine, workers, sleeps_at):
    """Fork a head on a machine of its own; its process."""

    def work():
        lease._held.clear()
        lease.name_process_space = lambda: machine
        lease.BEAT_SECONDS = 0.1
        lease.LEASE_SECONDS = 0.4
        lease.LAPSE_SECONDS = 0.6

        def launcher(_, access):
            made = Sleeper(run, run.root.parent, stubs.body, workers=workers, token=access.token)
            made.results = sleeps_at
            return made

        wanted = settings(pods=PODS, workers=workers, order=ORDER, founders=FOUNDERS, fresh=0.0)
        stub_race(run, wanted, launcher=launcher)

    return fork(work)


def asleep(pid):
    """Return when the process has stopped itself."""
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), os.waitstatus_to_exitcode(status)


def ended(pid):
    """Wake a process up; its exit status."""
    os.kill(pid, signal.SIGCONT)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture
def machines(tmp_path):
    """The run's folder on a machine of that name, as a copy of the one in the store."""

    def machine(name):
        run = RunFolder(tmp_path / name / "run")
        attach(run.root, f"file://{tmp_path}/store/run")
        return run

    return machine


def test_a_head_that_slept_between_lease_and_spec(tmp_path, machines, race):
    one, two, three = (machines(name) for name in ("one", "two", "three"))
    url = f"file://{tmp_path}/store/run"
    store = ObjectStore(url)
    first = head(one, machine="one", workers=3, sleeps_at=4)  # checks its lease, and sleeps
    asleep(first)
    made = len([name for name in store.list_names("pods") if name.endswith("spec.json")])
    second = head(
        two, machine="two", workers=1, sleeps_at=made
    )  # takes over, and is about to make the next spec
    asleep(second)
    assert ended(first) == REFUSED  # it wakes up, and writes specs before it asks again
    late = [name.split("/")[1] for name in store.list_names("pods") if name.endswith("spec.json")][
        made:
    ]
    assert late
    before = emptied.results_in(url)
    assert ended(second) == DONE
    acknowledged = emptied.results_in(url)
    assert len(acknowledged) == PODS
    assert before.items() <= acknowledged.items()
    adopted = {event["pod"] for event in events_of(two, "adopted")}
    assert adopted
    assert adopted <= set(late)
    third = head(three, machine="three", workers=2, sleeps_at=-1)
    assert ended(third) == DONE
    assert emptied.results_in(url) == acknowledged
    assert everything(three) == everything(two)
    assert not events_of(three, "damaged")
    applied = [event["pod"] for event in read_jsonl(three.events) if event["event"] == "applied"]
    assert len(applied) == len(set(applied)) == PODS

    again = RunFolder(
        tmp_path / "again" / "run"
    )  # what the sleeper made is part of what a replay is given
    wanted = settings(pods=PODS, order=ORDER, founders=FOUNDERS, fresh=0.0)
    threads = ThreadLauncher(again, tmp_path, stubs.body, workers=2)
    how = {"agents": (stubs.StubAgent(),), "env": Settings(), "seed": 5, "operations": OPERATIONS}
    how |= {"ensemble": stubs.ensemble, "data_hash": "data"}
    replay(three, wanted, folder=again, market=stubs.market(tmp_path), launcher=threads, **how)
    assert compare(three, again) == []


def test_the_spec_that_stands_counts_wherever_another_one_lies(
    machines,
):
    stores = [open_store(run, find_mirror(run.root)) for run in map(machines, ("one", "two"))]
    first = stubs.spec(0, seed=1)
    other = stubs.spec(0, seed=2)
    assert stores[0].write_specs([first]) == [first]
    RunStore(stores[1].run).write_spec(
        other
    )  # as an earlier version left it, which was ended before it stored it
    assert stores[1].write_specs([other, stubs.spec(1)]) == [first, stubs.spec(1)]
    assert stores[1].read_spec("p0000") == RunStore(stores[1].run).read_spec("p0000") == first
    assert (
        len(list(stores[1].run.pod("p0000").glob("spec.damaged-*.json"))) == 1
    )  # nothing is thrown away
    assert stores[0].read_unbroken_specs() == [first, stubs.spec(1)]
    assert stores[0].write_spec(first) == first


def test_a_spec_that_landed_before_the_one_below_it_is_adopted_in_its_turn(
    tmp_path, machines, race
):
    """Specs of one turn are stored side by side, so a head may be ended after the second and before
    the first."""
    whole = race("plain", pods=6)
    run = machines("one")
    race("one/run", pods=2)
    early = RunStore(whole.folder).read_spec("p0004")
    open_store(run, find_mirror(run.root)).write_spec(early)
    race("one/run", pods=6)
    assert everything(run) == everything(whole.folder)
    assert early.pod not in {event["pod"] for event in events_of(run, "damaged")}


def test_locks_that_keep_nobody_out_are_noticed(tmp_path, race, monkeypatch):
    """As on some network file systems; with a store the store keeps them apart."""
    run = RunFolder(tmp_path / "run")
    monkeypatch.setattr(system, "lock_descriptor", lambda *_, **__: True)
    with pytest.raises(TournamentError, match="file locks exclude no process here"):
        race("run", pods=2)
    assert not RunStore(run).identity_path.exists()
    attach(tmp_path / "stored", f"file://{tmp_path}/store/stored")
    assert race("stored", pods=2).trials == 2

    def unknown(*_, **__):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(system, "lock_descriptor", unknown)
    with pytest.raises(TournamentError, match="file locks exclude no process here"):
        race("run", pods=2)


@pytest.mark.slow
def test_never_one_token_for_two_where_each_machine_keeps_its_locks_to_itself(
    tmp_path,
):
    diary = tmp_path / "diary"
    run = RunFolder(tmp_path / "run")
    pids = []
    for _ in range(7):
        pid = os.fork()
        if pid == 0:
            for _ in range(20):
                token = lease.claim(ObjectStore(run.root))
                with diary.open("a") as file:
                    file.write(f"{token}\n")
            os._exit(0)
        pids.append(pid)
    for pid in pids:
        assert os.waitpid(pid, 0)[1] == 0
    tokens = [int(line) for line in diary.read_text().split()]
    assert len(set(tokens)) == len(tokens) == 140
    assert read_token(run) == max(tokens)
