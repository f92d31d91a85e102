import itertools
import shutil

import numpy as np
import pytest

from fintrader.market.tensors import MarketTensors
from fintrader.results.folders import DamagedFileError, Folder
from fintrader.runs import Manifest, RunFolder
from fintrader.stages import Stage
from fintrader.system import try_lock
from fintrader_app import artifacts, markets
from fintrader_app.shell import render_stages
from tests.app.conftest import PAGES, PARTS, box, healthy, said, table_with
from tests.engines import fakes
from tests.factories import make_market
from tests.quick import mostly_slow, slow_but

NEEDS_RUN = tuple(page for page in PAGES if page not in {"runs", "new_run"})


@pytest.mark.parametrize("page", PAGES)
def test_without_runs_there_is_a_message_and_no_number(open_page, tmp_path, page):
    test = open_page(tmp_path, page)
    healthy(test)
    assert not test.metric
    assert not test.get("plotly_chart")
    assert "\\`" not in said(test)
    if page != "new_run":
        assert test.info


@pytest.mark.parametrize("page", ["runs", "tournament", "pod", "market"])
def test_a_run_at_work_says_so(open_page, site, page):
    with RunFolder.named("racing", site / "runs").lock():
        test = open_page(site, page, run="racing")
        healthy(test)
        if page != "runs":
            assert any("running" in str(badge.value) for badge in test.markdown)


@pytest.mark.parametrize("page", PAGES)
def test_every_page_of_a_finished_run_is_drawn(open_page, template, page):
    test = open_page(template, page, run="demo", times=2)
    healthy(test)
    assert not test.error
    if page in NEEDS_RUN:
        assert test.get("plotly_chart"), said(test)


def test_every_part_of_a_page_is_there(open_page, template):
    for page, key, part in [(p, k, part) for p in PARTS for k in PARTS[p] for part in PARTS[p][k]]:
        test = open_page(template, page, run="demo", **{key: part})
        healthy(test)
        assert not test.error, part
    text = said(open_page(template, "backtest", run="demo"))
    assert text.count("Net of costs, ") == 1
    assert "pays 2 basis points a trade" in text
    assert "look 2 at this window" in text
    test = open_page(template, "backtest", run="demo", part="trades")
    days = box(test, "Session").options
    test = open_page(template, "backtest", run="demo", part="trades", day=days[1])
    healthy(test)
    assert test.get("plotly_chart")


ANSWERS = {
    "tournament": "leads with a score of",
    "pod": "number 1 of",
    "market": "of the bars have a trade",
    "compare": "No likely skill in",
}
"""Page -> words of its answer; the others' is the verdict."""


@pytest.mark.parametrize(
    ("page", "part"),
    slow_but(
        *range(0, 20, 2),
        every=[
            # Ten sessions are too few for rolling figures.
            *(("backtest", part) for part in PARTS["backtest"]["part"] if part != "risk"),
            *(("market", part) for part in ("bars", "features", "coverage", "ties")),
            *((page, "") for page in ("runs", "tournament", "pod", "honesty", "compare")),
        ],
    ),
)
def test_an_answer_stands_before_the_first_chart_and_that_before_tables(
    open_page, template, page, part
):
    choice = {"view" if page == "market" else "part": part} if part else {}
    test = open_page(template, page, run="demo", runs="demo", **choice)
    elements = list(test.main)
    words = [getattr(one, "label", "") or str(getattr(one, "value", "")) for one in elements]
    answer = ANSWERS.get(page, "**Too short to tell")
    place = next(k for k, text in enumerate(words) if answer in text.replace("demo\\: ", ""))
    drawn = [
        (k, one.type)
        for k, one in enumerate(elements)
        if one.type in ("plotly_chart", "dataframe") and (page != "runs" or k > place)
    ]
    assert drawn[0][1] == "plotly_chart"
    assert place < drawn[0][0]


@pytest.mark.parametrize(
    "page", mostly_slow("tournament", every=["runs", "tournament", "pod", "honesty"])
)
def test_a_walk_forward_shows_the_tournaments_of_its_folds(open_page, site, page):
    demo = site / "runs" / "demo"
    best = {}
    for seed, fold in enumerate(("00", "01")):
        fakes.make_tournament(RunFolder(demo / "folds" / fold), pods=5 + seed, seed=seed)
        best[fold] = artifacts.load_pods(Folder((demo / "folds" / fold).resolve()))
    for path in (*demo.glob("leaderboard.sqlite*"), demo / "events.jsonl"):
        path.unlink(missing_ok=True)
    shutil.rmtree(demo / "pods")
    test = open_page(site, page, run="demo")
    healthy(test)
    assert not test.error
    assert "no leaderboard" not in said(test)
    if page == "runs":
        assert "2 folds" in said(test)
    if page in {"tournament", "pod"}:
        assert box(test, "Fold").value == "01"
        for fold in ("01", "00"):
            box(test, "Fold").set_value(fold).run()
            shown = next(
                box for box in test.selectbox if box.label.lower().endswith(("pod", "first"))
            )
            assert len(shown.options) == len(best[fold])


