"""The ledger of looks: what counts as a look at which window, and whose hand shows on it."""

import json
import multiprocessing
import multiprocessing.synchronize
import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fintrader.files import seal, unseal
from fintrader.results.stored_looks import find_missing_looks
from fintrader.verdict.looks import (
    FIRST,
    HOME,
    Ledger,
    LedgerError,
    Look,
    Window,
    result_hash,
    summarise_windows,
)
from fintrader.verdict.sketch import Curve

DAY = 86_400_000_000_000


def window(first=0, days=10, symbols="ABCD", seed=0, made_up=False):
    """Daily bars of one-letter symbols; prices depend on day, symbol and seed alone."""
    minutes = (20_000 + first + np.arange(days)) * DAY
    close = np.array(
        [[seed + ord(name) + day for name in symbols] for day in range(first, first + days)],
        dtype=float,
    )
    return Window.of(tuple(symbols), minutes, close, made_up)


def look(result="a", bars=None, name="test", run="run"):
    bars = window() if bars is None else bars
    return Look(
        "backtest", run, None, run, 0, name, bars, ("ensemble",), result, 8, f"fintrader run {run}"
    )


def numbers(ledger, *looks):
    return [ledger.record(one)[0] for one in looks]


def test_a_window_is_known_by_its_bars():
    bars = window()
    minutes = 20_000 * DAY + np.arange(10) * DAY
    close = np.array([[ord(x) + t for x in "DCBA"] for t in range(10)])
    assert Window.of(("D", "C", "B", "A"), minutes, close.astype(np.float32)) == bars, (
        "columns in another order"
    )
    holes = np.where(close == close, close, np.nan).astype(float)
    holes[0, 0] = np.nan
    assert Window.of(("D", "C", "B", "A"), minutes, holes).key != bars.key
    assert (bars.first, bars.last) == ("2024-10-04", "2024-10-13")
    assert window(seed=1).key != bars.key
    assert window(days=9).key != bars.key


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (window(), True),
        (window(seed=1), True),  # adjusted otherwise, say
        (window(9), True),  # one day in common
        (window(10), False),
        (window(symbols="ABC"), True),  # leaving one out makes no new window
        (window(symbols="A"), False),
        (window(symbols="WXYZ"), False),
        (window(made_up=True), True),  # the very same bars
        (window(seed=1, made_up=True), False),
    ],
)
def test_a_look_counts_where_days_and_symbols_overlap(other, same, tmp_path):
    assert window().overlaps(other) is same
    assert numbers(Ledger(tmp_path), look(), look("b", other)) == [1, 2 if same else 1]


def test_only_another_result_on_held_out_bars_is_another_look(tmp_path):
    looks = (
        look("a"),
        look("a", run="renamed"),
        look("b"),
        look("t", name="train"),
        look("v", name="validation"),
    )
    assert numbers(Ledger(tmp_path), *looks, look("c"), look("a"), look("b")) == [
        1,
        1,
        2,
        3,
        3,
        4,
        1,
        2,
    ]
    lines = Ledger(tmp_path).looks()
    assert len(lines) == 8
    (told,) = summarise_windows(lines)
    assert (told.looks, told.runs) == (4, ("renamed", "run"))
    assert told.names == ("test", "train", "validation")


def test_results_are_the_same_up_to_rounding():
    returns = np.array([0.01, -0.02, 0.0])
    known = result_hash({"ensemble": returns, "best": returns})
    assert result_hash({"best": returns + 1e-15, "ensemble": returns * 1.0}) == known
    assert result_hash({"ensemble": returns + 1e-9, "best": returns}) != known
    assert result_hash({"ensemble": returns}) != known


def test_a_line_is_read_once_however_many_follow(tmp_path, monkeypatch):
    reads = []
    monkeypatch.setattr(
        "fintrader.verdict.looks.unseal", lambda *line: reads.append(line) or unseal(*line)
    )
    ledger = Ledger(tmp_path)
    numbers(ledger, *map(look, "abcdefgh"))
    lines = ledger.lines()
    assert len(reads) == len(lines) == 8
    whole = ledger.path.read_bytes()
    other = Ledger(tmp_path / "other")
    other.record(look("z"))
    ledger.path.write_bytes(other.path.read_bytes())  # a shorter one in its place
    assert [one.look.result for one in ledger.looks()] == ["z"]
    ledger.path.write_bytes(whole)
    assert ledger.lines() == lines


def read_io():
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.skipif(not Path("/proc/self/io").is_file(), reason="counts the bytes read by Linux")
def test_a_look_reads_no_byte_of_those_before_it(tmp_path):
    ledger = Ledger(tmp_path)
    numbers(ledger, *map(look, map(str, range(50))))
    before = read_io()
    assert numbers(ledger, look("50")) == [51]
    assert len(ledger.looks()) == 51
    assert read_io() - before < ledger.path.stat().st_size / 2


