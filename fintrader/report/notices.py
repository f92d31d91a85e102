"""What a reader must know before any number: what the market is, who is missing in it, what trading
cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fintrader.market.planted_in import KIND as IN_REAL
from fintrader.market.universe import describe
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.formatting import DASH, missing, number, percent, ratio, statistic, usd

_NO_SUCH_MARKET = "Nothing on this page was or could have been earned in any market."


def market_notice(context: Mapping[str, Any]) -> str:
    """One sentence where the market is made up, wholly or in part; empty for real bars and where
    nothing is known."""
    market = _part(context, "market")
    source = _part(market, "source")
    planted = _part(market, "planted")
    if planted.get("kind") == IN_REAL and planted.get("ic") == 0:
        return (
            f"Real bars and noise: the feature {planted.get('feature')} is made up and says nothing"
            " about them."
        )
    if planted.get("kind") == IN_REAL:
        return (
            f"Real bars with a planted signal: the feature {planted.get('feature')} is made up and"
            f" knows the future. {_NO_SUCH_MARKET}"
        )
    if source.get("kind") != "synthetic" and not planted:
        return ""
    if not planted:
        return (
            "Synthetic market: the prices are random numbers, with no signal in them."
            f" {_NO_SUCH_MARKET}"
        )
    drift = ratio(planted.get("drift_bps"), 1)
    return (
        "Synthetic market with a planted signal: the prices are random numbers, and the feature"
        f" {planted['feature']} says which way each one drifts (by {drift} bps a bar)."
        f" {_NO_SUCH_MARKET}"
    )


def survivorship_words(context: Mapping[str, Any]) -> str:
    """Whether the universe is one of survivors."""
    market = _part(context, "market")
    found = _part(market, "survivorship")
    if _part(market, "source").get("kind") == "synthetic":
        return "none: the symbols are made up, and none was chosen by how it did."
    if not found:
        return "not known: nothing is recorded of who else could have been in this universe."
    told = describe(found)
    if found.get("survivors_only"):
        return told
    gone = int(number(found.get("ended")) or 0) + int(number(found.get("left_the_list")) or 0)
    more = f" {told}." if told else ""
    if not gone:
        return (
            "too few symbols or sessions to tell: nobody leaves, and nobody may have been left"
            f" out.{more}"
        )
    bias = number(found.get("bias_per_year"))
    size = (
        ""
        if bias is None
        else f"; to know the survivors would have been worth {percent(bias, 1, signed=True)} a year"
    )
    return (
        f"{gone} symbols end or leave the universe in {found['sessions']} sessions and stay in"
        f" until then{size}.{more}"
    )


def cost_words(stored: StoredBacktest, main: str) -> str:
    """What was paid, what for, and what the result would have been without."""
    own = stored.metrics[main]
    trading = _part(stored.context, "trading")
    paid = number(own.cost_usd)
    share = number(own.cost_share)
    if paid is None or share is None:
        return "not known."
    charged = [
        ("cost_bps", "a trade"),
        ("half_spread_bps", "half-spread"),
        ("impact_bps", "impact at full volume"),
    ]
    rates = [f"{trading[key]:g} bps {what}" for key, what in charged if number(trading.get(key))]
    free = not rates and not paid
    told = (
        "none charged: every trade was free of commission, spread and impact"
        if free
        else f"{usd(paid)} paid"
    )
    told += "" if free else f", {percent(share)} of the capital"
    told += f" ({', '.join(rates)})" if rates else ""
    returned = number(own.cumulative_return)
    if returned is not None and not free:
        told += (
            f"; before costs {percent(returned + share, signed=True)}, after costs"
            f" {percent(returned, signed=True)}"
        )
    even = statistic("break_even_cost_bps", own.break_even_cost_bps)
    if not missing("turnover", own):
        told += f"; turnover {ratio(own.turnover, 1)} × equity a year"
    return told + ("." if even == DASH else f", nothing left at {even} a traded dollar.")


def _part(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}