@pytest.mark.parametrize("page", ["tournament", "pod", "backtest", "honesty", "compare"])
@pytest.mark.parametrize("name", mostly_slow("racing", every=["started", "racing", "raced"]))
def test_a_run_that_was_killed_half_way_has_every_page(open_page, site, page, name):
    with (site / "runs" / name / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "laun')
    if (site / "runs" / name / "pods").exists():
        with (site / "runs" / name / "pods" / "p0000" / "metrics.jsonl").open("ab") as file:
            file.write(b'{"update": 99, "polic')
    test = open_page(site, page, run=name)
    healthy(test)
    if page in {"backtest", "honesty"}:
        assert "no backtest yet" in said(test)
        assert not test.metric


ARTIFACTS = (
    "manifest.json",
    "config.yaml",
    "leaderboard.sqlite",
    "events.jsonl",
    "backtest/metrics.json",
    "backtest/equity.parquet",
    "backtest/positions.parquet",
    "backtest/trades.parquet",
    "backtest/context.json",
    "backtest/verdict.json",
    "backtest/sensitivity.json",
    "lookahead.json",
    "pods/p0001/metrics.jsonl",
)
DAMAGE = {
    "empty": lambda path: path.write_bytes(b""),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 8),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "other": lambda path: path.write_bytes(
        b'{"format": "something else", "strategies": [1, 2, {"a": null}]}'
    ),
}


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize(
    "damage",
    ["mixed", *(pytest.param(name, marks=pytest.mark.slow) for name in (*DAMAGE, "manifest"))],
)
def test_pages_of_a_run_with_everything_damaged(open_page, site, page, damage):
    for artifact, kind in zip(ARTIFACTS, itertools.cycle(DAMAGE)):
        if (
            damage == "manifest" or artifact != "manifest.json"
        ):  # without it there is nothing to show of the rest
            DAMAGE.get(damage, DAMAGE[kind])(site / "runs" / "demo" / artifact)
    for part in ("curves", "trades") if page == "backtest" else ("",):
        test = open_page(site, page, run="demo", pod="p0001", part=part)
        healthy(test)


def test_a_backtest_offers_its_tear_sheet_or_says_how_to_get_one(open_page, site):
    home = site / "runs" / "demo" / "backtest"
    (home / "report.html").write_text("a page")
    absence = "There is no tear sheet: pyfolio needs 22 sessions, and there are 10"
    for name, labels in {"": [], "tear_sheet.pdf": ["Download tear_sheet.pdf"]}.items():
        if name:
            (home / name).write_bytes(b"%PDF")
        test = open_page(site, "backtest", run="demo")
        healthy(test)
        shown = [one.label for one in test.get("download_button")]
        assert shown == ["Download report.html", *labels]
        assert (absence in said(test)) == (name == "")


def test_a_damaged_file_is_named_and_shows_no_number(open_page, site):
    (site / "runs" / "demo" / "backtest" / "equity.parquet").write_bytes(b"PAR1 no")
    test = open_page(site, "backtest", run="demo")
    assert "equity" in said(test)
    assert "damaged" in said(test).lower()
    assert not test.metric


def test_the_market_of_another_run_is_refused(open_page, site):
    market = site / "data" / "tensors" / "market-0.safetensors"
    fakes.save_market(site / "other", bars=600, seed=5)
    shutil.copyfile(site / "other" / "market-5.safetensors", market)
    test = open_page(site, "market", run="demo")
    assert "no longer the one" in said(test)
    assert not test.metric


def test_fills_past_midnight_are_of_the_session_that_began_before(open_page, tmp_path):
    path = fakes.save_market(tmp_path / "data" / "tensors", timezone="UTC", hours=9.25)
    fakes.make_run(tmp_path / "runs", market=path)
    found = markets.find(str(path), None, [path.parent])
    test = open_page(tmp_path, "backtest", run="demo", part="trades")
    day = box(test, "Session").options[-1]
    test = box(test, "Session").set_value(day).run()
    healthy(test)
    filled = table_with(test, "fill_time")["fill_time"].dt.tz_localize("UTC")
    assert filled.between(*found.times[found.rows(day)][[0, -1]]).all()


