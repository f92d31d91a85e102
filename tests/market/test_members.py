"""The members of the NASDAQ-100 by date against three references: they differ by what the docs
list."""

import csv
import datetime as dt
import functools
import importlib.metadata
import itertools
import sys
import types
from collections import Counter
from pathlib import Path

import pandas as pd
import pytest

from fintrader.bars.companies import NEVER, hash_index, list_index_companies
from fintrader.errors import DataError
from fintrader.market.universe import index_tickers
from tests.bars.tables import REAL_FOLDER
from tests.quick import slow_but

HERE = Path(__file__).resolve().parent
DIFFERENCES = HERE.parents[1] / "docs" / "assets" / "members_differences.csv"
LIST = REAL_FOLDER / "n100_membership_20151012_20210601.csv"
FIRST = dt.date(2007, 2, 1)
LAST = dt.date(2026, 10, 9)
DAY = dt.timedelta(days=1)


def companies():
    return list_index_companies("nasdaq100")


@functools.cache
def bearers():
    """Every ticker -> the companies that ever bore it."""
    found = {}
    for company in companies():
        for ticker in {name.ticker for name in company.names}:
            found.setdefault(ticker, []).append(company)
    return found


def weekdays(first, stop):
    return pd.bdate_range(first, stop - DAY).date


def holder(ticker, day):
    """The company of a ticker on a day, or else the last that ever had it (references call many by
    their last one)."""
    ever = bearers().get(ticker, [])
    then = [one for one in ever if one.holds(ticker, day)]
    return (then or ever)[-1].key if ever else ticker


def ours(first, stop):
    found = {}
    for company in companies():
        days = {
            day for a, b in company.member for day in weekdays(max(a, first), min(b or stop, stop))
        }
        if days:
            found[company.key] = days
    return found


def by_constitution():
    """The package index-constitution."""
    package = pytest.importorskip("index_constitution")
    if importlib.metadata.version("index-constitution") != "1.0.1":
        pytest.skip("the differences are those of index-constitution 1.0.1")
    found = {}
    history = package.history("nasdaq100")
    stop = LAST + DAY
    renamed = {"TCFCA": "TFCFA", "TCFCB": "TFCF", "NLTI": "NTLI"}
    named = {"Monster Worldwide": "MWW", "Monster Beverage Corporation": "MNST"}
    for symbol, name, first, last in zip(
        *(history[key] for key in ("symbol", "name", "opt-in", "opt-out")), strict=True
    ):
        until = stop if last != last else min(last.date(), stop)
        key = named.get(name) or holder(renamed.get(symbol, symbol), until - DAY)
        found.setdefault(key, set()).update(weekdays(max(first.date(), FIRST), until))
    return {key: days for key, days in found.items() if days}, FIRST, stop


def by_changes():
    """The changes that the repository jmccarrell/n100tickers lists; its files of 2024 end in
    June."""
    found = {}
    now = set()
    rows = list(csv.DictReader((HERE / "nasdaq100_changes.csv").open()))
    stop = dt.date.fromisoformat(rows[-1]["day"]) + DAY
    for row, later in zip(rows, [*rows[1:], {"day": str(stop)}], strict=True):
        left = set(row["left"].split())
        assert left <= now, row
        now = (now - left) | set(row["joined"].split())
        for day in weekdays(dt.date.fromisoformat(row["day"]), dt.date.fromisoformat(later["day"])):
            for ticker in now if day >= FIRST else ():
                # its Class A of before 2014-04-03 traded as GOOG
                found.setdefault(holder(ticker, day), set()).add(day)
    return found, FIRST, stop


def by_list():
    """The list beside the real bars."""
    if not LIST.is_file():
        pytest.skip("real bars are not here")
    found = {}
    rows = list(csv.DictReader(LIST.open()))
    first = dt.date(2015, 10, 12)
    last = dt.date(2021, 6, 1)
    for row in rows:
        joined, left = (dt.date.fromisoformat(row[name]) for name in ("member_from", "member_to"))
        for day in weekdays(joined, left + DAY):
            found.setdefault(holder(row["ticker"], day), set()).add(day)
    return found, first, last + DAY


