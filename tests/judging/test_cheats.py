"""Ways to get a second first look, or a good verdict that the data do not deserve.

Each function tries one and returns its outcome; `docs/honesty.md` lists the same cheats with the
same outcomes.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import fintrader
from fintrader import EnvSettings
from fintrader.backtesting import simulate
from fintrader.backtesting.assessment import assess
from fintrader.backtesting.look_record import identify_bars
from fintrader.errors import ReturnsError
from fintrader.files import hash_file
from fintrader.market.tensors import Windows
from fintrader.results.backtest_files import SEAL, describe_seal_problems, make_seal
from fintrader.results.folders import Folder
from fintrader.results.stored_looks import find_missing_looks
from fintrader.verdict.conclusion import conclude
from fintrader.verdict.judge import judge_record, look_of
from fintrader.verdict.looks import HOME, Ledger, LedgerError, Window
from fintrader.verdict.track_record import make_record
from tests import ROOT
from tests.factories import market_of, planted_market
from tests.quick import slow_but
from tests.results.test_looks import BARS, look, seen, walk

RNG = np.random.default_rng(8)
DAYS = pd.bdate_range("2020-01-02", periods=500)


def draw(volatility, mean=0.0):
    return pd.Series(mean + volatility * RNG.standard_normal(len(DAYS)), DAYS)


SPY = draw(0.01, 0.0004).rename("SPY")
QQQ = (1.1 * SPY + draw(0.004)).rename("QQQ")
MINE = (0.5 * SPY + draw(0.006, 0.001)).rename("mine")
OTHER = (0.5 * SPY + draw(0.006)).rename("other")
UNRELATED = draw(0.01)
RATE = np.exp(np.cumsum(0.005 * RNG.standard_normal((len(BARS), 1)), axis=0))
"""An exchange rate `[S, 1]`."""


def file(values=OTHER, benchmark=SPY, **options):
    """Describe the look at a file of returns."""
    return look_of(make_record(values, benchmark=benchmark, **options))


def after(second, first=None):
    """The number of a second look, after a first one at MINE against SPY."""

    def cheat(ledger):
        looks = [first or file(MINE), second]
        number = [ledger.record(one)[0] for one in looks][-1]
        return {1: "not caught", 2: "next look"}[number]

    return cheat


def backtest(close, names="QRSTUVWXY", first=2_000, **options):
    """A backtest of other strategies, after one of the window BARS."""
    return after(look("b", seen(close, names, first, **options)), look("a", seen(BARS)))


def weeks(values, rule="W-FRI"):
    return (1 + values).resample(rule).prod() - 1


def quality(record, **options):
    """The outcome of a record that passes the test."""
    verdict = judge_record(record, trials=1, **options)
    assert verdict.evidence.alpha.p_value < verdict.evidence.level
    return "not caught" if verdict.is_likely_skill else "reservation"


def refused(action, *errors):
    with pytest.raises(errors or ReturnsError):
        action()
    return "refused"


# --- markets --------------------------------------------------------------------------------------

MARKET = planted_market(480, 3, session_bars=2)
SPLIT = replace(MARKET, windows=Windows((0, 160), (160, 320), (320, 480))).split()
RULES = EnvSettings(benchmark="equal_weight")


class Learned:
    """Equal weights, by a policy that says which bars it has learned from."""

    def __init__(self, market):
        self.meta = {"seen": [market.span.to_json()]}

    def __call__(self, obs):
        return torch.full((len(obs), 3), 0.3)


def backtest_policy(policy, market):
    verdict = assess({"policy": simulate(policy, market, RULES)}, look=1, market=market)
    return "no verdict" if verdict.text.startswith("No verdict") else "not caught"


def resplit(_):
    """Call a part of the training window the test window of another split."""
    again = replace(SPLIT.train, windows=Windows((0, 10), (10, 20), (20, 160))).split().test
    return backtest_policy(lambda obs: torch.full((len(obs), 3), 0.3), again)


def judge_backtest(ledger):
    """Judge a backtest's returns again as a file, against an index."""
    close = walk(sessions=120)
    market = market_of(close, 1)
    market = replace(market, minutes=market.minutes // 10**9 * 10**9)
    days = pd.DatetimeIndex(market.timestamps()[1:]).tz_localize(None).normalize()
    index = pd.Series(close.mean(axis=1), pd.DatetimeIndex(market.timestamps()))
    index = index.pct_change().iloc[1:].set_axis(days) + 0.001 * RNG.standard_normal(119)
    own = pd.Series(0.01 * RNG.standard_normal(119), days)
    return after(file(own, index), look("a", identify_bars([market])))(ledger)


# --- files ----------------------------------------------------------------------------------------


def drop_worst(count, benchmark):
    """Leave the worst sessions out of the file."""
    return make_record(MINE.drop(MINE.nsmallest(count).index), benchmark=benchmark)


def blank_benchmark(_):
    """Leave the benchmark out where the strategy lost most."""
    return quality(make_record(MINE, benchmark=SPY.mask(MINE.nsmallest(12).iloc[-1] >= MINE)))


def state_one_trial(ledger):
    """Judge 20 files, and state one trial for the best."""
    for k in range(20):
        ledger.record(file(OTHER + 0.001 * k * UNRELATED))
    number, _ = ledger.record(file(MINE))
    assert number == 21
    return "next look"


def state_held_out(ledger):
    """Judge a file again, stated as held out."""
    return {1: "same look"}[[ledger.record(file(MINE))[0] for _ in range(2)][-1]]


def replace_caveats(_):
    """Take the caveats from a verdict."""
    caught = judge_record(make_record(MINE, benchmark=SPY), trials=1, caveats=["stale prices"])
    assert replace(caught, caveats=()).state == caught.state
    return "not caught" if conclude(replace(caught, caveats=())).is_likely_skill else "refused"


def skip_the_ledger(_):
    """Judge in Python without the ledger."""
    assert "looks not counted" in judge_record(make_record(MINE, benchmark=SPY), trials=1).text
    return "reported"


# --- the ledger -----------------------------------------------------------------------------------


def edit(ledger):
    ledger.record(file(MINE))
    ledger.path.write_bytes(ledger.path.read_bytes().replace(b"mine", b"none"))
    return refused(lambda: ledger.record(file()), LedgerError)


def delete_a_line(ledger):
    for values in (MINE, OTHER, QQQ):
        ledger.record(file(values))
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(lines[0] + lines[2])
    return refused(lambda: ledger.record(file()), LedgerError)


def _cut(ledger, keep):
    """Make a run's backtest and a look at a file; leave `keep` lines on the ledger."""
    home = ledger.path.parent / "runs" / "own" / "backtest"
    home.mkdir(parents=True)
    _, line = ledger.record(look())
    (home / SEAL).write_bytes(make_seal({}, line))
    ledger.record(file(MINE))
    lines = ledger.path.read_bytes().splitlines(keepends=True)
    ledger.path.write_bytes(b"".join(lines[:keep]))
    runs = find_missing_looks(ledger.path.parent / "runs")
    files = {1: "not caught", 2: "next look"}[ledger.record(file())[0]]
    return runs, files


def cut_a_run(ledger):
    (deleted, _), _ = _cut(ledger, 0)
    return "reported" if deleted else "not caught"


def cut_a_file(ledger):
    return _cut(ledger, 1)[1]


def move_home(ledger):
    ledger.record(file(MINE))
    number, _ = Ledger(ledger.path.parent / "other").record(file())
    return {1: "not caught", 2: "next look"}[number]


def lock_home(ledger):
    ledger.path.parent.touch()
    return "reported" if "looks not counted" in fintrader.judge(MINE, SPY, trials=1).text else ""


def look_at_once(ledger):
    with ThreadPoolExecutor(2) as pool:
        numbers = pool.map(lambda one: ledger.record(one)[0], [file(MINE), file()])
    return "next look" if sorted(numbers) == [1, 2] else "not caught"


def stop_before_the_verdict(ledger):
    """Press Ctrl-C before the verdict is shown."""

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fintrader.report.judged.judge_record", interrupt)
        refused(lambda: fintrader.judge(MINE, SPY, trials=1), KeyboardInterrupt)
    return {1: "not caught", 2: "next look"}[ledger.record(file())[0]]


def edit_a_verdict(ledger):
    """Edit the verdict in a run's folder."""
    home = ledger.path.parent / "backtest"
    home.mkdir(parents=True)
    (home / "verdict.json").write_text('{"state": "no_verdict"}')
    hashes = {"verdict.json": hash_file(home / "verdict.json")}
    (home / SEAL).write_bytes(make_seal(hashes))
    assert "verdict.json" not in describe_seal_problems(Folder.locate(home))
    (home / "verdict.json").write_text('{"state": "likely_skill"}')
    return "reported" if "verdict.json" in describe_seal_problems(Folder.locate(home)) else ""


NOISE = np.random.default_rng(1).standard_normal(BARS.shape)
CHEATS = {
    "other tickers": backtest(BARS, first=0),
    "other dates": backtest(BARS, "ABCDEFGHI"),
    "a copied or renamed run, another seed": after(
        look("b", seen(BARS), run="copy"), look("a", seen(BARS))
    ),
    "a third of the symbols": backtest(BARS[:, 2:5], "XYZ"),
    "twice as many symbols, half of them dummies": backtest(
        np.hstack([BARS, walk(series=9, seed=5)])
    ),
    "half of the sessions": backtest(BARS[30:]),
    "another bar length": backtest(BARS, a_day=5),
    "prices moved by a millionth": backtest(BARS * (1 + 1e-6 * NOISE)),
    "prices in cents, or at a fixed exchange rate": backtest(BARS * 100),
    "prices upside down (1 / price)": backtest(1e4 / BARS),
    "prices unadjusted for dividends": backtest(
        BARS * np.where(np.arange(60) < 30, 1, 0.99)[:, None]
    ),
    "prices at a true exchange rate": backtest(BARS * RATE, "ABCDEFGHI", 0),
    "prices at a true exchange rate, and other tickers": backtest(BARS * RATE, first=0),
    "other symbols on the same days": backtest(walk(seed=7), first=0),
    "a test window cut from the training window": resplit,
    "a policy trained on the test window": lambda _: backtest_policy(
        Learned(SPLIT.test), SPLIT.test
    ),
    "the same behind a plain function": lambda _: backtest_policy(
        lambda obs: Learned(SPLIT.test)(obs), SPLIT.test
    ),
    "the same, trained under other tickers": lambda _: backtest_policy(
        Learned(replace(SPLIT.test, symbols=("X", "Y", "Z"))), SPLIT.test
    ),
    "a backtest's returns judged again as a file": judge_backtest,
    "another strategy against the same benchmark": after(file()),
    "a benchmark that is leveraged or inverted": after(file(benchmark=-2 * SPY)),
    "a benchmark a day late": after(file(benchmark=SPY.shift(1, fill_value=0.0))),
    "a benchmark mixed with cash": after(file(benchmark=0.6 * SPY + 0.0001)),
    "a similar benchmark (QQQ for SPY)": after(file(benchmark=QQQ)),
    "the same strategy against another benchmark": after(file(MINE, UNRELATED)),
    "the same strategy against cash": after(file(MINE, None)),
    "another strategy against cash, after one against cash": after(
        file(OTHER, None), file(MINE, None)
    ),
    "another strategy against an unrelated benchmark": after(file(benchmark=UNRELATED)),
    "weeks instead of days": after(file(weeks(OTHER), weeks(SPY))),
    "months instead of days": after(file(weeks(OTHER, "ME"), weeks(SPY, "ME"))),
    "a part of the window": after(file(OTHER[250:])),
    "two halves, the better one shown": after(file(MINE[250:]), file(MINE[:250])),
    "returns moved by a billionth": after(file(MINE + 1e-9)),
    "the worst sessions left out, against a benchmark": lambda _: quality(drop_worst(12, SPY)),
    "more than a twentieth of the sessions left out": lambda _: refused(
        lambda: drop_worst(60, None)
    ),
    "fewer, against cash": lambda _: quality(drop_worst(12, None)),
    "the benchmark left out on the worst sessions": blank_benchmark,
    "other periods a year stated": lambda _: quality(
        make_record(MINE[:200] + 0.001, benchmark=SPY, sessions_a_year=12)
    ),
    "one trial stated after 20 files": state_one_trial,
    "a judged file stated to be held out": state_held_out,
    "a verdict whose caveats are replaced in Python": replace_caveats,
    "a verdict in Python without the ledger": skip_the_ledger,
    "a verdict edited in a run's folder": edit_a_verdict,
    "a line of the ledger edited": edit,
    "a line of the ledger deleted": delete_a_line,
    "the ledger deleted or cut, after runs": cut_a_run,
    "the same, after judged files": cut_a_file,
    "another FINTRADER_HOME, user or machine": move_home,
    "a home that cannot be written": lock_home,
    "two looks at once": look_at_once,
    "a process stopped before it shows the verdict": stop_before_the_verdict,
}


def list_documented():
    """Read the cheats and outcomes of the table in the docs."""
    text = (ROOT / "docs" / "assets" / "cheats.tsv").read_text()
    return dict(re.findall(r"^(.+?)\t\*(.+?)\*", text, re.MULTILINE))


@pytest.mark.parametrize("name", slow_but(*range(0, 160, 2), every=CHEATS))
def test_the_outcome_of_a_cheat_is_the_documented_one(name, tmp_path, monkeypatch):
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    assert CHEATS[name](Ledger()) == list_documented()[name]


def test_the_docs_list_the_cheats_that_are_tried():
    assert list(list_documented()) == list(CHEATS)
    assert len(CHEATS) >= 20


def test_curves_of_different_markets_do_not_match():
    """Benchmarks of the same days that share little, or one crash, are different windows."""
    rivals = [file(draw(0.01), draw(0.01) + 0.5 * SPY).bars for _ in range(20)]
    assert not any(a.overlaps(b) for k, a in enumerate(rivals) for b in rivals[:k])
    crash = pd.Series(np.where(np.arange(500) == 100, -0.3, 0.0), DAYS)
    a, b = (file(draw(0.005) + crash, draw(0.01) + crash).bars for _ in range(2))
    assert not a.overlaps(b)
    assert not Window("k", ("A",), "2020-01-02", "2021-01-01").overlaps(rivals[0])