def test_a_candle_spans_the_highs_and_lows_of_its_bars(site):
    path = site / "data" / "tensors" / "market-0.safetensors"
    stored = MarketTensors.load(path)
    symbol = stored.symbols[0]
    rows = slice(0, int((stored.session == stored.session[0]).sum()))
    shown = markets.find(str(path), None, [path.parent]).candles(symbol, rows, 5)
    bars = stored[symbol].iloc[rows]
    bars = bars[bars["tradable"]]
    number = np.arange(len(bars)) // 5
    assert shown["high"].tolist() == bars["high"].groupby(number).max().tolist()
    assert shown["low"].tolist() == bars["low"].groupby(number).min().tolist()
    assert (shown["high"] > shown[["open", "close"]].max(axis=1)).any()


def test_daily_closes_are_adjusted_for_splits_and_dividends(tmp_path):
    stored = make_market(120, 4, gaps=False, events=True, session_bars=20)
    assert len(stored.events.bar)
    path = tmp_path / "market.safetensors"
    stored.save(path)
    found = markets.find(str(path), None, [tmp_path]).daily_closes()
    expected = stored.adjusted_close.numpy()[stored.session_ends]
    assert not np.allclose(expected, stored.close.numpy()[stored.session_ends])
    assert found == pytest.approx(expected, rel=1e-12)


def test_a_damaged_market_is_named(open_page, site):
    market = site / "data" / "tensors" / "market-0.safetensors"
    DAMAGE["half"](market)
    with pytest.raises(DamagedFileError):
        markets.find(str(market), None, [market.parent])
    for page, query in (("market", {}), ("backtest", {"part": "trades"})):
        test = open_page(site, page, run="demo", **query)
        healthy(test)
        assert "market file" in said(test)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["runs", "backtest", "compare"])
def test_hundreds_of_runs_are_listed(open_page, crowd, page):
    test = open_page(crowd, page, run="run-0500")
    healthy(test)
    assert not test.error
    if page == "runs":
        assert len(test.dataframe[0].value) == 300


@pytest.mark.parametrize(
    "page",
    mostly_slow(
        "tournament", every=["runs", "tournament", "pod", "backtest", "honesty", "compare"]
    ),
)
def test_a_hundred_thousand_rows_stay_under_the_chart_limit(open_page, long, page):
    query = {"runs": "demo"} if page == "compare" else {"run": "demo", "pod": "p0001"}
    test = open_page(long, page, **query)
    healthy(test)
    assert not test.error
    assert "it is left out" not in said(test)
    if page in NEEDS_RUN:
        assert test.get("plotly_chart")
    for chart in test.get("plotly_chart"):
        assert len(chart.proto.spec.encode()) <= 300_000
    if page == "tournament":
        assert "of 2,000 pods shown" in said(test)
        assert "The last 1,000 of 2,00" in said(test)
    if page == "honesty":
        assert "Grouped in 60 bins" in said(test)


def test_locked_without_manifest_counts_as_running(open_page, tmp_path):
    folder = RunFolder.named("fresh", tmp_path / "runs")
    with folder.lock():
        test = open_page(tmp_path, "runs")
        assert "running" in test.dataframe[0].value["status"][0]
    assert "broken" in open_page(tmp_path, "runs").dataframe[0].value["status"][0]
    with (folder.root / ".lock").open("a") as file:
        assert try_lock(file)
        assert "running" in open_page(tmp_path, "runs").dataframe[0].value["status"][0]


def test_the_stage_strip_says_what_is_at_work_and_escapes_what_files_say():
    found = [
        Stage("data", "done", 2.0),
        Stage("<b>x", "running", 1.0, "<script>", 1, 4, "pods", 9.0),
    ]
    drawn = render_stages(found, alive=True)
    assert "<script>" not in drawn
    assert "&lt;script&gt;" in drawn
    assert 'class="running"' in drawn
    assert "25%, 9.0 s left" in drawn
    assert "not started" in render_stages([Stage("report", "waiting")], alive=False)


