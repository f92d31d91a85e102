"""Which symbols a market holds, and when each belongs to the index: from what was known at the time.

Names that were delisted or dropped later stay in, with `member` False from then on; to keep only today's members would
be to know in 2016 who would survive. Tickers that changed are resolved to the ones of the day.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from fintrader.config import PathText, Settings, base_name
from fintrader.data.bars import Array
from fintrader.errors import DataError
from fintrader.storage.objects import read_csv

Interval = tuple[dt.date, dt.date | None]
"""First day of membership, and the first day after it (None while it lasts)."""


class UniverseSettings(Settings):
    """Filters are computed on the training window only: to choose by later data would be to look ahead."""

    symbols: tuple[str, ...] = ()
    """Exactly these (all that the source has, when empty)."""
    min_coverage: float = Field(0.0, ge=0, le=1)
    """Keep symbols that traded in at least this share of the training window's bars."""
    max_symbols: int | None = Field(None, ge=1)
    """Keep so many symbols at most: those with the highest turnover in the training window."""
    index: Literal["nasdaq100", "sp500", "dow30"] | None = None
    """Members of this index by date (package index-constitution); all symbols are members when nothing is set."""
    membership: PathText | None = None
    """Own list instead, CSV (path or URL): ticker, member_from, member_to (last day, included, or empty)."""
    aliases: Mapping[str, str] = Field(default_factory=dict)
    """Symbols of the bars that the list calls otherwise, like {BKNG: PCLN}."""
    shares_outstanding: PathText | None = None
    """CSV (path or URL) of shares outstanding: symbol, from (a date), shares. A number counts from its date on until
    the next one; a split needs a row of its own at its ex-date."""


class Coverage:
    """How much of the training window each symbol traded in, and for how many dollars."""

    def __init__(self, train: tuple[int, int]) -> None:
        self.train = train
        self.share: dict[str, float] = {}
        self.turnover_usd: dict[str, float] = {}

    def add(self, symbol: str, at: Array, close: Array, volume: Array) -> None:
        """Take in one symbol: `at` is the bar of the grid of each row, `[R]`."""
        inside = (at >= self.train[0]) & (at < self.train[1])
        self.share[symbol] = float(np.count_nonzero(inside)) / (self.train[1] - self.train[0])
        self.turnover_usd[symbol] = float((close[inside] * volume[inside]).sum())

    def rank(self, symbol: str) -> tuple[float, str]:
        """Sorts symbols by turnover, the highest first, equal ones by name."""
        return -self.turnover_usd[symbol], symbol


def choose(settings: UniverseSettings, coverage: Coverage) -> tuple[list[str], dict[str, str]]:
    """The chosen symbols of those added, sorted, and why each other one was left out.

    Raises DataError when an explicit symbol was not added, or nothing is left.
    """
    missing = [name for name in settings.symbols if name not in coverage.share]
    if missing:
        raise DataError(f"no bars of {', '.join(missing)}; remove them from data.universe.symbols or add their bars")
    chosen = sorted(settings.symbols or coverage.share)
    left_out = {
        name: f"traded in {coverage.share[name]:.1%} of the training bars"
        for name in chosen
        if coverage.share[name] < settings.min_coverage
    }
    kept = [name for name in chosen if name not in left_out]
    if settings.max_symbols is not None:
        ranked = sorted(kept, key=coverage.rank)
        left_out |= dict.fromkeys(ranked[settings.max_symbols :], "turnover in the training window too small")
        kept = [name for name in kept if name not in left_out]
    if not kept:
        raise DataError(f"no symbol is left of {len(chosen)}; lower data.universe.min_coverage")
    return kept, left_out


def load_membership(settings: UniverseSettings) -> dict[str, list[Interval]] | None:
    """Ticker -> intervals of membership, None when everybody is a member. Raises DataError."""
    if settings.membership is not None:
        return read_membership(settings.membership)
    return index_membership(settings.index) if settings.index is not None else None


def read_membership(path: Path | str) -> dict[str, list[Interval]]:
    """A list of one's own: CSV with ticker, member_from, member_to (included)."""
    found: dict[str, list[Interval]] = {}
    for line, row in read_csv(str(path), "data.universe.membership"):
        try:
            last = dt.date.fromisoformat(row["member_to"]) + dt.timedelta(days=1) if row["member_to"] else None
            found.setdefault(row["ticker"], []).append((dt.date.fromisoformat(row["member_from"]), last))
        except (KeyError, ValueError, TypeError):
            raise DataError(
                f"{base_name(str(path))}, line {line}: expected ticker, member_from, member_to as dates like 2016-01-04"
            ) from None
    return {ticker: sorted(intervals, key=lambda pair: pair[0]) for ticker, intervals in found.items()}


