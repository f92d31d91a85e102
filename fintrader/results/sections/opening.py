"""The first section of every page about a backtest: the verdict, and facts that a reader needs
before any number."""

from __future__ import annotations

from fintrader.numerals import count, format_count, percent, period_name, ratio, usd
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.formatting import (
    describe_limits,
    describe_planted,
    describe_standing,
    window_words,
)
from fintrader.results.market_description import Provenance
from fintrader.results.sections.section import BacktestView, Section
from fintrader.results.table import list_facts


def present_verdict(view: BacktestView) -> Section:
    """Present the verdict, the plain numbers behind it, and how the backtest was made."""
    stored = view.stored
    opening = stored.opening
    plain = (
        summarise(view),
        "" if view.is_foreign else describe_standing(stored.metrics, stored.context),
        describe_planted(stored.context),
    )
    facts = {
        "Survivorship": describe_survivorship(stored.context.market),
        "Costs": describe_costs(stored, view.main),
        "Limits": describe_limits(stored.context.within_limits),
        "Returns" if view.is_foreign else "Simulated": describe_simulation(stored),
    }
    return Section(
        key="verdict",
        title=opening.headline,
        headline=" ".join(filter(None, plain)),
        tables=[list_facts(opening.sentences), list_facts(facts)],
        warning=stored.notice,
        tone="alarm" if stored.changed else "good" if opening.is_skill else "doubt",
    )


def summarise(view: BacktestView) -> str:
    """State return and Sharpe ratio, those of the simplest baselines, and the number of trials."""
    stored = view.stored
    own = stored.find_metrics(view.main)
    text = f"{view.title} returned {percent(own.cumulative_return, signed=True)}"
    sessions = format_count(len(stored.ends), period_name(stored.sessions_a_year))
    text += f" over {sessions} (Sharpe {ratio(own.sharpe)})"
    index = "the index"
    if stored.verdict is not None and view.is_foreign:
        index = stored.verdict.evidence.against
    for rival, title in (("equal_weight", "equal weight"), ("benchmark", index)):
        if rival in stored.metrics and rival != view.main:
            returned = percent(stored.metrics[rival].cumulative_return, signed=True)
            text += f", {title} {returned}"
    if view.is_foreign:
        return f"{text}."
    trials = stored.context.trials
    chosen = format_count(trials, "trial") if trials else "an unknown number of trials"
    return f"{text}. It was chosen from {chosen}."


def describe_simulation(stored: StoredBacktest) -> str:
    """State the window, the bars, and how orders were carried out."""
    context = stored.context
    days = stored.on_clock(stored.market_timezone).minutes  # whatever the page's time zone
    counted = f"{count(len(days))} bars in " if len(days) > len(stored.ends) + 1 else ""
    parts = [
        window_words(context.window) if context.window and context.trading else "",
        f"{days[0]:%d %b %Y} to {days[-1]:%d %b %Y}",
        f"{counted}{format_count(len(stored.ends), period_name(stored.sessions_a_year))}",
        f"look {context.look} at this window" if context.look else "",
    ]
    text = ", ".join(filter(None, parts))
    trading = context.trading
    if trading is None:
        return f"{text}."
    bars = trading.decision_interval
    every = "every bar" if bars == 1 else f"every {bars} bars"
    half = trading.describe_half_spread()
    spread = f" and a half-spread of {half}" if half else ""
    fill = f"fills at the {trading.fill.replace('_', ' ')}"
    if trading.fill == "limit":
        fill = "its limit orders fill in bars that trade through their price"
    if trading.execution:
        fill = f"its orders are worked by {trading.execution}"
    share = trading.participation
    volume = "takes any volume" if share == "none" else f"takes up to {share:.0%} of the volume"
    pays = f"pays {trading.cost_bps:g}{spread} basis points a trade"
    return f"{text}; decides {every}, {fill}, {volume}, {pays}."


def describe_survivorship(market: Provenance) -> str:
    """State whether the universe is one of survivors."""
    survivorship = market.survivorship
    if market.is_synthetic:
        return "none: the symbols are made up, and none was chosen by its returns."
    if survivorship is None:
        return "not known: no record says which other symbols could have been in this universe."
    details = survivorship.describe()
    if survivorship.survivors_only:
        return details
    more = f" {details}." if details else ""
    gone = survivorship.ended + survivorship.left_the_list
    if not gone:
        return (
            "too few symbols or sessions to tell: no symbol leaves, and none may have been left"
            f" out.{more}"
        )
    bias = survivorship.bias_per_year
    size = (
        ""
        if bias is None
        else f"; knowing the survivors would have been worth {percent(bias, 1, signed=True)} a year"
    )
    return (
        f"{gone} symbols end or leave the universe in {survivorship.sessions} sessions and are"
        f" included until then{size}.{more}"
    )


def describe_costs(stored: StoredBacktest, main: str) -> str:
    """State the costs paid, their rates, and the result without them."""
    own = stored.find_metrics(main)
    trading = stored.context.trading
    if own.cost_usd is None or own.cost_share is None or own.trades is None:
        return "unknown; returns as given."
    linear = 0.0 if trading is None else trading.impact_bps_per_million_usd
    parts = (
        []
        if trading is None
        else [
            (f"{trading.cost_bps:g}" if trading.cost_bps else "", "a trade"),
            (trading.describe_half_spread(), "half-spread"),
            (f"{trading.impact_bps:g}" if trading.impact_bps else "", "impact at full volume"),
            (f"{linear:g}" if linear else "", "impact per million USD of an order"),
        ]
    )
    rates = [f"{rate} bps {kind}" for rate, kind in parts if rate]
    charged = f" ({', '.join(rates)})" if rates else ""
    if not rates and not own.cost_usd:
        text = "none charged: every trade was free of commission, spread and impact"
    else:
        text = f"{usd(own.cost_usd)} paid, {percent(own.cost_share)} of the capital{charged}"
        returned = own.cumulative_return
        if returned is not None:
            before = percent(returned + own.cost_share, signed=True)
            text += f"; before costs {before}, after costs {percent(returned, signed=True)}"
    if own.turnover is not None:
        text += f"; turnover {ratio(own.turnover, 1)} × equity a year"
    even = own.break_even_cost_bps
    if even is None:
        return f"{text}."
    if even <= 0:
        return f"{text}; it made no profit even before costs."
    return f"{text}; costs of {percent(even / 1e4)} of the traded value would leave no profit."
