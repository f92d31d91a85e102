"""Does a universe hold survivors only, and by how much does that flatter it?

Names leave an index of 100 about ten times a year. A list that nobody ever leaves was most likely drawn up afterwards,
and so were bars that lack the members which did not last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fintrader.data.bars import Array
from fintrader.data.universe import Interval, member_days

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
    returns = np.full((max(sessions - 1, 0), names), np.nan)
    returns[:] = close[1:] / close[:-1] - 1.0
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
