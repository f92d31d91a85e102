import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fintrader.backtesting import simulate
from fintrader.backtesting.all_baselines import simulate_all_baselines
from fintrader.backtesting.analysis import analyse
from fintrader.backtesting.writer import tabulate
from fintrader.envs import EnvSettings
from fintrader.numerals import percent, ratio, usd
from fintrader.records import from_json
from fintrader.report.html import render_report
from fintrader.report.recipe import read_record
from fintrader.report.run_comparison import render_comparison
from fintrader.results.analysis import Variation
from fintrader.results.context import BacktestContext
from fintrader.results.formatting import describe_standing
from fintrader.results.market_description import (
    MarketSource,
    PlantedDrift,
    PlantedSignal,
    Provenance,
    Survivorship,
)
from fintrader.results.sections import BacktestView, present_curves
from fintrader.results.sections.comparison import present_comparison
from fintrader.results.sections.opening import (
    describe_costs,
    describe_survivorship,
)
from fintrader.results.strategy_metrics import NO_METRICS, StrategyMetrics
from fintrader.results.table import Table
from tests.engines.policies import idle_policy, noisy_policy
from tests.factories import make_market

MADE_UP = Provenance(
    MarketSource("synthetic"), planted_drift=PlantedDrift("signal", 1.2, 0.02, 8, bar_minutes=5)
)


@pytest.fixture(scope="module")
def market():
    return make_market(90 * 10, 9, session_bars=10, gaps=False, volume=1e6)


@pytest.fixture(scope="module")
def stored(market):
    """Ninety sessions of a noisy policy with its baselines, with more capital simulated."""
    settings = EnvSettings(cost_bps=5, benchmark="equal_weight")
    baselines = simulate_all_baselines(market, settings)
    results = baselines.join(
        {"ensemble": simulate(noisy_policy(9), market, settings, name="ensemble")}
    )
    more = [
        Variation("capital_usd", f"{usd}", usd == 1_000_000, 0.01 / usd, 1e6 / usd, -0.1)
        for usd in (10_000_000, 1_000_000)
    ]
    context = BacktestContext(trading=settings.terms(), market=MADE_UP)
    return tabulate(results, context, sensitivity=more, analysis=analyse(results, market))


@pytest.fixture(scope="module")
def page(stored):
    return render_report(stored)


def section(page, link):
    """The text of one card."""
    found = re.search(rf'<section id="{link}">(.*?)</section>', page, re.S)
    assert found, link
    return found[1]


