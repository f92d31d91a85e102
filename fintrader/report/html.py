"""`report.html`: one self-contained page, verdict first. No network, no wall clock: equal inputs,
equal bytes."""

from __future__ import annotations

import html
from pathlib import Path

import pandas as pd

from fintrader.files import write_text
from fintrader.report.allocator import allocator_sections, variation_cells
from fintrader.report.luck import luck_section
from fintrader.report.notices import cost_words, market_notice, survivorship_words
from fintrader.report.page import Page, metric, note, number, table
from fintrader.report.provenance import data_section, provenance_section
from fintrader.results import figures
from fintrader.results.analysis import Variation
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.catalogue import BY_KEY, CATALOGUE
from fintrader.results.context import TradingTerms
from fintrader.results.explanation import METHOD
from fintrader.results.formatting import (
    PAPER_COLUMNS,
    active_cells,
    active_headings,
    count,
    is_baseline,
    limits_words,
    main_strategy,
    percent,
    planted_words,
    ratio,
    short_window,
    standing,
    statistic,
    window_words,
)

_EXTRA_COLUMNS = (
    ("minute_max_drawdown", "Max drawdown, every bar"),
    ("turnover", "Turnover a year"),
    ("cost_usd", "Costs"),
)
_HEADINGS = {"max_drawdown": "Max drawdown, session closes"}
_KIND_TITLES = {"cost_bps": "Cost, bps", "fill": "Fill", "delay_bars": "Delay, bars"}
_KIND_TITLES |= {"start_sessions": "Start, sessions later"}


def summary(stored: StoredBacktest) -> str:
    """The plain numbers behind the verdict: return and Sharpe ratio beside the simplest
    baselines."""
    name = main_strategy(stored.strategies)
    own = stored.metrics[name]
    text = f"{figures.title_of(name)} returned {percent(own.cumulative_return, signed=True)}"
    text += f" over {len(stored.ends)} sessions (Sharpe {ratio(own.sharpe)})"
    for rival, title in (("equal_weight", "equal weight"), ("benchmark", "the index")):
        if rival in stored.metrics and rival != name:
            returned = percent(stored.metrics[rival].cumulative_return, signed=True)
            text += f", {title} {returned}"
    trials = stored.context.trials
    return (
        f"{text}. It was chosen from {count(trials) if trials else 'an unknown number of'} trials."
    )


def render_report(stored: StoredBacktest) -> str:
    """The page as text, its times the market's own. Pure: equal tables give equal text."""
    stored = stored.on_clock(figures.known_timezone(stored.context.timezone))
    main = main_strategy(stored.strategies)
    context = stored.context
    run = context.run or "Backtest"
    first, last = stored.minutes[[0, -1]].strftime("%d %b %Y")
    window = f", {window_words(context.window)}" if context.window else ""
    page = Page(f"{run}: {figures.title_of(main)}")
    verdict = stored.opening
    tone = "good" if verdict.is_skill else "doubt"
    about = f"{first} to {last}, {len(stored.ends)} sessions{window}{_as_traded(context.trading)}"
    told = (
        summary(stored),
        standing(stored.metrics, context),
        planted_words(context),
    )
    lead = " ".join(part for part in told if part)
    if notice := market_notice(context.market):
        page.notice(notice)
    page.header(run, verdict.headline, lead, about, tone=tone, sentences=verdict.sentences)
    told_first = {
        "Survivorship": survivorship_words(context.market),
        "Costs": cost_words(stored, main),
    }
    if limited := limits_words(context.within_limits):
        told_first["Limits"] = f"{limited}."
    page.told(told_first)
    page.contents()
    page.section(
        "Against the baselines",
        _paper_table(stored, main),
        _active_table(stored, main),
        link="Baselines",
    )
    _curves(page, stored, main)
    _folds(page, stored)
    luck_section(page, stored, main)
    _returns(page, stored, main)
    _trading(page, stored, main)
    _decisions(page, stored)
    allocator_sections(page, stored, main)
    _sensitivity(page, stored, main)
    page.section("Every number", _all_metrics(stored), link="Metrics")
    data_section(page, context)
    provenance_section(page, stored)
    return page.render()


def write_report(path: Path, stored: StoredBacktest) -> Path:
    """Write the page as one self-contained HTML file, atomically."""
    write_text(Path(path), render_report(stored))
    return Path(path)


def _as_traded(trading: TradingTerms | None) -> str:
    """Describe how orders were carried out, to follow the window's name."""
    if trading is None:
        return ""
    bars = trading.decision_interval
    every = "every bar" if bars == 1 else f"every {bars} bars"
    half = trading.half_spread_bps
    spread = f" and a half-spread of {half:g}" if half else ""
    fill = trading.fill.replace("_", " ")
    share = trading.participation
    volume = "takes any volume" if share == "none" else f"takes up to {share:.0%} of the volume"
    pays = f"pays {trading.cost_bps:g}{spread} basis points a trade"
    return f"; decides {every}, fills at the {fill}, {volume}, {pays}"


