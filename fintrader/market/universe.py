"""Symbols of a market, and their days of membership in the index, as known at the time.

Symbols that were later delisted or dropped stay in, with `member` False from then on; keeping only
today's members would be survivorship bias. Changed tickers are resolved to those of each day.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import Field

from fintrader.bars.bars import Array
from fintrader.bars.companies import NEVER, Interval, list_index_companies, overlaps, read_interval
from fintrader.config import Count, Fraction, PathText, Settings, Ticker, strip_folders
from fintrader.errors import DataError
from fintrader.market.features import mean_return
from fintrader.metrics import TRADING_DAYS
from fintrader.progress import shorten_list
from fintrader.results.market_description import MOST_ABSENT, Survivorship
from fintrader.storage.objects import read_csv

INDICES = ("nasdaq100", "sp500", "dow30")


class UniverseSettings(Settings):
    """A market's symbols and members. Filters use the training window only, because a choice by
    later data would look ahead."""

    symbols: tuple[Ticker, ...] = ()
    """Symbols of the market; empty: all that the source has."""
    min_coverage: Fraction = 0.0
    """Keep symbols that traded on at least this share of their days in the training window. A
    symbol's days run from its first bar there to its last; with `members`, only member days count.
    A symbol without such a day is kept."""
    max_symbols: Count | None = None
    """Largest number of symbols; those with the highest turnover in the training window are
    kept."""
    members: PathText | None = None
    """Members by date: those of an index (nasdaq100, sp500 or dow30), or a CSV of your own (path or
    URL): ticker, member_from, member_to (last day, included, or empty). None: all symbols are
    members. nasdaq100 (since 2007-02-01) comes with fintrader, the others with the package
    index-constitution (extra `indices`)."""
    tickers_as_of: dt.date | None = None
    """Date of the bars' tickers, for files that use one ticker per company in all years (META in
    2016). None: each bar has the ticker of its own day; a vendor's bars have today's tickers."""
    aliases: Mapping[Ticker, Ticker] = Field(default_factory=dict)
    """Symbols of the bars -> their names in the list of members, like {BKNG: PCLN}, for all their
    bars."""
    shares_outstanding: PathText | None = None
    """CSV (path or URL) of shares outstanding: symbol, from (a date), shares. A number applies from
    its date until the next; a split needs its own row at the ex-date."""

    @property
    def index(self) -> str | None:
        """Name of the index in `members`; None without one."""
        return self.members if self.members in INDICES else None

    def refuse_missing(self, available: Collection[str]) -> None:
        """Raise DataError for an explicit symbol that is not available."""
        missing = [name for name in self.symbols if name not in available]
        if missing:
            raise DataError(
                f"no bars of {', '.join(missing)}; remove them from data.universe.symbols or add"
                " their bars"
            )

    @property
    def membership(self) -> str | None:
        """Path of the user's list in `members`; None without one."""
        return self.members if self.index is None else None


class Coverage:
    """Share of its days in the training window on which each symbol traded, and its turnover in
    dollars."""

    def __init__(self, train: tuple[int, int], session: Array) -> None:
        """`session` `[T]`: number of each bar's session."""
        self.train = train
        self.session = session
        self.share: dict[str, float] = {}
        self.turnover_usd: dict[str, float] = {}

    def add(self, symbol: str, at: Array, close: Array, volume: Array, member: Array) -> None:
        """Add one symbol. at: `[R]`, each row's bar on the grid, in order; member: `[S]` bool, its
        days as a member."""
        inside = (at >= self.train[0]) & (at < self.train[1])
        traded = np.unique(self.session[at[inside]])
        # days, since an expensive share trades in few minutes; from the first bar on, since a young
        # share has few days
        days = member[traded[0] : traded[-1] + 1] if len(traded) else member[:0]
        self.share[symbol] = float(member[traded].sum() / days.sum()) if days.any() else 1.0
        self.turnover_usd[symbol] = float((close[inside] * volume[inside]).sum())

    def rank(self, symbol: str) -> tuple[float, str]:
        """Return a key that sorts symbols by turnover, the highest first, and then by name."""
        return -self.turnover_usd[symbol], symbol


