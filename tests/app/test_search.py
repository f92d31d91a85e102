"""What the score went with, drawn: which pods, on which axes, and a sentence where there is nothing
to draw."""

import numpy as np
import pytest

from fintrader.files import write_text
from fintrader.results.figures.downsample import MAX_CHART_BYTES, figure_bytes
from fintrader.results.folders import Folder
from fintrader.results.importance import importance
from fintrader_app import charts, search
from tests.app.conftest import box, healthy, said
from tests.results.test_importance import race


def pods_of(size, **more):
    pods = race(size, planted="rate", noise=0.3)
    return pods.assign(pod=[f"p{k:04d}" for k in range(size)], **more)


def test_axes_are_logarithmic_where_the_search_was_and_named_where_values_are_names():
    pods = pods_of(40)
    pods.loc[3, "score"] = np.nan
    figure = search.plot_slice(pods, "rate", log=True)
    assert figure.layout.xaxis.type == "log"
    assert len(figure.data[0].x) == 39, "a pod without a score is no point"
    assert search.plot_slice(pods, "rate", log=False).layout.xaxis.type != "log"
    names = search.plot_slice(pods, "network", log=True)
    assert (names.layout.xaxis.type, names.layout.xaxis.ticktext) == (
        None,
        ("deep", "small", "wide"),
    )
    for x, (_, network) in zip(names.data[0].x, names.data[0].customdata, strict=True):
        assert names.layout.xaxis.ticktext[round(x)] == network
    figure = search.plot_parallel(pods, ["rate", "network"], frozenset({"rate"}))
    rate, network, score = figure.data[0].dimensions
    for place, text in zip(rate.tickvals, rate.ticktext, strict=True):
        assert float(text) == pytest.approx(10**place)
    assert min(10 ** np.asarray(rate.values)) == pytest.approx(
        min(row["rate"] for row in pods["hyper"])
    )
    assert network.ticktext == ("deep", "small", "wide")
    assert sorted(score.values) == sorted(pods["score"].dropna())


def test_of_thousands_of_pods_and_many_settings_some_are_drawn_and_the_page_says_how_many():
    pods = pods_of(5_000)
    pods["hyper"] = [{f"s{k:02d}": row["rate"] * k for k in range(12)} for row in pods["hyper"]]
    names = search.list_varied(pods)
    figure = search.plot_parallel(pods, names, frozenset())
    assert "500 of 5,000 pods" in figure.layout.meta["note"]
    assert "8 of 11 settings" in figure.layout.meta["note"]
    scores = figure.data[0].dimensions[-1].values
    assert (min(scores), max(scores)) == (pods["score"].min(), pods["score"].max())
    for one in (figure, search.plot_slice(pods, "s01", log=True)):
        assert figure_bytes(charts.apply_style(one, dark=True)) <= MAX_CHART_BYTES


def test_bars_below_luck_are_grey():
    found = importance(pods_of(60))
    figure = search.plot_importance(found)
    colours = dict(zip(figure.data[0].y, figure.data[0].marker.color, strict=True))
    assert [name for name, colour in colours.items() if colour != search.GREY] == ["Rate"]
    assert "60 pods" in search.describe_importance(found)


def test_a_setting_that_only_some_have_or_that_is_constant_has_no_axis():
    pods = pods_of(4)
    pods["hyper"] = [{"a": k, "b": 1, "c": [k % 2], **({"d": k} if k else {})} for k in range(4)]
    assert search.list_varied(pods) == ["a", "c"]
    assert search.list_varied(pods[:1]) == []
    assert search.list_varied(pods[:0]) == []


def test_the_configuration_says_which_axes_are_logarithmic(tmp_path):
    folder = Folder(tmp_path.resolve())
    assert search.find_log_settings(folder) == frozenset()
    for text, expected in (
        ("tournament: {search: {a: {log: true}, b: {log: false}, c: 3}}", {"a"}),
        ("tournament: [1]", set()),
        ("tournament: {search: ", set()),
    ):
        write_text(tmp_path / "config.yaml", text)
        assert search.find_log_settings(folder) == expected


@pytest.mark.slow
def test_the_page_has_a_sentence_for_few_pods_and_charts_for_many(open_page, template, long):
    few = open_page(template, "tournament", run="demo")
    healthy(few)
    assert "Importance needs 12 scored pods" in said(few)
    many = open_page(long, "tournament", run="demo")
    healthy(many)
    assert "children left out" in said(many)
    assert box(many, "Score over").value == "learning_rate"
    assert len(many.get("plotly_chart")) == len(few.get("plotly_chart")) + 1
