import psutil
import pytest

from fintrader.errors import ConfigError, TournamentError
from fintrader.results.leaderboard_reader import read_leaderboard
from fintrader.results.tournament_events import LossEvent
from fintrader.runs import RunFolder
from fintrader.tournament.events import EventLog
from fintrader.tournament.launchers.local import list_cuda_devices
from fintrader.tournament.recount import check_tournament
from fintrader.tournament.store import RunStore
from tests.engines import stubs
from tests.engines.chaos import events_of, everything
from tests.engines.races import ORDER
from tests.engines.stubs import plant
from tests.engines.thread_launcher import ThreadLauncher
from tests.quick import slow_but


def test_same_seed_same_leaderboard_and_pod_k_sees_the_results_up_to_k_minus_pool_size(
    race,
):
    first = race("a", workers=1, pool_size=3)
    second = race("b", workers=3, pool_size=3)
    other = race("c", seed=2)
    assert everything(first.folder) == everything(second.folder)
    assert everything(first.folder) != everything(other.folder)
    seen = [spec.seen for spec in RunStore(first.folder).read_specs().values()]
    assert seen == [0, 0, *range(6)]
    assert first.trials == 8
    assert first.best == first.leaderboard[0].pod


def test_children_start_from_a_snapshot_that_was_on_the_board(race):
    run = race(pods=30, fresh=0.0).folder
    store = RunStore(run)
    specs = store.read_specs()
    results = store.read_results()
    children = [spec for spec in specs.values() if spec.parent]
    assert len(children) > 20
    for spec in children:
        assert spec.snapshot == results[spec.parent].snapshot
        assert specs[spec.parent].index < spec.seen
        # the weights would not fit otherwise
        assert spec.agent["network"] == specs[spec.parent].agent["network"]
        assert spec.agent["learning_rate"] != specs[spec.parent].agent["learning_rate"]


def test_calling_again_changes_nothing_and_more_pods_extend_it(race):
    first = race("a", pods=5)
    before = everything(first.folder)
    again = race("a", pods=5)
    assert everything(again.folder) == before
    extended = race("a", pods=9)
    whole = race("b", pods=9)
    assert everything(extended.folder) == everything(whole.folder)


@pytest.mark.slow
def test_five_hundred_pods_leave_nothing_open(race):
    process = psutil.Process()
    seen = {}

    def look(orchestrator):
        seen[len(orchestrator.leaderboard.applied)] = (
            process.num_fds(),
            process.num_threads(),
            process.memory_info().rss / 2**20,
        )

    assert race(pods=500, how={"watch": look}).trials == 500
    files, threads, memory = (
        {count: values[k] for count, values in seen.items()} for k in range(3)
    )
    for open_now in (files, threads):  # the least, since pods at work open some
        early = min(value for count, value in open_now.items() if count < 100)
        assert min(value for count, value in open_now.items() if count > 400) <= early
    # The leaderboard and the specs stay in memory.
    assert memory[max(memory)] - memory[min(count for count in memory if count >= 100)] < 30


def test_other_settings_do_not_get_into_the_same_folder(race):
    race(pods=3)
    with pytest.raises(TournamentError, match=r"seed: 1 stored, 7 requested"):
        race(pods=3, seed=7)
    with pytest.raises(
        TournamentError, match=r"another .* \(settings.temperature: 1.0 stored, 9.0 requested\)"
    ):
        race(pods=3, temperature=9.0)
    agents = (stubs.StubAgent(width=9), stubs.OtherAgent())
    with pytest.raises(
        TournamentError,
        match=r"agents.0.width: 8 stored, 9 requested; agents.1.algo: None stored, other",
    ):
        race(pods=3, how={"agents": agents})


def test_a_launcher_that_is_none_is_refused(race):
    with pytest.raises(ConfigError, match=r"object is no subclass of .*Launcher"):
        race(how={"launcher": lambda settings, access: object()})


def test_other_devices_may_go_on_with_the_same_number_of_learners(race):
    race(pods=2, devices=("cpu/cpu",))
    with pytest.raises(TournamentError, match=r"settings.replicas: 2 stored, 1 requested"):
        race(pods=3, devices=("cpu",))
    run = race(pods=3, devices=("cpu",), replicas=2).folder
    assert {spec.replicas for spec in RunStore(run).read_specs().values()} == {2}


@pytest.mark.parametrize(
    ("kind", "reason"),
    slow_but(
        0,
        every=[
            ("kill", "killed"),
            ("nan", "nan"),
            pytest.param("exit", "error", marks=pytest.mark.slow),
            pytest.param("oom", "oom", marks=pytest.mark.slow),
        ],
    ),
)
def test_a_lost_pod_is_noted_and_tried_again(race, tmp_path, kind, reason):
    undisturbed = race("a", pods=4)
    plant(RunFolder(tmp_path / "b"), "p0001", kind)
    disturbed = race("b", pods=4, processes=True)
    lost = events_of(disturbed.folder, "lost")
    assert [(event["pod"], event["attempt"], event["reason"]) for event in lost] == [
        ("p0001", 1, reason)
    ]
    assert everything(disturbed.folder) == everything(undisturbed.folder)
    assert RunStore(disturbed.folder).read_result("p0001").attempts == 2


