import json
import re
import shutil
import threading
from fnmatch import fnmatch

import pytest

from fintrader import cli
from fintrader.errors import DataError, RunError, StorageOfflineError
from fintrader.files import read_jsonl
from fintrader.pipeline.config import load_config
from fintrader.pipeline.run_stages import backtest_run, claim, run, run_tournament
from fintrader.pipeline.session import copy_store, hold_run, open_run
from fintrader.results.backtest_files import read_backtest, read_seal
from fintrader.results.folders import Folder
from fintrader.runs import RunFolder
from fintrader.storage import lease, objects
from fintrader.storage.objects import ObjectStore
from fintrader.tournament.store import RunStore
from fintrader.verdict.looks import Ledger
from tests import ROOT
from tests.bars.tables import minute_table, write_csv
from tests.cli.test_commands import complaint
from tests.engines import object_stores, outages
from tests.engines.emptied import results_in
from tests.engines.runs import TINY, Struck, struck_when, write_config
from tests.engines.waiting import until

RACE = TINY["tournament"] | {
    "order": "generations",
    "pool_size": 2,
    "survivors": 1,
    "pods": 4,
    "workers": 2,
    "budget": {"env_steps": 512},
    "ensemble_size": 2,
}
pytestmark = pytest.mark.usefixtures("in_this_process", "blank_reports")
URL = f"s3://{object_stores.BUCKET}/runs"


@pytest.fixture(autouse=True)
def _copies(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "looked-at"))


@pytest.mark.slow
def test_a_run_in_a_store_starts_from_one_there_and_goes_on_from_an_empty_disk(s3, tmp_path):
    small = TINY["tournament"] | {"pods": 1, "ensemble_size": 1}
    here = tmp_path / "here"
    there = tmp_path / "there"
    run_tournament(load_config(write(here, store=URL, tournament=small, name="old")))
    new = {"store": URL, "tournament": small, "name": "new", "from_run": f"{URL}/old"}
    with pytest.raises(Struck), struck_when("new/pods/*/spec.json"):
        run_tournament(load_config(write(here, **new)))
    shutil.rmtree(here)
    ObjectStore(f"{URL}/old").remove(*ObjectStore(f"{URL}/old").list_names())
    home = run_tournament(load_config(write(there, **new)))
    spec = RunStore(RunFolder(home)).read_spec("p0000")
    assert spec.parent == "old:p0000"
    assert RunStore(RunFolder(home)).read_result("p0000").status == "done"


def write(machine, **changes):
    """The configuration as it lies on one machine."""
    return write_config(machine, **{"tournament": RACE} | changes)


def artifacts(machine):
    """What must not depend on where and how a run was made."""
    home = machine / "runs" / "tiny"
    names = (
        "backtest/metrics.json",
        "backtest/equity.parquet",
        "backtest/trades.parquet",
        "ensemble/policy.safetensors",
    )
    return {name: (home / name).read_bytes() for name in names}


def empty(machine):
    for path in (machine / "runs", machine / "tensors"):
        shutil.rmtree(path)


