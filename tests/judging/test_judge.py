"""The verdict on external returns: its wording, its looks, `judge` and the command."""

import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import fintrader
from fintrader.cli import main
from fintrader.errors import BacktestError
from fintrader.numerals import probability
from fintrader.records import from_json, to_json
from fintrader.report.judged import PrintedVerdict, tabulate_record
from fintrader.results.sections import BacktestView, present_curves
from fintrader.verdict.alpha import level_of_look
from fintrader.verdict.judge import judge_record
from fintrader.verdict.looks import HOME, Ledger
from fintrader.verdict.track_record import make_record
from fintrader.verdict.verdict import Verdict
from tests import ROOT


def make_returns(sessions=600, edge=0.002, seed=1, freq="B"):
    """A strategy with a beta of 0.5 to SPY and `edge` of alpha a session."""
    rng = np.random.default_rng(seed)
    dates = pd.date_range("2020-01-02", periods=sessions, freq=freq)
    spy = 0.0003 + 0.01 * rng.standard_normal(sessions)
    own = 0.5 * spy + edge + 0.005 * rng.standard_normal(sessions)
    return pd.DataFrame({"mine": own, "SPY": spy}, dates)


def read(frame, **options):
    return make_record(frame, benchmark="SPY", **options)


def test_skill_is_likely_only_if_the_caller_states_how_the_strategy_was_selected():
    record = read(make_returns())
    unknown = judge_record(record)
    assert unknown.state == "not_told_from_luck"
    assert unknown.caveats == ("an unknown number of strategies tried on these returns",)
    assert "--trials N" in unknown.sentences[-1]
    assert judge_record(record, is_held_out=True).is_likely_skill
    assert "stated to be held out" in judge_record(record, is_held_out=True).text
    assert judge_record(record, trials=40).is_likely_skill
    assert (
        "the choice of 40 trials on these returns, as stated"
        in judge_record(record, trials=40).text
    )


def test_trials_on_the_same_returns_divide_the_level():
    record = read(make_returns(edge=0.0005, seed=3))
    for trials, is_held_out, among in ((1, False, 1), (8, False, 8), (8, True, 1)):
        verdict = judge_record(record, trials=trials, is_held_out=is_held_out, look=2)
        assert verdict.evidence.level == pytest.approx(level_of_look(2) / among)
    few = judge_record(record, trials=1)
    p_value = few.evidence.alpha.p_value
    many = judge_record(record, trials=int(2 * level_of_look(1) / p_value))
    assert few.is_likely_skill
    assert many.state == "not_told_from_luck"


@pytest.mark.slow
def test_the_best_of_many_without_skill_passes_as_rarely_as_its_level():
    """Stated as one trial, the best of 20 passes more often than not."""
    rng = np.random.default_rng(0)
    dates = pd.bdate_range("2020-01-01", periods=260)
    passed = {1: 0, 20: 0}
    for _ in range(20):
        tried = 0.01 * rng.standard_normal((20, 260))
        best = tried[tried.mean(axis=1).argmax()]
        record = make_record(pd.Series(best, dates))
        for trials in passed:
            passed[trials] += judge_record(record, trials=trials).is_likely_skill
    assert passed[20] <= 3
    assert passed[1] >= 5


@pytest.mark.parametrize(
    ("sessions", "freq", "few"),
    [(200, "B", True), (250, "B", False), (62, "ME", True), (63, "ME", False)],
)
def test_few_returns_without_positions_are_never_green(sessions, freq, few):
    verdict = judge_record(read(make_returns(sessions, 0.0025, freq=freq)), trials=1)
    assert verdict.is_likely_skill is not few
    assert any("in which rare losses may be missing" in caveat for caveat in verdict.caveats) is few
    assert f"With {sessions} {'months' if freq == 'ME' else 'sessions'} the test" in verdict.text


def test_a_stated_number_of_sessions_changes_no_rule():
    record = read(make_returns(200, 0.0025), sessions_a_year=245)
    assert not judge_record(record, trials=1).is_likely_skill


def test_a_caller_adds_caveats_and_removes_none():
    record = replace(read(make_returns(200, 0.0025)), caveats=("stale prices",))
    verdict = judge_record(record, trials=1, caveats=["no borrow fees"])
    assert verdict.caveats[:2] == ("no borrow fees", "stale prices")
    assert len(verdict.caveats) == 3
    assert not verdict.is_likely_skill


def test_a_leak_a_ruin_and_an_idle_strategy_are_named():
    leak = judge_record(read(make_returns(edge=0.01)), trials=1)
    assert "a leak is the likelier reason" in leak.text
    frame = make_returns()
    frame.iloc[300, 0] = -1.0
    assert judge_record(read(frame), trials=1).text.startswith("Went bankrupt")
    frame["mine"] = 0.0
    assert judge_record(read(frame, kind="returns"), trials=1).text.startswith("Never traded")
    assert judge_record(read(make_returns(9)), trials=1).text.startswith(
        "Too short to tell: 9 sessions"
    )