# --- sections -------------------------------------------------------------------------------------


def _paper_table(stored: StoredBacktest, main: str) -> str:
    columns = [*PAPER_COLUMNS, *_EXTRA_COLUMNS]
    notes = stored.context.strategies
    rows = []
    for name in stored.strategies:
        values = stored.metrics[name]
        said = notes.get(name, "")
        label = html.escape(figures.title_of(name))
        label += f'<span class="note">{html.escape(said)}</span>' if said else ""
        cells = [metric(key, values) for key, _ in columns]
        rows.append(("main" if name == main else "", [label, *cells]))
    year = stored.sessions_a_year
    caption = (
        f"Daily returns, {year} sessions a year, risk-free rate 0; Calmar = annual return / |max"
        " drawdown|. "
        + (
            short_window(stored.metrics.values())
            or "An annual return of less than a year is an extrapolation."
        )
    )
    return table(
        ["Strategy", *[_HEADINGS.get(key, heading) for key, heading in columns]], rows
    ) + note(caption)


def _active_table(stored: StoredBacktest, main: str) -> str:
    """What each strategy did otherwise than the benchmark portfolio."""
    if stored.portfolio is None:
        return ""
    rows = []
    for name in stored.strategies:
        *cells, band = active_cells(stored.metrics[name])
        cells = [*map(number, cells), html.escape(band)]
        rows.append(("main" if name == main else "", [html.escape(figures.title_of(name)), *cells]))
    caption = (
        f"Active: daily returns less those of {stored.portfolio.replace('_', ' ')} (env.benchmark),"
        " which pays the same costs; the index above pays none. The interval is the information"
        " ratio's, by resampling blocks of the same days of both; one that holds 0 says that"
        " chance could have done it."
    )
    missing = [f"{name}: {why}" for name, why in stored.context.left_out.items()]
    said = note(f"Left out: {'; '.join(missing)}.") if missing else ""
    return table(active_headings(stored.portfolio), rows) + note(caption) + said


def _curves(page: Page, stored: StoredBacktest, main: str) -> None:
    curves = stored.curve()
    rival = stored.portfolio
    ordered = curves[[main, *[name for name in curves.columns if name != main]]]
    page.section("", page.chart("equity", figures.equity_figure(ordered)), link="Equity")
    by_bar = ordered[
        [
            name
            for name in ordered.columns
            if name in (main, rival) and (name == main or name != "cash")
        ]
    ]
    own = stored.metrics[main]
    depths = [statistic(key, own[key]) for key in ("max_drawdown", "minute_max_drawdown")]
    text = (
        f"{figures.title_of(main)}: {depths[0]} at its deepest between session closes, {depths[1]}"
        " at every bar."
    )
    charts = [
        page.chart("drawdown", figures.drawdown_figure(ordered, session=stored.session)),
        page.chart("drawdown-bars", figures.drawdown_figure(by_bar)),
    ]
    page.section("", *charts, note(text))


def _returns(page: Page, stored: StoredBacktest, main: str) -> None:
    daily = stored.daily_returns()
    benchmark = "benchmark" if "benchmark" in daily.columns and main != "benchmark" else None
    timezone = stored.timezone
    charts = [
        page.chart("monthly", figures.monthly_figure(daily[main], timezone)),
        page.chart(
            "intraday", figures.intraday_figure(stored.curve()[main], stored.session, timezone)
        ),
        note(
            "Simple returns. Overnight: from one session's close to the close of the next one's"
            " first bar."
        ),
        page.chart(
            "distribution", figures.distribution_figure(daily, main=main, benchmark=benchmark)
        ),
    ]
    rolling = []
    year = stored.sessions_a_year
    window = figures.rolling_sessions(len(daily))
    if window is not None:
        drawn = figures.rolling_figure(
            daily, "sharpe", main=main, window=window, sessions_a_year=year
        )
        rolling.append(page.chart("rolling", drawn))
        drawn = figures.rolling_figure(
            daily, "volatility", main=main, window=window, sessions_a_year=year
        )
        rolling.append(page.chart("volatility", drawn))
        if benchmark:
            moving = daily.loc[
                :, [main, *[n for n in daily.columns if is_baseline(n) and n not in (main, "cash")]]
            ]
            rolling.append(
                page.chart("beta", figures.rolling_figure(moving, "beta", main=main, window=window))
            )
    else:
        rolling.append(
            note(
                f"Rolling ratios need {figures.FEWEST_TO_ROLL} sessions; this window has"
                f" {len(daily)}."
            )
        )
    page.section(f"Returns of {figures.title_of(main).lower()}", *charts, *rolling, link="Returns")