@pytest.mark.slow
def test_from_bars_to_backtest_on_s3_with_an_early_end_and_an_emptied_disk(tmp_path, s3, capsys):
    here = tmp_path / "here"
    elsewhere = tmp_path / "elsewhere"
    run(load_config(write(tmp_path / "plain")))
    expected = artifacts(tmp_path / "plain")

    with pytest.raises(Struck), struck_when("pods/p0002/spec.json"):  # the second generation begins
        run(load_config(write(here, store=URL)))
    before = results_in(f"{URL}/tiny")
    assert len(before) >= 2  # of a slow machine its pods have come to more by the time it is struck
    empty(here)

    cli.main(["run", str(write(elsewhere)), "--store", URL])
    assert artifacts(elsewhere) == expected
    after = results_in(f"{URL}/tiny")
    assert {name: after[name] for name in before} == before
    events = read_jsonl(elsewhere / "runs" / "tiny" / "events.jsonl")
    assert sorted(event["pod"] for event in events if event["event"] == "applied") == [
        f"p000{k}" for k in range(4)
    ]
    assert any(event["event"] == "resumed" for event in events)

    empty(elsewhere)
    capsys.readouterr()
    cli.main(["run", str(write(elsewhere)), "--store", URL])  # nothing is left to do
    assert "tournament:" not in capsys.readouterr().out
    assert artifacts(elsewhere) == expected
    assert len(read_jsonl(elsewhere / "runs" / "tiny" / "events.jsonl")) == len(events)

    cli.main(["status", f"{URL}/tiny", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert (told["finished"], told["active"], told["trials"]) == (True, False, 4)
    cli.main(["status", f"{URL}/tiny", "--lineage", told["leaderboard"][0]["pod"]])
    assert told["leaderboard"][0]["pod"] in capsys.readouterr().out
    looked = open_run(f"{URL}/tiny")
    assert (looked / "pods" / "p0000" / "metrics.jsonl").stat().st_size > 0

    cli.main(["backtest", f"{URL}/tiny", "--env.cost-bps", "40", "--cache", str(here / "tensors")])
    empty(elsewhere)
    looked = open_run(f"{URL}/tiny")
    assert read_backtest(looked / "backtest").context.trading.cost_bps == 40
    assert "look" in read_seal(Folder(looked / "backtest")), (
        "what was made beside a copy is sealed in the store"
    )
    assert [path.name for path in copy_store(URL).iterdir() if path.is_dir()] == ["tiny"]


@pytest.mark.slow
def test_the_bars_and_the_disk_are_gone(tmp_path, capsys):
    bars = write_csv(tmp_path, minute_table(3, 12))
    source = {"path": str(bars)}
    short = TINY["tournament"] | {"order": "submission", "pods": 2}
    store = f"file://{tmp_path}/store"
    config = load_config(write(tmp_path / "here", store=store, data=source, tournament=short))
    run(config)
    before = artifacts(tmp_path / "here")
    empty(tmp_path / "here")
    bars.unlink()
    capsys.readouterr()
    run(config)
    assert "using the market that this run began with" in capsys.readouterr().out
    assert artifacts(tmp_path / "here") == before
    empty(tmp_path / "here")
    with pytest.raises(DataError):
        run(config.model_copy(update={"store": None}))

    before = len(Ledger().looks())
    home = open_run(f"{store}/tiny")  # the market of the copy comes from the store, too
    backtest_run(
        home, load_config(home / "config.yaml").model_copy(update={"cache": tmp_path / "other"})
    )
    assert [line.look.kind for line in Ledger().looks()[before:]] == ["re-backtest"]


def test_a_vendors_bars_are_kept_in_the_store(tmp_path):
    from fintrader.config import validate
    from fintrader.market.data_config import resolve_data
    from fintrader.market.settings import DataSettings

    config = load_config(write(tmp_path, store="s3://bucket/runs"))
    vendor = validate(
        DataSettings,
        {"source": {"kind": "yahoo"}, "start": "2016-01-01", "universe": {"symbols": ["A"]}},
        "test",
    )
    assert (
        resolve_data(config.model_copy(update={"data": vendor})).store == "s3://bucket/runs/.bars"
    )
    named = vendor.model_copy(update={"store": "s3://bucket/mine"})
    assert resolve_data(config.model_copy(update={"data": named})).store == "s3://bucket/mine"
    assert resolve_data(config).store is None


@pytest.mark.slow
def test_mistakes_are_one_line(tmp_path, s3):
    config = str(write(tmp_path))
    mistakes = {
        "bucket does not exist": ["run", config, "--store", "s3://no-such-bucket/runs"],
        "is not a URL": ["run", config, "--store", "somewhere"],
        "credentials": ["run", config, "--store", "s3://key:hidden@bucket/runs"],
        "there is no run here": ["status", f"{URL}/nothing"],
        "where its head runs": ["status", f"{URL}/tiny", "--workers", "2"],
    }
    for message, words in mistakes.items():
        said = complaint(*words)
        assert message in said
        assert object_stores.SECRET not in said


@pytest.mark.slow
def test_a_backup_of_a_run_under_way_goes_on_from_another_store(tmp_path, monkeypatch):
    """Copied in the order of the documentation, while pods come and go; then the store is lost."""
    monkeypatch.setattr(lease, "LAPSE_SECONDS", 1.0)
    page = (ROOT / "docs" / "storage.md").read_text()
    left_out = re.findall(r'--exclude "(\*/[^"]+)"', page)
    (objects_alone,) = re.findall(r'--include "([^"]+)"', page)
    store = tmp_path / "store"
    backup = tmp_path / "backup"

    def copy(is_wanted):
        for path in sorted(store.rglob("*")):
            name = path.relative_to(store).as_posix()
            if is_wanted(name) and path.is_file():
                (backup / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, backup / name)

    def back_up():
        until(lambda: (store / "tiny/pods/p0001/result.json").exists(), "two results")
        copy(lambda name: not any(fnmatch(name, pattern) for pattern in left_out))
        copy(lambda name: fnmatch(name, objects_alone))

    thread = threading.Thread(target=back_up)
    thread.start()
    run(load_config(write(tmp_path / "here", store=f"file://{store}")))
    thread.join()
    before = results_in(f"file://{backup}/tiny")
    assert 2 <= len(before) < 4
    shutil.rmtree(store)
    run(load_config(write(tmp_path / "there", store=f"file://{backup}")))
    assert artifacts(tmp_path / "there") == artifacts(tmp_path / "here")
    after = results_in(f"file://{backup}/tiny")
    assert {name: after[name] for name in before} == before


def test_two_machines_do_not_drive_one_run(tmp_path, monkeypatch):
    for name, seconds in {"BEAT_SECONDS": 0.1, "LAPSE_SECONDS": 300.0}.items():
        monkeypatch.setattr(lease, name, seconds)
    store = f"file://{tmp_path}/store"
    with lease.hold(ObjectStore(f"{store}/tiny")):
        monkeypatch.setattr(lease, "_held", {})
        with pytest.raises(RunError, match="in use by process"):
            run(load_config(write(tmp_path / "there", store=store)))
        assert not (tmp_path / "there" / "runs" / "tiny" / "config.yaml").exists()


def test_a_run_that_is_known_here_is_waited_for_when_its_store_is_away(tmp_path, monkeypatch):
    away = tmp_path / "away"
    monkeypatch.setenv(outages.VARIABLE, str(away))
    monkeypatch.setattr(objects, "PATIENCE_SECONDS", 0.2)
    outages.install()
    try:
        config = load_config(write(tmp_path, store=f"file://{tmp_path}/store"))
        away.touch()
        with (
            pytest.raises(StorageOfflineError),
            hold_run(config),
        ):  # nobody knows whether there is such a store
            pass
        away.unlink()
        with hold_run(config) as mirror:
            claim(config, mirror=mirror)
        away.touch()
        threading.Timer(
            2.0, away.unlink
        ).start()  # ten times as long as any other store is waited for
        with hold_run(config) as mirror:
            assert mirror is not None
            assert not away.exists()
    finally:
        outages.remove()