def test_a_change_in_place_is_seen_whatever_time_the_file_shows(tmp_path):
    ledger = Ledger(tmp_path)
    numbers(ledger, look("a"), look("b"))
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole.replace(b'"trials": 8', b'"trials": 1', 1))  # in the same tick
    with pytest.raises(LedgerError, match="line 1 was changed"):
        ledger.looks()
    ledger.path.write_bytes(whole)
    ledger.record(look("c"))
    known = ledger.path.stat()
    time.sleep(0.02)
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b'"trials": 8', b'"trials": 1', 1))
    os.utime(ledger.path, ns=(known.st_atime_ns, known.st_mtime_ns))
    with pytest.raises(LedgerError, match="line 1 was changed"):
        ledger.record(look("d"))


def edit(lines):
    lines[1] = lines[1].replace(b'"trials": 8', b'"trials": 1')


def edit_with_its_hash(lines):
    body = json.loads(lines[1]) | {"trials": 1}
    del body["sha256"]
    lines[1] = seal(body)


def edit_last(lines):
    lines[3] = lines[3].replace(b'"trials": 8', b'"trials": 1')


def another_version(lines):
    lines[:] = [seal({"format": "fintrader-looks-9", "n": 1, "before": FIRST})]


CHEATS = [
    (edit, "line 2 was changed"),
    (edit_with_its_hash, "line 3 does not follow"),
    (edit_last, "line 4 was changed"),
    (lambda lines: lines.pop(0), "line 1 does not follow"),
    (lambda lines: lines.pop(2), "line 3 does not follow"),
    (lambda lines: lines.insert(1, lines.pop(2)), "line 2 does not follow"),
    (lambda lines: lines.insert(1, b"nonsense\n"), "line 2 was changed"),
    (another_version, "line 1 was written by another version"),
]


@pytest.mark.parametrize(("cheat", "said"), CHEATS)
def test_a_changed_ledger_is_told_by_the_line(cheat, said, tmp_path):
    ledger = Ledger(tmp_path)
    numbers(ledger, *map(look, "abcd"))
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    cheat(lines)
    ledger.path.write_bytes(b"".join(lines))
    for use in (ledger.lines, lambda: ledger.record(look("e"))):
        with pytest.raises(LedgerError, match=rf"{said}.*move it away"):
            use()
    assert ledger.path.read_bytes() == b"".join(lines), "nothing is added to it"


def test_a_look_of_another_version_lets_no_other_be_added(tmp_path):
    ledger = Ledger(tmp_path)
    ledger.record(look())
    body = json.loads(ledger.path.read_bytes()) | {"trials": "many"}
    del body["sha256"]
    ledger.path.write_bytes(seal(body))
    with pytest.raises(LedgerError, match=r"line 1 .* another version"):
        ledger.record(look("b"))
    assert ledger.path.read_bytes() == seal(body)


def test_lines_cut_off_the_end_are_missed_by_the_backtests_they_stood_for(tmp_path, monkeypatch):
    monkeypatch.setenv(HOME, str(tmp_path))
    ledger = Ledger(tmp_path)
    for name, result in (("one", "a"), ("two", "b")):
        number, line = ledger.record(look(result, run=name))
        assert number == line["line"] == {"one": 1, "two": 2}[name]
        home = tmp_path / name / "backtest"
        home.mkdir(parents=True)
        (home / "seal.json").write_bytes(
            seal({"format": "fintrader-seal-1", "files": {}, "look": line})
        )
    assert find_missing_looks(tmp_path) == ([], [])
    whole = ledger.path.read_bytes()
    ledger.path.write_bytes(whole[: whole.index(b"\n") + 1])
    assert find_missing_looks(tmp_path) == (
        ["two, test window: its look, line 2 of the ledger, is not there: " + DELETED],
        [],
    )
    ledger.path.unlink()
    assert len(find_missing_looks(tmp_path)[0]) == 2
    ledger.record(look("z"))
    deleted, foreign = find_missing_looks(tmp_path)
    assert (deleted, len(foreign)) == ([], 2)
    assert "another ledger" in foreign[0]


DELETED = "lines were deleted or rewritten"


def test_a_line_that_a_kill_cut_short_is_mended(tmp_path):
    ledger = Ledger(tmp_path)
    numbers(ledger, look("a"), look("b"))
    whole = ledger.path.read_bytes()
    second = whole.index(b"\n") + 1
    for cut in (second, second + 1, second + 90, len(whole) - 1):
        ledger.path.write_bytes(whole[:cut])
        assert len(ledger.looks()) == 1
        assert numbers(ledger, look("b"), look("c")) == [2, 3]
        assert len(ledger.looks()) == 3


def _record(folder, worker, gate):
    gate.wait()
    for k in range(10):
        Ledger(folder).record(look(f"{worker}-{k}"))


def test_runs_that_end_at_once_all_count(tmp_path):
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(4)
    workers = [context.Process(target=_record, args=(str(tmp_path), k, gate)) for k in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    lines = Ledger(tmp_path).looks()
    assert [line.number for line in lines] == list(range(1, 41))
    assert len({line.look.result for line in lines}) == 40
    assert Ledger(tmp_path).record(look("last"))[0] == 41


def test_a_ledger_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "looks.jsonl").mkdir()
    with pytest.raises(LedgerError, match="set FINTRADER_HOME to a folder that can be written"):
        Ledger(tmp_path).record(look())
    with pytest.raises(LedgerError, match="cannot be read"):
        Ledger(tmp_path).lines()