def _trading(page: Page, stored: StoredBacktest, main: str) -> None:
    weights = stored.weights(main)
    trades = stored.trades[stored.trades["strategy"] == main]
    if not weights.shape[1] and not len(trades):
        page.section(
            "Positions and trades", note("This strategy never held a position."), link="Trading"
        )
        return
    parts = []
    if weights.shape[1]:
        parts.append(page.chart("weights", figures.weights_figure(weights)))
    traded, equity = (stored.curve(name)[main] for name in ("turnover_usd", "equity_usd"))
    parts.append(
        page.chart("turnover", figures.turnover_figure(traded, equity, stored.session, name=main))
    )
    ranked = (
        trades.groupby("symbol")["notional_usd"].sum().sort_values(ascending=False, kind="stable")
    )
    for symbol in ranked.index[:2]:
        rows = stored.prices[stored.prices["symbol"] == symbol]
        if len(rows):
            closes = pd.Series(rows["close_usd"].to_numpy(), index=pd.DatetimeIndex(rows["minute"]))
            key = f"trades-{len(parts)}"
            parts.append(page.chart(key, figures.trades_figure(closes, trades, symbol=str(symbol))))
    page.section("Positions and trades", *parts, link="Trading")


def _decisions(page: Page, stored: StoredBacktest) -> None:
    found = stored.explanation
    if found is None:
        told = (
            "Nobody looked at them: this backtest is of an earlier version, or its policy sees"
            " observations in parts."
        )
        page.section("What moved the decisions", note(told), link="Decisions")
        return
    parts = [
        note(found.sentence()),
        page.chart("importance", figures.importance_figure(found)),
        note(METHOD),
    ]
    page.section(
        f"What moved the decisions of {figures.title_of(found.strategy).lower()}",
        *parts,
        link="Decisions",
    )


def _sensitivity(page: Page, stored: StoredBacktest, main: str) -> None:
    groups: dict[str, list[Variation]] = {}
    for row in stored.sensitivity:
        groups.setdefault(row.kind, []).append(row)
    if not groups:
        return
    parts = []
    if "cost_bps" in groups:
        parts.append(page.chart("costs", figures.cost_figure(groups["cost_bps"])))
    rows = []
    for kind, title in _KIND_TITLES.items():
        for row in groups.get(kind, []):
            label = f"{title}: {html.escape(row.setting.replace('_', ' '))}"
            rows.append(("main" if row.is_chosen else "", [label, *variation_cells(row)]))
    if rows:
        parts.append(
            table(["Choice", "Cumulative return", "Sharpe", "Max drawdown"], rows, css="dense")
        )
    if "without" in groups:
        returned = stored.metrics[main].cumulative_return
        parts.append(page.chart("without", figures.without_figure(groups["without"], returned)))
    if stored.context.folds:
        parts.append(
            note(
                "Each fold's policy over its own test window, the windows one after another as"
                " above."
            )
        )
    page.section("What if one choice had been another?", *parts, link="Sensitivity")


def _all_metrics(stored: StoredBacktest) -> str:
    parts = []
    for group in dict.fromkeys(one.group for one in CATALOGUE):
        rows = []
        for one in (one for one in CATALOGUE if one.group == group):
            cells = [metric(one.key, stored.metrics[name]) for name in stored.strategies]
            title = f'<span title="{html.escape(one.formula)} ({html.escape(one.source)})">'
            rows.append(("", [f"{title}{html.escape(one.title)}</span>", *cells]))
        head = [group.capitalize(), *[figures.title_of(name) for name in stored.strategies]]
        parts.append(table(head, rows, css="dense"))
    summary_line = (
        f"{len(BY_KEY)} metrics for each strategy (hover a name for its formula and source)"
    )
    return f"<details><summary>{summary_line}</summary>{''.join(parts)}</details>"


def _folds(page: Page, stored: StoredBacktest) -> None:
    """A walk-forward's test windows one by one."""
    if not stored.context.folds:
        return
    rows = []
    for k, fold in enumerate(stored.context.folds, start=1):
        days = f'<span class="note">{html.escape(f"{fold.first} to {fold.last}")}</span>'
        returned = [number(percent(fold.cumulative_return.get(name))) for name in stored.strategies]
        rows.append(("", [f"Fold {k}{days}", *returned]))
    head = ["Test window", *[figures.title_of(name) for name in stored.strategies]]
    text = (
        "Cumulative return of each test window; between windows the positions are sold, at costs."
    )
    page.section("Fold by fold", table(head, rows, css="dense") + note(text), link="Folds")