REFERENCES = {"index-constitution": by_constitution, "n100tickers": by_changes, "the list": by_list}


def ranges(days):
    """`2016-02-16 … 2016-02-19, …`: runs of weekdays."""
    runs = []
    for day in sorted(days):
        before = day - DAY * (3 if day.weekday() == 0 else 1)
        if runs and runs[-1][1] == before:
            runs[-1][1] = day
        else:
            runs.append([day, day])
    return ", ".join(f"{a} … {b}" if a != b else f"{a}" for a, b in runs)


def differences(name):
    """(company, days only here, days only there)."""
    theirs, first, stop = REFERENCES[name]()
    mine = ours(first, stop)
    return {
        (
            key,
            ranges(mine.get(key, set()) - theirs.get(key, set())),
            ranges(theirs.get(key, set()) - mine.get(key, set())),
        )
        for key in {*mine, *theirs}
        if mine.get(key, set()) != theirs.get(key, set())
    }


def told(name):
    """What the documentation's file lists of a reference, without the reasons."""
    rows = [row for row in csv.DictReader(DIFFERENCES.open()) if row["reference"] == name]
    assert rows
    assert all(row["why"] for row in rows)
    return {(row["company"], row["only_here"], row["only_there"]) for row in rows}


@pytest.mark.parametrize("name", slow_but(0, every=list(REFERENCES)))
def test_every_difference_to_a_reference_is_listed_and_no_other(name):
    assert differences(name) == told(name)


def test_no_day_has_too_few_or_too_many_members_and_no_letters_two_owners():
    days = weekdays(FIRST, LAST + DAY)
    members = ours(FIRST, LAST + DAY)
    assert all(members.values())
    count = Counter(itertools.chain.from_iterable(members.values()))
    assert {count[day] for day in days if day < dt.date(2014, 4, 3)} == {100}
    assert {count[day] for day in days} <= set(range(100, 109))
    for company in companies():
        assert all(
            a.stop <= b.start for a, b in zip(company.names, company.names[1:], strict=False)
        ), company
        ends = [(first, stop or NEVER) for first, stop in company.member]
        assert all(a < b for a, b in ends)
        assert all(a[1] < b[0] for a, b in itertools.pairwise(ends)), company
    for ticker, owners in bearers().items():
        spans = sorted(
            (name.start, name.stop) for one in owners for name in one.names if name.ticker == ticker
        )
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans)), ticker


@pytest.mark.parametrize(
    ("ticker", "spans"),
    [  # as they traded: WTW and FI never, the others only under the letters of the day
        ("FB", [("2012-12-12", "2022-06-09")]),
        ("META", [("2022-06-09", None)]),
        ("WLTW", [("2018-12-24", "2020-04-30")]),
        ("HANS", [("2007-12-24", "2009-12-21"), ("2011-12-19", "2012-01-09")]),
        ("KFT", [("2012-07-23", "2012-10-02")]),
        ("FISV", [("2007-02-01", "2023-06-07")]),
        ("GOOG", [("2007-02-01", "2014-04-03"), ("2014-04-03", None)]),
        ("FOXA", [("2013-07-01", "2019-03-19"), ("2019-03-19", "2021-12-20")]),
        (
            "SNDK",
            [("2007-02-01", "2008-12-22"), ("2009-12-21", "2016-03-16"), ("2026-04-20", None)],
        ),
        ("WTW", None),
        ("FI", None),
        ("GEN", None),
    ],
)
def test_a_ticker_is_a_member_while_its_company_is(ticker, spans):
    expected = spans and [
        (dt.date.fromisoformat(a), b and dt.date.fromisoformat(b)) for a, b in spans
    ]
    assert tickers_of_members("nasdaq100").get(ticker) == expected