# --- one window under other names -----------------------------------------------------------------


def walk(sessions=60, series=9, seed=0):
    """Make closing prices `[S, N]` of a market with a common factor."""
    rng = np.random.default_rng(seed)
    common = rng.standard_t(4, (sessions, 1)) * 0.008
    own = rng.standard_t(4, (sessions, series)) * 0.01
    return 100 * np.exp(np.cumsum(common + own, axis=0))


def seen(close, names="ABCDEFGHI", first=0, a_day=1):
    """Make the window of daily prices, with `a_day` bars a session that end at its close."""
    names = tuple(names) + tuple(f"X{k}" for k in range(close.shape[1] - len(names)))
    session = np.repeat(np.arange(len(close)), a_day)
    bars = np.repeat(close, a_day, axis=0)
    bars[np.arange(len(bars)) % a_day != a_day - 1] *= 1.01
    minutes = (20_000 + first + session) * DAY + np.arange(len(bars)) % a_day
    return Window.of(names[: close.shape[1]], minutes, bars, session=session)


BARS = walk()
AGAIN = {
    "renamed": seen(BARS, "QRSTUVWXY"),
    "years later": seen(BARS, "QRSTUVWXY", first=2_000),
    "in another order": seen(BARS[:, ::-1], "QRSTUVWXY"),
    "with dummies": seen(np.hstack([BARS, walk(series=13, seed=5)]), "QRSTUVWXY", 2_000),
    "a third of the names": seen(BARS[:, 2:5], "XYZ", 2_000),
    "half of the days": seen(BARS[30:], "QRSTUVWXY", 2_000),
    "shorter bars": seen(BARS, "QRSTUVWXY", 2_000, a_day=5),
    "in cents": seen(BARS * 100, "QRSTUVWXY", 2_000),
    "moved by 1e-6": seen(
        BARS * (1 + 1e-6 * np.random.default_rng(1).standard_normal(BARS.shape)), "QRSTUVWXY", 2_000
    ),
    "with holes": seen(
        np.where(np.random.default_rng(2).random(BARS.shape) < 0.05, np.nan, BARS),
        "QRSTUVWXY",
        2_000,
    ),
}


@pytest.mark.parametrize("name", AGAIN)
def test_returns_identify_a_window(name, tmp_path):
    assert numbers(Ledger(tmp_path), look("a", seen(BARS)), look("b", AGAIN[name])) == [1, 2]


def test_other_windows_are_others(tmp_path):
    others = [seen(walk(seed=seed), "QRSTUVWXY", 100 * seed) for seed in range(1, 20)]
    assert numbers(Ledger(tmp_path), *(look(str(k), one) for k, one in enumerate(others))) == (
        [1] * 19
    )
    still = np.full((60, 9), 100.0)  # nothing happens in either: nothing is the same
    stills = [look("s", seen(still)), look("t", seen(still + 1, "QRSTUVWXY", 2_000))]
    assert numbers(Ledger(tmp_path / "still"), *stills) == [1, 1]


def test_another_question_is_counted_apart(tmp_path):
    ledger = Ledger(tmp_path)
    shortfall = replace(look("b"), question="execution shortfall")
    assert numbers(ledger, look("a"), shortfall, look("c")) == [1, 1, 2]
    assert [(one.question, one.looks) for one in summarise_windows(ledger.looks())] == [
        ("active return", 2),
        ("execution shortfall", 1),
    ]


def test_a_sketch_stays_small_and_finds_a_few_series_among_many():
    many = walk(sessions=500, series=400)
    sketch = seen(many).sketch
    assert len(sketch.hashes) <= 512 * 6
    assert sketch.overlaps(seen(many[:, 7:9], "YZ", 2_000).sketch)
    assert not sketch.overlaps(seen(walk(sessions=500, series=400, seed=3)).sketch)


def follows(ours, theirs):
    """`Curve.follows` by pandas, on returns by day."""
    both = pd.concat([ours, theirs], axis=1, join="inner")
    moves = both.cumsum()[both.all(axis=1)].diff()
    return bool(abs(moves.corr("spearman", 12).to_numpy()[0, 1]) >= 0.8)


@pytest.mark.parametrize("seed", range(40))
def test_curves_follow_each_other_as_pandas_correlates_them(seed):
    rng = np.random.default_rng(seed)
    common = rng.standard_normal(400)
    known = []
    for _ in range(2):
        first, size = rng.integers(0, 350), rng.integers(1, 400)
        moves = common + rng.choice([0.1, 0.3, 0.5, 1.0]) * rng.standard_normal(400)
        kept = moves * (rng.random(400) < rng.choice([0.5, 0.9, 1.0])) * rng.choice([0, 1, 1, 1, 1])
        known.append(pd.Series(kept.astype("<f2"), dtype=float).iloc[first : first + size])
    ours, theirs = (Curve.of(one.index.to_numpy(), one.to_numpy()) for one in known)
    assert ours.follows(theirs) is theirs.follows(ours) is follows(*known)