def test_a_run_that_failed_says_why_on_its_pages(open_page, site):
    manifest = Manifest.load(site / "runs" / "racing" / "manifest.json")
    manifest.update(
        failure={
            "stage": "tournament",
            "sentence": "no capacity: name another device",
            "time": "now",
        }
    )
    for page in ("runs", "tournament"):
        test = open_page(site, page, run="racing")
        healthy(test)
        assert any("no capacity" in str(error.value) for error in test.error), said(test)


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    """A finished run and one without a backtest, of a synthetic market."""
    root = tmp_path_factory.mktemp("made-up")
    market = fakes.save_market(root / "data" / "tensors", kind="synthetic")
    for name, stage in (("demo", "finished"), ("raced", "raced")):
        fakes.make_run(root / "runs", name, market=market, stage=stage)
    return root


@pytest.mark.parametrize(
    "page",
    mostly_slow(
        "backtest", "tournament", "compare", every=[page for page in PAGES if page != "new_run"]
    ),
)
def test_every_page_of_a_made_up_market_says_so_once(open_page, made_up, template, page):
    banner = "Synthetic market: the prices are random numbers, with no signal in them unless data.source.signals names one."
    names = ["demo"] + ["raced"] * (page in {"tournament", "pod", "market"})
    for name in names:
        chosen = {"run": name, "runs": name} if page == "compare" else {"run": name}
        shown = said(open_page(made_up, page, **chosen)).replace("\\", "")
        assert shown.count(banner) == 1, (page, name)
    assert "Synthetic" not in said(open_page(template, page, run="demo", runs="demo"))
    if page == "runs":
        assert (open_page(made_up, page).dataframe[0].value["market"] == "Synthetic market").all()


@pytest.mark.parametrize("page", ["runs", "tournament", "pod"])
def test_scores_name_their_metric(open_page, site, page):
    path = site / "runs" / "demo" / "config.yaml"
    for metric, words in (
        ("sharpe", "Score: annualised Sharpe ratio, in validation."),
        ("information_ratio", "Score: annualised information ratio against the benchmark "),
    ):
        path.write_text(f"name: demo\nseed: 0\ntournament: {{metric: {metric}}}\n")
        assert words in said(open_page(site, page, run="demo")).replace("\\", "")


@pytest.mark.parametrize("page", slow_but(*range(0, 10, 2), every=NEEDS_RUN))
def test_pages_of_a_classic_run_show_returns_or_say_that_it_has_no_market(
    open_page, classic_site, page
):
    test = open_page(classic_site, page, run="tiny", times=2)
    healthy(test)
    assert not test.error, said(test)
    board = [table.value for table in test.dataframe if "error" in table.value]
    if page == "tournament":
        assert board[0]["error"].notna().all()
    if page in ("backtest", "honesty"):
        assert "no market" in said(test)
    for word in ("Sharpe", "USD", "benchmark portfolio"):
        assert word not in said(test)


def test_the_list_of_runs_shows_test_episodes(open_page, classic_site):
    test = open_page(classic_site, "runs", run="tiny", times=2)
    healthy(test)
    assert not test.error, said(test)
    text = said(test)
    assert "mean return" in text
    assert "test episodes" in text
    assert not test.metric


@pytest.mark.parametrize(
    "page", mostly_slow("runs", "tournament", every=["runs", "tournament", "backtest", "market"])
)
def test_pages_open_on_the_newest_finished_run_above_failed_starts(open_page, site, page):
    for path in (site / "runs").iterdir():
        if path.name not in ("demo", "racing"):
            shutil.rmtree(path)
    failed = Manifest.load(site / "runs" / "racing" / "manifest.json")
    failed.path = RunFolder.named("zz-late", site / "runs").manifest
    failed.path.parent.mkdir()
    failure = {"stage": "data", "sentence": "no bars"}
    failed.update(name="zz-late", created="2030-01-01T00:00:00+00:00", failure=failure)
    test = open_page(site, page)
    healthy(test)
    assert test.query_params["run"] in ("demo", ["demo"])
    if page == "tournament":
        test = open_page(site, page, run="zz-late")
        assert "no tournament has begun" in said(test)
        assert "appears when" not in said(test)


def test_candles_are_of_one_bar_unless_bars_are_minutes(open_page, template, monkeypatch):
    def offer():
        test = open_page(template, "market", run="demo", view="bars")
        healthy(test)
        groups = [one for one in test.get("button_group") if one.label == "Bars per candle"]
        return [(group.options, group.value) for group in groups]

    assert offer() == [(["1", "5", "15"], 5)]
    whole = markets.Market.rows
    monkeypatch.setattr(
        markets.Market,
        "rows",
        lambda self, day: slice((rows := whole(self, day)).start, rows.start + 1),
    )
    assert not offer()