def test_the_tail_names_the_loss_that_the_window_could_have_missed():
    record = read(make_returns())
    verdict = judge_record(record, trials=1)
    tail = verdict.tail
    assert tail.worst == record.returns.min()
    assert tail.unseen_share == 3 / 600
    daily = verdict.evidence.alpha.alpha / 252
    assert tail.undoing * tail.unseen_share == pytest.approx(daily)
    assert from_json(Verdict, to_json(verdict)) == verdict


def test_looks_are_counted_by_what_the_benchmark_did(tmp_path, monkeypatch):
    monkeypatch.setenv(HOME, str(tmp_path))
    frame = make_returns()
    other = frame.assign(mine=make_returns(seed=2)["mine"].to_numpy())
    renamed = other.rename(columns={"mine": "x", "SPY": "y"}).shift(freq="1D")

    def look(values, benchmark="SPY", **options):
        return fintrader.judge(values, benchmark, trials=1, **options).evidence.look

    assert look(frame) == 1
    assert look(frame, name="another name") == 1, "the same result is nothing new"
    assert look(other) == 2
    assert look(renamed.assign(x=renamed["x"] * 1.01), "y") == 3
    assert look(frame[100:]) == 4, "a part of the window"
    assert look(make_returns(seed=9)) == 1, "another benchmark"
    assert look(frame["mine"], None) == 3, "the first strategy, and a part of it, against SPY"
    assert look(other["mine"], None) == 4, "against cash, the same dates are the same window"
    assert {line.look.kind for line in Ledger().looks()} == {"judge"}
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv(HOME, str(blocked))
    assert "looks not counted" in fintrader.judge(frame, "SPY", trials=1).text


def test_a_window_too_short_for_a_test_spends_no_look(tmp_path, monkeypatch):
    monkeypatch.setenv(HOME, str(tmp_path))
    frame = make_returns()
    short = fintrader.judge(frame[:11], "SPY", trials=1)
    assert short.text.startswith("Too short to tell: 11 sessions")
    assert short.evidence.look is None
    assert Ledger().looks() == ()
    assert fintrader.judge(frame[:12], "SPY", trials=1).evidence.look == 1


def test_a_strategy_behind_its_benchmark_is_called_so_and_levels_are_per_cent():
    behind = judge_record(read(make_returns(edge=-0.002)), trials=40)
    assert behind.state == "behind"
    assert behind.text.startswith("Behind its benchmark: behind SPY by ")
    table = repr(PrintedVerdict(**vars(behind)))
    assert "0.076 %" in behind.text
    assert "its level is 0.076 %, of 5 % for all looks together, divided by 40 trials" in " ".join(
        table.split()
    ).replace(" one; ", " one; ")
    assert judge_record(read(make_returns(edge=0.002)), is_held_out=True).is_likely_skill
    tiny = judge_record(read(make_returns(edge=0.0)), trials=10**9)
    assert "at a level of below 0.0001 %" in tiny.text
    assert probability(0.9999) == "> 0.99"
    assert probability(0.001) == "< 0.01"
    assert probability(0.95) == "0.95"