def choose(
    settings: UniverseSettings, coverage: Coverage
) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Choose among the symbols added; return them sorted, and two maps symbol -> reason of those
    left out: for too few days, and for too little turnover.

    Raises DataError when an explicit symbol was not added, or nothing is left.
    """
    settings.refuse_missing(coverage.share)
    chosen = sorted(settings.symbols or coverage.share)
    sparse = {
        name: f"traded on {coverage.share[name]:.1%} of its days in the training window, below"
        f" data.universe.min_coverage {settings.min_coverage:g}"
        for name in chosen
        if coverage.share[name] < settings.min_coverage
    }
    ranked = sorted((name for name in chosen if name not in sparse), key=coverage.rank)
    kept = ranked[: settings.max_symbols]
    if not kept:
        raise DataError(f"no symbol is left of {len(chosen)}; lower data.universe.min_coverage")
    small = dict.fromkeys(ranked[len(kept) :], "turnover in the training window too small")
    return sorted(kept), sparse, small


def load_membership(settings: UniverseSettings) -> dict[str, list[Interval]] | None:
    """Load the intervals of membership, by ticker of the user's list or by company of the index;
    None when all symbols are members.

    Raises DataError for a list that cannot be read.
    """
    if settings.membership is not None:
        return read_membership(settings.membership)
    if settings.index is None:
        return None
    return {company.key: list(company.member) for company in list_index_companies(settings.index)}


def read_membership(path: Path | str) -> dict[str, list[Interval]]:
    """Read a user's own list: CSV with ticker, member_from, member_to (included)."""
    found: dict[str, list[Interval]] = {}
    for line, row in read_csv(str(path), "data.universe.members"):
        try:
            found.setdefault(row["ticker"], []).append(read_interval(row))
        except (KeyError, ValueError, TypeError):
            raise DataError(
                f"{strip_folders(str(path))}, line {line}: expected ticker, member_from, member_to"
                " as dates like 2016-01-04"
            ) from None
    return {
        ticker: sorted(intervals, key=lambda pair: pair[0]) for ticker, intervals in found.items()
    }


def index_tickers(index: str, start: dt.date, end: dt.date, as_of: dt.date) -> list[str]:
    """List all tickers of the members between `start` and `end`: those they traded under then, and
    those of the day `as_of`."""
    found = set[str]()
    for company in list_index_companies(index):
        for interval in company.member:
            if overlaps(interval, start, end):
                first = max(interval[0], start)
                stop = min(interval[1] or NEVER, end + dt.timedelta(days=1))
                names = [name for name in company.names if name.start < stop and name.stop > first]
                found |= {company.ticker(as_of), *(name.ticker for name in names)}
    return sorted(found)


def member_days(
    symbols: Sequence[str],
    membership: Mapping[str, Iterable[Interval]] | None,
    dates: Array,
    aliases: Mapping[str, str],
) -> Array:
    """`[S, N]` bool: True where a symbol belongs to the universe on the session's day."""
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
    """Load the shares outstanding; None without a file. Raises DataError for a file or line that
    cannot be used."""
    if settings.shares_outstanding is None:
        return None
    found: dict[str, dict[dt.date, float]] = {}
    name = strip_folders(settings.shares_outstanding)
    for line, row in read_csv(settings.shares_outstanding, "data.universe.shares_outstanding"):
        try:
            symbol = row["symbol"]
            day = dt.date.fromisoformat(row["from"])
            shares = float(row["shares"])
        except (KeyError, ValueError, TypeError):
            shares = 0.0
        if not 0 < shares < np.inf:
            raise DataError(
                f"{name}, line {line}: expected symbol, from (2016-01-04) and shares, a positive"
                " number"
            )
        if found.setdefault(symbol, {}).setdefault(day, shares) != shares:
            raise DataError(
                f"{name}, line {line}: a second, different number for {symbol} on {day}; keep one"
            )
    return {symbol: sorted(numbers.items()) for symbol, numbers in found.items()}


def share_days(symbols: Sequence[str], shares: Shares, dates: Array) -> Array:
    """`[S, N]` float32: shares outstanding on each session's day, NaN before a symbol's first
    number.

    Raises DataError when there is no number for any symbol.
    """
    table = np.full((len(dates), len(symbols)), np.nan, dtype=np.float32)
    for column, symbol in enumerate(symbols):
        for day, number in shares.get(symbol, ()):
            table[dates >= np.datetime64(day), column] = number
    if np.isnan(table).all():
        raise DataError(
            f"data.universe.shares_outstanding has no number for {shorten_list(symbols)}"
            f" up to {dates[-1]}; correct its symbols or dates"
        )
    return table