def tickers_of_members(index):
    """Ticker -> intervals in which a member traded under it."""
    found = {}
    for company in list_index_companies(index):
        for (first, stop), name in itertools.product(company.member, company.names):
            since, until = max(name.start, first), min(name.stop, stop or dt.date.max)
            if since < until:
                end = None if until == dt.date.max else until
                found.setdefault(name.ticker, []).append((since, end))
    return {ticker: sorted(spans, key=lambda span: span[0]) for ticker, spans in found.items()}


def test_by_the_tickers_of_one_day_the_same_members_have_other_names():
    members = {
        one.ticker(dt.date(2023, 1, 3)): one.member for one in list_index_companies("nasdaq100")
    }
    assert members["WTW"] == ((dt.date(2018, 12, 24), dt.date(2020, 4, 30)),)
    assert members["META"] == ((dt.date(2012, 12, 12), None),)
    assert "FB" not in members
    assert "FB" in {one.ticker(dt.date(2021, 8, 2)) for one in list_index_companies("nasdaq100")}
    first, last, as_of = dt.date(2016, 1, 4), dt.date(2022, 7, 1), dt.date(2026, 1, 2)
    asked = set(index_tickers("nasdaq100", first, last, as_of))
    traded = {
        ticker
        for ticker, spans in tickers_of_members("nasdaq100").items()
        if any(start <= last and (stop is None or stop > first) for start, stop in spans)
    }
    assert traded < asked
    assert {"FB", "PCLN", "BKNG", "SYMC", "NLOK", "WLTW", "CTRP", "TCOM"} <= traded
    assert {"META", "GEN", "WTW"} <= asked
    assert not {"BRCM", "KFT", "HANS"} & asked


@pytest.mark.parametrize("index", ["sp500", "dow30"])
def test_an_index_without_its_package_says_what_to_install(index, monkeypatch):
    monkeypatch.setitem(sys.modules, "index_constitution", None)
    list_index_companies.cache_clear()
    with pytest.raises(DataError, match=rf"{index} needs index-constitution: .*pip install"):
        list_index_companies(index)
    assert list_index_companies("nasdaq100")


def test_a_company_keeps_its_history_through_two_changes_of_its_ticker(monkeypatch):
    days = pd.to_datetime(["2012-03-01", "2018-06-01"])
    package = types.SimpleNamespace(
        events=lambda index: pd.DataFrame(
            {
                "event_type": "ticker_change",
                "event_date": days[::-1],
                "old_symbol": ["BBB", "AAA"],
                "new_symbol": ["CCC", "BBB"],
            }
        ),
        history=lambda index: pd.DataFrame(
            {"symbol": ["CCC"], "opt-in": [pd.Timestamp("2010-01-04")], "opt-out": [pd.NaT]}
        ),
    )
    monkeypatch.setitem(sys.modules, "index_constitution", package)
    list_index_companies.cache_clear()
    (company,) = list_index_companies("dow30")
    list_index_companies.cache_clear()
    assert [name.ticker for name in company.names] == ["AAA", "BBB", "CCC"]
    for year, ticker in ((2011, "AAA"), (2015, "BBB"), (2020, "CCC")):
        assert company.ticker(dt.date(year, 1, 3)) == ticker


def test_other_indices_come_with_what_is_known_of_their_tickers():
    pytest.importorskip("index_constitution")
    members = {one.key: one for one in list_index_companies("sp500")}
    assert members["META"].ticker(dt.date(2020, 1, 2)) == "FB"
    assert [name.ticker for name in members["CPRI"].names] == ["KORS", "CPRI"]
    traded = tickers_of_members("sp500")
    assert traded["WLTW"] == [(dt.date(2016, 1, 5), dt.date(2022, 1, 10))]
    assert "WTW" in traded
    assert len({hash_index(name) for name in ("nasdaq100", "sp500", "dow30")}) == 3