def test_the_command_says_how_it_read_the_file_and_that_it_replaced_a_page(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    make_returns(120)[["mine"]].to_csv("own.csv")
    outputs = []
    for _ in range(2):
        main(["judge", "own.csv", "--trials", "2"])
        outputs.append(capsys.readouterr().out)
    for out in outputs:
        assert "Column mine: values read as returns, where 0.01 is 1 %." in out
    assert f"The page: {tmp_path}" in outputs[0]
    assert f"The page, replaced: {tmp_path}" in outputs[1]
    page = (tmp_path / "own-verdict.html").read_text()
    assert "Column mine: values read as returns" in page


def test_the_door_prints_three_sentences_and_a_table(tmp_path):
    verdict = fintrader.judge(
        make_returns()["mine"], benchmark=make_returns()["SPY"], trials="unknown"
    )
    lines = repr(verdict).splitlines()
    assert lines[0] == " ".join(verdict.sentences)
    assert lines[1].split() == ["Question", "Answer", "Meaning"]
    assert "Losses that it could miss" in repr(verdict)
    assert "<table>" in verdict._repr_html_()
    for trials in (0, -1, True, 1.5, "many", 10**400):
        with pytest.raises(BacktestError, match="at least 1 and at most 1e99, or unknown; got "):
            fintrader.judge(make_returns(), "SPY", trials=trials)
    assert judge_record(read(make_returns()), trials=10**9).evidence.level < 1e-10


@pytest.mark.slow
def test_a_page_omits_what_returns_do_not_show(tmp_path):
    page = tmp_path / "page.html"
    fintrader.judge(make_returns(), "SPY", trials=1, report=page)
    text = page.read_text()
    for heading in (
        "Wealth and drawdown",
        "Years and months",
        "By state of the index",
        "Rolling risk",
    ):
        assert f"<h2>{heading}</h2>" in text
    assert "Against SPY</th>" in text
    assert "daily returns less those of SPY." in text
    for absent in ("Positions", "Capacity", "time of day", "Net of costs", "free of commission"):
        assert absent not in text
    fintrader.judge(make_returns(40, freq="ME"), "SPY", trials=1, report=page)
    assert "Monthly returns, 12 months a year" in page.read_text()
    fintrader.judge(make_returns()["mine"], trials=1, report=page, name="benchmark")
    assert "ahead of cash" in page.read_text().lower()


@pytest.mark.slow
def test_the_command_judges_a_file_in_a_clean_folder(tmp_path):
    """One process, no torch and no numba; the page lies in the folder, the ledger in the home."""
    make_returns().to_csv(tmp_path / "mine.csv")
    program = (
        "import sys\nfrom fintrader.cli import main\n"
        "main(['judge', 'mine.csv', '--benchmark', 'SPY', '--trials', '12'])\n"
        "assert not {'torch', 'numba'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(ROOT), HOME: str(tmp_path / "home"), "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Unlikely to be luck: ahead of SPY")
    assert f"The page: {tmp_path / 'mine-verdict.html'}" in done.stdout
    assert "fintrader judge mine.csv" in (tmp_path / "mine-verdict.html").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "home",
        "mine-verdict.html",
        "mine.csv",
    ]


def test_the_command_reads_weights_and_names_its_options(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    frame = make_returns(300)
    prices = 100 * (1 + frame).cumprod()
    prices.to_csv("prices.csv")
    prices.to_pickle("prices.pkl")
    prices[::63].to_csv("quarters.csv")
    pd.DataFrame({"mine": 1.0}, prices.index[:1]).to_csv("weights.csv")
    with pytest.raises(SystemExit):
        main(["judge", "prices.csv", "--column", "mine", "--out", "prices.csv"])
    assert "give the page a name that ends in .html" in capsys.readouterr().err
    assert len(pd.read_csv("prices.csv")) == len(prices), "the file is not written over"
    files = ["--weights", "weights.csv", "--prices", "prices.csv", "--cost-bps", "5"]
    main(["judge", *files, "--held-out", "--out", "page.html"])
    out = capsys.readouterr().out
    assert "ahead of equal weight" in out
    assert "traded at the next date's price, at a cost of 5 bps" in out
    page = (tmp_path / "page.html").read_text()
    assert "<h2>Positions</h2>" in page
    assert "Active share against" not in page, "the benchmark's positions are not known"
    (100 * frame).to_csv("percent.csv")
    for words, message in {
        "judge": "needs FILE, or --weights FILE --prices FILE",
        "judge prices.csv --weights weights.csv": "needs FILE, or --weights",
        "judge prices.csv": "name one (--column)",
        "judge --weights weights.csv --prices prices.csv --kind log": "--kind and --column describe",
        "judge --weights weights.csv --prices prices.pkl": "open it with --trust",
        "judge --weights weights.csv --prices quarters.csv": "(--sessions-a-year)",
        "judge percent.csv --column mine": "say which: --kind returns or --kind percent",
        "judge prices.csv --column mine --trials none": "expected a whole number or 'unknown', got 'none'",
    }.items():
        with pytest.raises(SystemExit):
            main(words.split())
        assert message in capsys.readouterr().err
    main(["judge", "percent.csv", "--column", "mine", "--kind", "percent"])
    for name, option in {"prices.pkl": "--trust", "quarters.csv": "--sessions-a-year=4"}.items():
        main(["judge", "--weights", "weights.csv", "--prices", name, option])


@pytest.mark.slow
def test_a_page_of_months_speaks_of_months(tmp_path):
    frame = make_returns(150, 0.004, freq="ME")
    fintrader.judge(frame, "SPY", trials=1, report=tmp_path / "page.html")
    page = re.sub(r"(?s)<(script|style).*?</\1>", "", (tmp_path / "page.html").read_text())
    words = re.sub("<[^>]+>", " ", page)
    assert "Only new months can confirm it" in words
    assert "Distribution of monthly returns" in words
    assert re.findall(r"(?i)[^.]*\b(?:daily|sessions?)\b[^.]*", words) == []


def test_returns_without_a_capital_are_drawn_in_multiples():
    record = read(make_returns(120))
    view = BacktestView.of(tabulate_record(record, judge_record(record, trials=1), None))
    equity = present_curves(view).figures[0].draw()
    assert equity.layout.yaxis.title.text == "multiple of the start"