_OTHER_NAMES = (("nasdaq100", "TCFCA", "FOXA"), ("nasdaq100", "TCFCB", "FOX"), ("nasdaq100", "NLOK", "SYMC"))
"""Names that index-constitution gives to what traded under another: 21st Century Fox until 2019-03-19, Symantec until
2019-11-04."""


def index_membership(index: str) -> dict[str, list[Interval]]:
    """Members of an index by date, as index-constitution has them, under every ticker they ever had.

    A company that changed its ticker is a member under the old and the new one alike, because vendors rewrite the past
    to today's tickers or do not; which of the two a set of bars uses is its own affair.
    """
    import index_constitution

    history = index_constitution.history(index)
    found: dict[str, list[Interval]] = {}
    for symbol, first, last in zip(history["symbol"], history["opt-in"], history["opt-out"], strict=True):
        until = None if last != last else last.date()
        found.setdefault(str(symbol), []).append((first.date(), until))
    for old, new in _ticker_changes(index):
        both = [*found.get(old, []), *found.get(new, [])]
        if both:
            found[old] = found[new] = both
    return found


def companies(settings: UniverseSettings) -> dict[str, str]:
    """Old ticker -> the last one, for the companies of an index that changed theirs; empty for a list of one's own."""
    if settings.membership is not None or settings.index is None:
        return {}
    last: dict[str, str] = {}
    for old, new in _ticker_changes(settings.index):
        last = {ticker: new if name == old else name for ticker, name in last.items()} | {old: last.get(new, new)}
    return last


def _ticker_changes(index: str) -> list[tuple[str, str]]:
    """(old, new), in order of time."""
    import index_constitution

    events = index_constitution.events(index)
    changed = events[events["event_type"] == "ticker_change"]
    pairs = [(str(old), str(new)) for old, new in zip(changed["old_symbol"], changed["new_symbol"], strict=True)]
    return pairs + [(theirs, ours) for name, theirs, ours in _OTHER_NAMES if name == index]


def member_days(
    symbols: Sequence[str],
    membership: Mapping[str, Iterable[Interval]] | None,
    dates: Array,
    aliases: Mapping[str, str],
) -> Array:
    """`[S, N]` bool: whether each symbol belongs to the universe on each session's day."""
    table = np.ones((len(dates), len(symbols)), dtype=bool)
    if membership is None:
        return table
    for column, symbol in enumerate(symbols):
        inside = np.zeros(len(dates), dtype=bool)
        for first, stop in membership.get(aliases.get(symbol, symbol), ()):
            inside |= (dates >= np.datetime64(first)) & (dates < np.datetime64(stop or dt.date.max))
        table[:, column] = inside
    return table


Shares = Mapping[str, Sequence[tuple[dt.date, float]]]
"""Symbol -> (day, shares from that day on), in order."""


def load_shares(settings: UniverseSettings) -> Shares | None:
    """Shares outstanding, None when no file is given. Raises DataError for a file or line that cannot be used."""
    if settings.shares_outstanding is None:
        return None
    found: dict[str, dict[dt.date, float]] = {}
    name = base_name(settings.shares_outstanding)
    for line, row in read_csv(settings.shares_outstanding, "data.universe.shares_outstanding"):
        try:
            symbol, day, shares = row["symbol"], dt.date.fromisoformat(row["from"]), float(row["shares"])
        except (KeyError, ValueError, TypeError):
            shares = 0.0
        if not 0 < shares < np.inf:
            raise DataError(f"{name}, line {line}: expected symbol, from (2016-01-04) and shares, a positive number")
        if found.setdefault(symbol, {}).setdefault(day, shares) != shares:
            raise DataError(f"{name}, line {line}: a second, different number for {symbol} on {day}; keep one")
    return {symbol: sorted(numbers.items()) for symbol, numbers in found.items()}


def share_days(symbols: Sequence[str], shares: Shares, dates: Array) -> Array:
    """`[S, N]` float32: shares outstanding on each session's day, NaN before a symbol's first number.

    Raises DataError when there is no number for any symbol.
    """
    table = np.full((len(dates), len(symbols)), np.nan, dtype=np.float32)
    for column, symbol in enumerate(symbols):
        for day, number in shares.get(symbol, ()):
            table[dates >= np.datetime64(day), column] = number
    if np.isnan(table).all():
        raise DataError(
            f"data.universe.shares_outstanding has no number for {', '.join(symbols[:3])} or any other symbol up to "
            f"{dates[-1]}; correct its symbols or dates"
        )
    return table


