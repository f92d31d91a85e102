"""What a reader must know before any number: what the market is, who is missing in it, what trading
cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fintrader.market.description import Provenance
from fintrader.records import from_json
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.formatting import DASH, missing, number, percent, ratio, statistic, usd

_NO_SUCH_MARKET = "Nothing on this page was or could have been earned in any market."


def market_notice(market: Mapping[str, Any]) -> str:
    """Warn in a sentence that the market is made up, wholly or in part; empty for real bars and
    where nothing is known. `market`: as in a backtest's context."""
    provenance = read_provenance(market)
    signal = provenance.planted_signal
    drift = provenance.planted_drift
    if signal is not None and signal.ic == 0:
        return f"Real bars and noise: {signal.statement}."
    if signal is not None:
        return f"Real bars with a planted signal: {signal.statement}. {_NO_SUCH_MARKET}"
    if not provenance.is_synthetic and drift is None:
        return ""
    if drift is None:
        return (
            "Synthetic market: the prices are random numbers, with no signal in them."
            f" {_NO_SUCH_MARKET}"
        )
    return (
        "Synthetic market with a planted signal: the prices are random numbers, and the feature"
        f" {drift.feature} says which way each one drifts (by {ratio(drift.drift_bps, 1)} bps a"
        f" bar). {_NO_SUCH_MARKET}"
    )


def survivorship_words(market: Mapping[str, Any]) -> str:
    """Say whether the universe is one of survivors. `market`: as in a backtest's context."""
    provenance = read_provenance(market)
    survivorship = provenance.survivorship
    if provenance.is_synthetic:
        return "none: the symbols are made up, and none was chosen by how it did."
    if survivorship is None:
        return "not known: nothing is recorded of who else could have been in this universe."
    sentence = survivorship.describe()
    if survivorship.survivors_only:
        return sentence
    gone = survivorship.ended + survivorship.left_the_list
    more = f" {sentence}." if sentence else ""
    if not gone:
        return (
            "too few symbols or sessions to tell: nobody leaves, and nobody may have been left"
            f" out.{more}"
        )
    bias = survivorship.bias_per_year
    size = (
        ""
        if bias is None
        else f"; to know the survivors would have been worth {percent(bias, 1, signed=True)} a year"
    )
    return (
        f"{gone} symbols end or leave the universe in {survivorship.sessions} sessions and stay in"
        f" until then{size}.{more}"
    )


def cost_words(stored: StoredBacktest, main: str) -> str:
    """What was paid, what for, and what the result would have been without."""
    own = stored.metrics[main]
    trading = stored.context.trading
    paid = number(own.cost_usd)
    share = number(own.cost_share)
    if paid is None or share is None:
        return "not known."
    rates = []
    if trading is not None:
        charged = (
            (trading.cost_bps, "a trade"),
            (trading.half_spread_bps, "half-spread"),
            (trading.impact_bps, "impact at full volume"),
        )
        rates = [f"{bps:g} bps {purpose}" for bps, purpose in charged if bps]
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


def read_provenance(market: Mapping[str, Any]) -> Provenance:
    """Read the provenance in a backtest's context; an empty one where none is stored."""
    return from_json(Provenance, market) if market else Provenance()
