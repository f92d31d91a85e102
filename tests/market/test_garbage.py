"""`fintrader data build --prune`: what neither a configuration nor a run refers to, listed first
and removed when asked."""

import pytest

from fintrader.cli import main
from fintrader.files import write_json
from fintrader.market.build import build_market
from fintrader.market.data_config import load_data_config, open_markets
from fintrader.market.inspect import check_stored_files
from fintrader.results.verify import list_problems
from fintrader.storage import lease
from fintrader.storage.lease import hold
from fintrader.storage.mirror import Markets, attach
from fintrader.storage.objects import ObjectStore
from tests.bars.tables import minute_table, write_csv

BODY = """
cache: {home}/tensors
runs_dir: {home}/runs
data:
  path: {path}
  features: {{names: [return_1], context: []}}
  windows: {{fractions: [0.4, 0.3, 0.3], embargo_sessions: 0}}
"""


def made(home, name, seed):
    """A configuration with bars of its own, and its market."""
    path = write_csv(home, minute_table(2, 5, seed=seed), f"{name}.csv")
    config = home / f"{name}.yaml"
    config.write_text(BODY.format(home=home, path=path))
    return config, build_market(load_data_config(config).data, cache=home / "tensors")


def kept(home):
    found = [
        file
        for folder in ("tensors", "bars")
        for file in (home / folder).rglob("*")
        if file.is_file()
    ]
    return {str(file.relative_to(home)) for file in found if not file.name.startswith(".")}


def gc(*words):
    main(["data", "build", *map(str, words), "--prune"])


def test_garbage_is_listed_and_then_removed(tmp_path, capsys):
    one, _ = made(tmp_path, "one", 0)
    alone = kept(tmp_path)
    two, other = made(tmp_path, "two", 1)
    both = kept(tmp_path)
    gc(one, two)
    assert "nothing to remove" in capsys.readouterr().out
    gc(one)
    said = capsys.readouterr().out
    assert f"market {other.parent}" in said
    assert "--yes" in said
    assert kept(tmp_path) == both
    gc(one, "--yes")
    assert kept(tmp_path) == alone
    assert (
        list_problems(check_stored_files(load_data_config(one).data, cache=tmp_path / "tensors"))
        == []
    )
    gc(one)
    assert "nothing to remove" in capsys.readouterr().out.splitlines()[-1]
    assert build_market(load_data_config(two).data, cache=tmp_path / "tensors") == other


def test_what_a_run_was_made_from_stays(tmp_path, capsys):
    one, _ = made(tmp_path, "one", 0)
    two, other = made(tmp_path, "two", 1)
    both = kept(tmp_path)
    run = tmp_path / "runs" / "earlier"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(two.read_text())
    write_json(run / "manifest.json", {"market": str(other)})
    gc(one, "--yes")
    assert kept(tmp_path) == both
    (tmp_path / "two.csv").unlink()  # its bars are gone: chunks of them serve nobody
    gc(one, "--yes")
    assert "only its market is kept" in capsys.readouterr().out
    assert other.is_file()
    assert {name for name in both - kept(tmp_path) if name.startswith("tensors")} == set()
    assert both - kept(tmp_path)


def test_chunks_that_no_manifest_names_go(tmp_path):
    config, _ = made(tmp_path, "one", 0)
    before = kept(tmp_path)
    (manifest,) = (tmp_path / "bars").rglob("manifest-*.json")
    (manifest.parent / "AAA" / "2016-01-000000000000.parquet").write_bytes(b"of a killed build")
    gc(config, "--yes")
    assert kept(tmp_path) == before


def test_bars_that_cannot_be_found_stop_it(tmp_path, capsys):
    config, _ = made(tmp_path, "one", 0)
    before = kept(tmp_path)
    (tmp_path / "one.csv").unlink()
    with pytest.raises(SystemExit) as stopped:
        gc(config, "--yes")
    assert stopped.value.code == 2
    assert "no bar file there" in capsys.readouterr().err
    assert kept(tmp_path) == before


def made_with_store(home, name, seed):
    """The same, of a store for its market and its bars."""
    store = f"file://{home}/store"
    path = write_csv(home, minute_table(2, 5, seed=seed), f"{name}.csv")
    config = home / f"{name}.yaml"
    config.write_text(BODY.format(home=home, path=path) + f"  store: {store}/.bars\nstore: {store}")
    loaded = load_data_config(config)
    build_market(loaded.data, cache=home / "tensors", markets=open_markets(loaded))
    return config


def store_run(home, config):
    """A run in the store that another machine made with a configuration."""
    copy = home / "elsewhere" / config.stem
    copy.mkdir(parents=True)
    (copy / "config.yaml").write_text(config.read_text())
    mirror = attach(copy, f"file://{home}/store/{config.stem}")
    with hold(mirror.objects):
        mirror.publish()
    return mirror.objects


def in_store(home):
    return {name for name in ObjectStore(home / "store").list_names() if name.startswith(".")}


def test_runs_of_a_store_keep_their_markets_and_bars(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "looked-at"))
    one = made_with_store(tmp_path, "one", 0)
    alone = in_store(tmp_path)
    assert {name.split("/")[0] for name in alone} == {".bars", ".markets"}
    two = made_with_store(tmp_path, "two", 1)
    both = in_store(tmp_path)
    made = store_run(tmp_path, two)
    store_run(tmp_path, one)
    gc(one, "--yes")
    assert "nothing to remove" in capsys.readouterr().out
    assert in_store(tmp_path) == both
    made.put("objects/" + "0" * 64, b"of a killed process")
    foreign = ObjectStore(tmp_path / "store" / "not-a-run")
    foreign.put("objects/" + "0" * 64, b"not ours")
    gc(one)
    assert f"{made} (1 objects)" in capsys.readouterr().out
    gc(one, "--yes")
    assert made.get("objects/" + "0" * 64) is None
    assert foreign.list_names()
    with hold(made):
        made_held = lease._held.pop(made.url)  # as another process has it
        with pytest.raises(SystemExit):
            gc(one, "--yes")
        lease._held[made.url] = made_held
    assert f"{made} is at work" in capsys.readouterr().err
    assert in_store(tmp_path) == both
    made.clear()
    gc(one)
    assert f"{tmp_path}/store/.markets (" in capsys.readouterr().out
    assert in_store(tmp_path) == both
    gc(one, "--yes")
    assert in_store(tmp_path) == alone
    loaded = load_data_config(one)
    assert Markets(loaded.store).fetch(
        build_market(loaded.data, cache=tmp_path / "tensors").parent.name, tmp_path / "fetched"
    )