_QUARTER = 63
_FEW = 10
TOLERATED = 0.05
"""Share of the member-days without bars from which on a universe is suspect, and its members by date unmeasurable."""


def missing_members(
    symbols: Iterable[str],
    membership: Mapping[str, Iterable[Interval]] | None,
    companies: Mapping[str, str],
    dates: Array,
    aliases: Mapping[str, str],
) -> dict[str, float]:
    """Members on the days `[S]` of which there are no bars under any ticker -> their share of all member-days.

    `companies` maps tickers of one company to one of them; a ticker that is not in it stands for itself.
    """
    if membership is None:
        return {}
    tickers = sorted(membership)
    days = member_days(tickers, membership, dates, {})
    belongs: dict[str, Array] = {}
    for column, ticker in enumerate(tickers):
        name = companies.get(ticker, ticker)
        belongs[name] = days[:, column] | belongs.get(name, np.zeros(len(dates), dtype=bool))
    there = {companies.get(ticker, ticker) for ticker in (aliases.get(symbol, symbol) for symbol in symbols)}
    total = sum(int(member.sum()) for member in belongs.values())
    absent = {name: int(member.sum()) for name, member in belongs.items() if name not in there and member.any()}
    return {name: count / total for name, count in sorted(absent.items())}


def survivorship(
    ended: Sequence[str],
    close: Array,
    member: Array,
    *,
    missing: Mapping[str, float] | None = None,
    index: Array | None = None,
    index_name: str = "index",
) -> dict[str, Any]:
    """Whether a universe looks like one of survivors only, and by how much that flatters it.

    close: `[S, N]` last close of each session; member: `[S, N]` bool; index: `[S]` level at each session's end.
    Suspect is a universe of ten names or more over a quarter or more that nobody leaves (entries say nothing), or of
    whose member-days more than a twentieth has no bars.

    `bias_per_year` is the yearly log growth of the names that are still members at the end, in equal weights, less that
    of the index, or else of the members of each day. None where neither is known: bars of survivors cannot tell what
    the others would have done.
    """
    sessions, names = close.shape
    missing = missing or {}
    share = sum(missing.values())
    dropped = int(np.count_nonzero(member[:-1] & ~member[1:] & np.isfinite(close[1:])))
    exits = len(ended) + dropped
    returns = close[1:] / close[:-1] - 1.0
    alive = _growth(returns, np.broadcast_to(np.isfinite(close[-1]) & member[-1], returns.shape))
    by_day = _growth(returns, member[1:])
    reference, against = None, None
    if index is not None and sessions > 1:
        reference, against = 252.0 * float(np.log(index[-1] / index[0])) / (sessions - 1), index_name
    elif exits and share <= TOLERATED:
        reference, against = by_day, "the members of each day"
    return {
        "survivors_only": sessions >= _QUARTER and names >= _FEW and (exits == 0 or share > TOLERATED),
        "sessions": sessions,
        "ended": len(ended),
        "left_the_list": dropped,
        "members_without_bars": list(missing),
        "member_days_without_bars": share,
        "survivors_return_per_year": alive,
        "members_return_per_year": by_day,
        "bias_against": against,
        "bias_per_year": None if alive is None or reference is None else alive - reference,
    }


def describe(found: Mapping[str, Any]) -> str:
    """What `survivorship` found, in a sentence; empty when nothing is suspect."""
    if not found["survivors_only"]:
        return ""
    names = found["members_without_bars"]
    if found["member_days_without_bars"] > TOLERATED:
        some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        why = f"{len(names)} members have no bars ({found['member_days_without_bars']:.1%} of the member-days: {some})"
    else:
        why = f"nobody leaves in {found['sessions']} sessions"
    if found["bias_per_year"] is None:
        size = "by how much that flatters it is unknown (an index under data.benchmark.path would tell)"
    else:
        more = f"{found['bias_per_year']:+.1%} a year against {found['bias_against']}"
        size = f"in equal weights (which matter too) it grows {more}"
    return f"a list of survivors? {why}; {size}"


def _growth(returns: Array, held: Array) -> float | None:
    """Yearly log growth of equal weights in what is `held` (`[S - 1, N]` both), None when nothing ever is."""
    counted = np.isfinite(returns) & held
    number = counted.sum(axis=1)
    if not number.any():
        return None
    days = number > 0
    mean = np.where(counted, returns, 0.0).sum(axis=1)[days] / number[days]
    return 252.0 * float(np.log1p(mean).mean())