_EXITS = 0.04
"""Share of an index's members that leave it in a year, as in the S&P 500 from 2010 to 2024."""
_UNLIKELY = 0.05


def missing_members(
    symbols: Iterable[str],
    membership: Mapping[str, Iterable[Interval]] | None,
    dates: Array,
    aliases: Mapping[str, str],
    listed: Mapping[str, Array] | None = None,
) -> dict[str, float]:
    """Map members that lack bars on some of the days `[S]` to their missing days, as a share of all
    member-days.

    `symbols`: those with any bars. `listed`: days with a price, `[S]` bool, for some of these
    symbols. `aliases`: symbol of the bars -> its name in `membership`, where they differ.
    """
    if membership is None:
        return {}
    names = sorted(membership)
    days = member_days(names, membership, dates, {})
    always = np.ones(len(dates), dtype=bool)
    there: dict[str, Array] = {}
    for symbol in symbols:
        name = aliases.get(symbol, symbol)
        there[name] = there.get(name, ~always) | (listed or {}).get(symbol, always)
    absent = {
        name: int(np.count_nonzero(days[:, column] & ~there.get(name, ~always)))
        for column, name in enumerate(names)
    }
    total = int(days.sum())
    return {name: count / total for name, count in absent.items() if count}


def survivorship(
    ended: Sequence[str],
    close: Array,
    member: Array,
    *,
    missing: Mapping[str, float] | None = None,
    index: Array | None = None,
    index_name: str = "index",
    sessions_a_year: int = TRADING_DAYS,
) -> Survivorship:
    """Judge whether a universe holds survivors only, and by how much that flatters it.

    close: `[S, N]` last close of each session; member: `[S, N]` bool; index: `[S]` level at each
    session's end. A universe of several names is suspect if in a quarter or longer none of them
    leaves it, or far fewer than leave an index (entries prove nothing); any universe is, if more
    than a twentieth of its member-days has no bars.

    `bias_per_year` is the yearly log growth of the names that are still members at the end, in
    equal weights, less the growth of the index, or else of the members of each day. None where
    neither is known, because bars of survivors do not show the returns of the other names.
    """
    sessions, names = close.shape
    missing = missing or {}
    share = float(sum(missing.values()))
    dropped = int(np.count_nonzero(member[:-1] & ~member[1:] & np.isfinite(close[1:])))
    exits = len(ended) + dropped
    returns = close[1:] / close[:-1] - 1.0
    alive = _growth(
        returns,
        np.broadcast_to(np.isfinite(close[-1]) & member[-1], returns.shape),
        sessions_a_year,
    )
    by_day = _growth(returns, member[1:], sessions_a_year)
    reference = None
    against = None
    if index is not None and sessions > 1:
        reference = sessions_a_year * float(np.log(index[-1] / index[0])) / (sessions - 1)
        against = index_name
    elif exits and share <= MOST_ABSENT:
        reference = by_day
        against = "the members of each day"
    from scipy.stats import poisson  # slow to load

    usual = _EXITS * names * sessions / sessions_a_year
    are_few = exits == 0 or poisson.cdf(exits, usual) < _UNLIKELY
    is_closed = sessions >= sessions_a_year // 4 and names > 1 and bool(are_few)
    return Survivorship(
        survivors_only=share > MOST_ABSENT or is_closed,
        sessions=sessions,
        ended=len(ended),
        left_the_list=dropped,
        members_without_bars=tuple(missing),
        member_days_without_bars=share,
        survivors_return_per_year=alive,
        members_return_per_year=by_day,
        bias_against=against,
        bias_per_year=None if alive is None or reference is None else alive - reference,
    )


def _growth(returns: Array, held: Array, sessions_a_year: int) -> float | None:
    """Yearly log growth of equal weights in the names `held`; returns and held: `[S - 1, N]`. None
    if no name is ever held."""
    days = (held & np.isfinite(returns)).any(axis=1)
    if not days.any():
        return None
    mean = mean_return(returns, held)[days]
    return sessions_a_year * float(np.log1p(mean).mean())