def rows(text):
    """Cells of every row of every table, without markup."""
    lines = re.findall(r"<tr[^>]*>(.*?)</tr>", text, re.S)
    return [
        [re.sub("<[^>]+>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line)]
        for line in lines
    ]


def row(text, first):
    return next(cells for cells in rows(text) if cells[0] == first)[1:]


def test_a_made_up_market_is_the_first_thing_said(page, stored):
    notice = stored.notice
    assert notice.startswith("Synthetic market with a planted signal")
    body = page[page.index("<body>") :]
    assert re.sub("<[^>]+>", "", body).strip().startswith(notice)
    assert body.index("Survivorship") < body.index("Costs") < body.index("<nav>")
    assert Provenance(MarketSource("files")).notice == Provenance().notice == ""
    assert "no signal in them" in Provenance(MarketSource("synthetic")).notice
    for ic, words in ((0.1, "Real bars with a planted signal"), (0.0, "Real bars and noise")):
        signal = PlantedSignal("signal", ic, {}, horizon=20, persistence=0.95, seed=0)
        planted = Provenance(MarketSource("planted_in"), planted_signal=signal)
        assert planted.notice.startswith(f"{words}: the feature signal ")
    assert notice in render_comparison({"one": stored, "two": stored})


def test_survivorship_and_costs_in_words(stored):
    measured = Survivorship(
        survivors_only=False,
        sessions=250,
        ended=2,
        left_the_list=3,
        members_without_bars=(),
        member_days_without_bars=0.0,
        survivors_return_per_year=0.1,
        members_return_per_year=0.079,
        bias_against="the members of each day",
        bias_per_year=0.021,
    )
    real = Provenance(MarketSource("files"), survivorship=measured)
    words = describe_survivorship(real)
    assert words.startswith("5 symbols end or leave the universe in 250 sessions")
    assert "+2.1 % a year" in words
    suspect = replace(measured, ended=0, left_the_list=0, survivors_only=True)
    words = describe_survivorship(replace(real, survivorship=suspect))
    assert "no symbol leaves in 250 sessions" in words
    unknown = replace(suspect, bias_per_year=None)
    words = describe_survivorship(replace(real, survivorship=unknown))
    assert "the bias is unknown" in words
    assert "a verdict names the most that it may add" in words
    assert describe_survivorship(Provenance()).startswith("not known")
    own = stored.metrics["ensemble"]
    words = describe_costs(stored, "ensemble")
    assert words.startswith(
        f"{usd(own['cost_usd'])} paid, {percent(own['cost_share'])} of the capital (5 bps a trade)"
    )
    assert (
        f"before costs {percent(own['cumulative_return'] + own['cost_share'], signed=True)}"
        in words
    )
    for bps, end in {
        722.891: "; costs of 7.23 % of the traded value would leave no profit.",
        -47.88: "; it made no profit even before costs.",
    }.items():
        changed = replace(own, break_even_cost_bps=bps)
        shown = SimpleNamespace(context=stored.context, find_metrics={"ensemble": changed}.get)
        assert describe_costs(shown, "ensemble").endswith(end)


def test_rules_ahead_are_named_and_intervals_are_losses_only_as_a_whole(stored):
    returns = {"ensemble": 0.01, "ridge": 0.0, "equal_weight": 0.005, "vol_targeted": 0.2055}
    returns["momentum"] = -0.02
    metrics = {
        name: replace(NO_METRICS, cumulative_return=value) for name, value in returns.items()
    }
    words = describe_standing(metrics, replace(stored.context, portfolio="equal_weight"))
    assert words.endswith("equal weight (+0.50 %) and below vol targeted (+20.55 %).")
    assert "momentum" not in words
    cells = ("-7.11 to 11.73", "-134.79 to -34.59", "-0.10 %", "0.10 %")
    page = Table.of(("a", "b", "c", "d", "e"), [("row", *cells)]).to_html()
    assert re.findall('class="neg">([^<]*)<', page) == ["-134.79 to -34.59", "-0.10 %"]


def test_a_comparison_calls_no_run_lucky_that_is_not(stored):
    title = present_comparison({"one": stored, "two": stored}).title
    assert title.startswith("No likely skill in 2 runs among ")


def test_the_parts_of_the_active_profit_are_in_the_report(page, stored):
    text = section(page, "attribution")
    found = stored.analysis.attribution
    for name, amount in (
        ("Selection", found.selection_usd),
        ("Timing", found.timing_usd),
        ("Fill prices", found.fills_usd),
        ("Costs", found.costs_usd),
    ):
        assert row(text, name)[0] == usd(amount)
    assert row(text, "Active profit")[0] == usd(found.active_usd)
    assert row(text, "Less: equal weight on the same capital")[0] == usd(found.portfolio_pnl_usd)


def test_every_section_says_its_numbers(page, stored):
    own = stored.metrics["ensemble"]
    analysis = stored.analysis
    assert row(section(page, "round-trips"), "All")[0] == f"{own['round_trips']:,.0f}"
    held = section(page, "trading")
    closes = [stored.weights("ensemble").sum(axis=1), stored.weights("ensemble").ne(0).sum(axis=1)]
    assert row(held, "Invested")[0] == percent(closes[0].mean())
    assert row(held, "Names held")[0] == ratio(closes[1].mean(), 1)
    assert "Active share against equal weight" in held
    execution = section(page, "execution")
    assert row(execution, "All")[0] == f"{analysis.execution.total.fills:,}"
    assert [cells[0] for cells in rows(section(page, "capacity"))][-2:] == [
        "$1,000,000",
        "$10,000,000",
    ]
    assert "at most 10% of a bar&#x27;s volume" in section(page, "capacity")
    factors = section(page, "factors")
    assert row(factors, "Market")[0] == ratio(analysis.factors["ensemble"].betas[0].beta)
    assert "not those of Fama and French" in factors
    states = section(page, "regimes")
    assert (
        sum(int(row(states, f"{name} third")[0]) for name in ("Calm", "Middle", "Volatile")) == 70
    )
    worst = stored.daily_returns().sort_values("benchmark").head(10)
    assert row(states, "Mean")[-1] == percent(worst["benchmark"].mean())
    dates = [
        cells for cells in rows(section(page, "drawdowns")) if re.match(r"\d\d \w{3}", cells[0])
    ]
    assert dates[0][3] == percent(own["max_drawdown"])


def test_the_first_page_is_an_allocators_and_the_rest_is_folded(page, stored):
    """Banner, verdict, equity with drawdown, months; then closed sections only."""
    body = re.sub("<style>.*?</style>|<script.*?</script>", "", page, flags=re.S)
    marks = (
        'class="notice"',
        "<h1",
        'id="equity"',
        'id="chart-equity"',
        'id="chart-drawdown"',
        'id="periods"',
        '<details class="part"',
    )
    places = [body.index(mark) for mark in marks]
    assert places == sorted(places)
    assert "<table" not in body[: body.index('id="chart-drawdown"')]
    cards = re.findall(r'<section id="([^"]+)">(<details class="part">)?', page)
    assert [name for name, fold in cards if not fold] == ["equity", "periods"]
    folded = [name for name, fold in cards if fold]
    assert len(folded) > 12
    assert f"Show all {len(folded)} other sections" in page
    assert body.count('id="chart-', 0, places[-1]) == 2


def test_the_strategy_and_its_benchmark_stand_out(stored):
    view = BacktestView.of(stored)
    assert view.key_names == ["ensemble", "equal_weight", "benchmark"]
    for chart in present_curves(view).figures:
        strong = [trace.name for trace in chart.draw().data if trace.opacity is None]
        assert strong == ["Ensemble", "Equal weight", "Index"]


def test_what_cannot_be_said_is_not_said(market):
    short = market.window(0, 100)
    settings = EnvSettings(cost_bps=5)
    page = render_report(
        tabulate({"ensemble": simulate(noisy_policy(9), short, settings, name="ensemble")})
    )
    assert "this backtest was written without its market" in section(page, "attribution")
    assert "Not simulated" in section(page, "capacity")
    idle = render_report(
        tabulate({"ensemble": simulate(idle_policy, make_market(60, 3), settings)})
    )
    assert 'id="profit"' not in idle


def test_the_sharpe_ratio_lies_in_its_interval(stored):
    own = stored.metrics["ensemble"]
    assert own["sharpe_low"] < own["sharpe"] < own["sharpe_high"]


def test_the_record_is_read_back_as_it_was(stored, page, tmp_path):
    (tmp_path / "report.html").write_text(page)
    record = read_record(tmp_path / "report.html")
    assert {name: StrategyMetrics.of(row) for name, row in record["metrics"].items()} == (
        stored.metrics
    )
    assert from_json(Provenance, record["market"]) == MADE_UP


@pytest.mark.slow
def test_no_panel_of_the_tear_sheet_is_empty(stored):
    pytest.importorskip("pyfolio")
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from fintrader.report.tearsheet import tear_sheet

    with np.errstate(all="ignore"):
        figure = tear_sheet(stored, "ensemble")
    titles = {ax.get_title() for ax in figure.axes}
    assert {
        "Exposure",
        "Holdings",
        "Daily turnover",
        "Rolling Sharpe ratio (20 sessions)",
    } <= titles
    for ax in figure.axes:
        lines = [np.asarray(line.get_ydata(orig=False), dtype=float) for line in ax.lines]
        drawn = any(np.isfinite(values).sum() > 2 and values.size > 2 for values in lines)
        assert drawn or ax.patches or ax.collections or ax.images, ax.get_title()
    plt.close("all")