@pytest.mark.slow
def test_what_is_killed_from_outside_has_not_failed_however_often(race, tmp_path):
    plant(RunFolder(tmp_path / "a"), "p0001", "kill", times=4)
    run = race("a", pods=2, processes=True, retries=0).folder
    result = RunStore(run).read_result("p0001")
    assert (result.status, result.attempts) == ("done", 5)
    assert [event["attempt"] for event in events_of(run, "lost")] == [1, 2, 3, 4]


def test_kills_before_a_restart_use_up_no_retry_after_it(race, tmp_path):
    run = RunFolder(tmp_path / "a")
    plant(run, "p0001", "boom", times=2)
    killed = LossEvent(pod="p0001", attempt=1, reason="killed", detail="")
    EventLog(run.events).append(*[killed] * 3)
    assert race("a", pods=2, retries=2).trials == 2
    assert RunStore(run).read_result("p0001").attempts == 6


def test_fewer_pods_end_with_what_there_is(race):
    for order in ("arrival", "submission"):
        before = race(order, pods=6, order=order)
        fewer = race(order, pods=2, order=order)
        assert everything(fewer.folder) == everything(before.folder)
        assert race(order, pods=8, order=order).trials == 8


def test_fewer_pods_while_one_of_them_is_not_done(race):
    before = race("a", pods=6, order="arrival")
    RunStore(before.folder).locate_result("p0001").unlink()
    assert race("a", pods=3, order="arrival").trials == 6
    assert race("a", pods=6, order="arrival").trials == 6


@pytest.mark.parametrize("pods", [6, 12])
def test_a_pod_that_is_trained_again_keeps_its_place_before_others(race, pods):
    run = race("a", pods=6, order="arrival").folder
    before = everything(run)
    RunStore(run).locate_result("p0000").write_bytes(b"")
    race("a", pods=pods, order="arrival")
    assert check_tournament(run).problems == []
    assert pods > 6 or everything(run) == before


@pytest.mark.slow
def test_a_hung_pod_is_killed_and_blocks_nobody(race, tmp_path):
    plant(RunFolder(tmp_path / "a"), "p0000", "hang", times=9)
    result = race("a", pods=4, processes=True, retries=0, patience_seconds=10.0)
    stored = RunStore(result.folder).read_result("p0000")
    assert (stored.status, stored.reason, stored.score) == ("failed", "hung", None)
    assert result.trials == 3
    assert len(read_leaderboard(result.folder.leaderboard)) == 3


def test_by_default_nobody_waits_for_a_pod_that_hangs(race, tmp_path):
    plant(RunFolder(tmp_path / "a"), "p0001", "wait")
    applied = []

    def watch(orchestrator):
        applied.append(len(orchestrator.leaderboard.applied))
        if applied[-1] == 15 or orchestrator.reconciles > 4000:  # minutes: they do wait
            stubs.release(orchestrator.store.run, ["p0001"])

    race("a", pods=16, order=ORDER, how={"watch": watch})
    assert 15 in applied
    specs = RunStore(RunFolder(tmp_path / "a")).read_specs()
    assert specs["p0015"].seen >= 13


def test_many_failures_at_once_do_not_end_what_others_still_try(race, tmp_path):
    """All but one of those under way fail before the first succeeds."""
    for number in range(7):
        plant(RunFolder(tmp_path / "a"), f"p{number:04d}", "boom", times=9)
    plant(RunFolder(tmp_path / "a"), "p0007", "wait")

    def watch(orchestrator):
        if len(orchestrator.leaderboard.applied) == 7:
            stubs.release(orchestrator.store.run, ["p0007"])

    assert race("a", pods=8, order=ORDER, workers=8, retries=0, how={"watch": watch}).trials == 1


def test_a_tournament_in_which_nothing_works_says_why(race, tmp_path):
    for number in range(8):
        plant(RunFolder(tmp_path / "a"), f"p{number:04d}", "boom", times=99)
    with pytest.raises(TournamentError, match=r"all \d pods failed.*ValueError: boom"):
        race("a", retries=0)


@pytest.mark.skipif(bool(list_cuda_devices()), reason="this machine has the device")
def test_no_capacity_is_said_at_once_and_harms_nothing(race, tmp_path):
    with pytest.raises(TournamentError, match="no capacity"):
        race("a", pods=2, processes=True, devices=("cuda:0",))
    (tmp_path / "a" / "scale.json").write_text('{"pods": 0}')  # as good as none
    assert race("a", pods=2).trials == 2


def test_devices_that_vanish_are_waited_for_and_then_reported(race, tmp_path):
    class Vanishing(ThreadLauncher):
        def measure_capacity(self):
            return 0 if self.started else 1

        started = False

        def submit(self, spec, *, attempt=1):
            self.started = True
            return super().submit(spec, attempt=attempt)

    run = RunFolder(tmp_path / "a")
    launcher = Vanishing(run, tmp_path, stubs.body, workers=1)
    with pytest.raises(TournamentError, match="devices have disappeared"):
        race("a", pods=3, patience_seconds=0.2, how={"launcher": launcher})
    assert len(RunStore(run).read_results()) == 1
    assert events_of(run, "no_capacity")
    assert race("a", pods=3).trials == 3
