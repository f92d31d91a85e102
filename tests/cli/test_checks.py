"""`fintrader verify` looks at what a path is: configurations, markets and bars here, runs and
reports in `tests/pipeline`."""

import pandas as pd
import pytest

from fintrader.cli.checks import find_kind
from fintrader.errors import ConfigError
from tests.bars.tables import minute_table, write_csv
from tests.engines.runs import fintrader


@pytest.fixture
def config(tmp_path):
    """A configuration whose market is built."""
    bars = write_csv(tmp_path, minute_table(2, 5))
    path = tmp_path / "own.yaml"
    windows = "{fractions: [0.4, 0.3, 0.3], embargo_sessions: 0}"
    path.write_text(f"data:\n  path: {bars}\n  windows: {windows}\ncache: {tmp_path / 'cache'}\n")
    assert fintrader("data", "build", str(path)).status == 0
    return path


def flip(path):
    """Change the last bit of a file."""
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


def verify(*words):
    return fintrader("verify", *map(str, words))


def test_a_configuration_and_its_market_are_compared_with_their_hashes(config):
    (market,) = config.parent.glob("cache/*/market.safetensors")
    done = verify(config)
    assert (done.status, "all 2 checks passed" in done.out) == (0, True), done.out
    for place in (market, market.parent):
        done = verify(place)
        assert (done.status, "all 1 checks passed" in done.out) == (0, True), done.out
    flip(market)
    for place in (config, market, market.parent):
        done = verify(place)
        assert done.status == 1
        assert f"WRONG  market {market.parent.name}: " in done.out
        assert "compared: the arrays with the hash in the file" in done.out
        assert f"Remedy: delete {market.parent}; `fintrader data build" in done.out
    (market.parent / "mine.txt").write_text("not of the market")
    assert f"Remedy: delete {market}; `fintrader" in verify(market).out
    chunk = next((config.parent / "cache" / "bars").rglob("*.parquet"))
    flip(chunk)
    done = verify(config)
    assert (done.status, "2 of 2 checks failed" in done.out) == (1, True)
    assert chunk.name in done.out


def test_files_of_bars_are_examined_for_what_would_stop_a_build(tmp_path):
    table = minute_table(2, 5)
    path = write_csv(tmp_path, table)
    done = verify(path)
    assert (done.status, "all rows of 2 symbols" in done.out) == (0, True), done.out
    assert verify(path.parent).out == done.out
    twice = table.iloc[[300]].assign(close=table.close[300] * 1.5)
    for wrong, problem in (
        (pd.concat([table, twice]), "conflicting_duplicate"),
        (table.assign(close=-table.close), "is no price"),
    ):
        write_csv(tmp_path, wrong)
        done = verify(path)
        assert done.status == 1, done.out
        assert "WRONG  bars: " in done.out
        assert problem in done.out
        assert "`fintrader init` writes a configuration" in done.out


def test_a_path_is_taken_for_what_lies_there(tmp_path):
    for name in ("run", "fold", "market", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "manifest.json").symlink_to("nowhere")  # damaged, and still a run's
    (tmp_path / "fold" / "events.jsonl").touch()
    (tmp_path / "market" / "market.safetensors").touch()
    kinds = {"run": "run", "fold": "run", "market": "market", "s3://bucket/runs/one": "run"}
    for place, kind in kinds.items():
        assert find_kind(place if "://" in place else str(tmp_path / place)) == kind
    assert find_kind("quickstart") == "configuration"
    with pytest.raises(ConfigError, match="has no run, market or bars"):
        find_kind(str(tmp_path / "empty"))
