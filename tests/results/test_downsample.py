import itertools

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("streamlit")

from streamlit.testing.v1 import AppTest

from fintrader.results.figures import downsample as decimation

SERIES = st.lists(st.floats(-1e12, 1e12) | st.just(float("nan")), min_size=1, max_size=400)


@given(SERIES, st.integers(8, 200))
@settings(deadline=None)
def test_extremes_ends_gaps_and_order_are_kept(values, points):
    array = np.array(values)
    kept = decimation.keep(array, points)
    assert (np.diff(kept) > 0).all()
    assert len(kept) <= max(points, 8)
    assert kept[0] == 0
    assert kept[-1] == len(array) - 1
    if not np.isnan(array).all():
        assert np.nanmin(array[kept]) == np.nanmin(array)
        assert np.nanmax(array[kept]) == np.nanmax(array)
    for one, two in itertools.pairwise(kept):  # no line is drawn over a gap
        if not np.isnan(array[one]) and not np.isnan(array[two]):
            assert not np.isnan(array[one:two]).any()


def test_figures_become_light_and_keep_extremes():
    rng = np.random.default_rng(1)
    times = np.datetime64("2020-01-02T14:30", "ns") + np.arange(200_000) * np.timedelta64(1, "m")
    lines = [np.cumsum(rng.normal(size=len(times))) for _ in range(6)]
    figure = go.Figure(
        [go.Scatter(x=times, y=line, customdata=np.arange(len(times))) for line in lines]
    )
    assert decimation.figure_bytes(figure) > decimation.MAX_CHART_BYTES
    decimation.fit(figure)
    assert decimation.figure_bytes(figure) <= decimation.MAX_CHART_BYTES
    for trace, line in zip(figure.data, lines, strict=True):
        drawn = np.asarray(trace.y)
        assert drawn.min() == line.min()
        assert drawn.max() == line.max()
        positions = np.asarray(trace.customdata).ravel()
        assert np.array_equal(drawn, line[positions])  # x, y and custom data still belong together
        assert len(trace.x) == len(drawn)


@pytest.mark.slow
def test_clouds_are_sampled_with_all_that_belongs_to_a_point():
    size = 60_000
    index = np.arange(size)
    y = np.random.default_rng(2).normal(size=size)
    symbols = np.where(index % 2, "x", "circle")
    marker = {"color": index * 2.0, "symbol": symbols, "line": {"width": index % 3}}
    cloud = go.Scatter(
        x=-index, y=y, mode="markers", marker=marker, customdata=[f"p{k}" for k in index]
    )
    figure = decimation.fit(go.Figure([cloud, go.Scatter(x=[0, 1], y=[0.0, 1.0], mode="lines")]))
    assert decimation.figure_bytes(figure) <= decimation.MAX_CHART_BYTES
    trace = figure.data[0]
    kept = -np.asarray(trace.x)
    assert figure.layout.meta["shown"] == [len(kept), size] == [len(trace.y), size]
    assert (np.asarray(trace.y) == y[kept]).all()
    assert (np.asarray(trace.marker.color) == kept * 2.0).all()
    assert (np.asarray(trace.marker.symbol) == symbols[kept]).all()
    assert (np.asarray(trace.marker.line.width) == kept % 3).all()
    assert list(trace.customdata) == [f"p{k}" for k in kept]
    assert {int(np.argmin(y)), int(np.argmax(y))} <= set(kept.tolist())


@pytest.mark.slow
def test_segments_stay_whole():
    size = 40_000
    x = [value for k in range(size) for value in (k % 7, k % 7 + 1, None)]
    y = [value for k in range(size) for value in (float(k), k + 0.5, None)]
    drawn = decimation.fit(go.Figure(go.Scatter(x=x, y=y, mode="lines"))).data[0]
    assert 100 < len(drawn.y) < 12_000
    for begin, end, gap in zip(drawn.y[::3], drawn.y[1::3], drawn.y[2::3], strict=True):
        assert end == begin + 0.5
        assert gap is None
    assert list(drawn.x[::3]) == [int(value) % 7 for value in drawn.y[::3]]


def test_a_stack_keeps_the_same_places():
    rng = np.random.default_rng(4)
    layers = [
        go.Scatter(x=np.arange(9_000), y=rng.random(9_000), mode="lines", stackgroup="w")
        for _ in range(8)
    ]
    figure = decimation.fit(go.Figure(layers))
    assert decimation.figure_bytes(figure) <= decimation.MAX_CHART_BYTES
    assert len({tuple(trace.x) for trace in figure.data}) == 1


def test_a_chart_that_stays_too_heavy_is_left_out_visibly():
    def script():
        import plotly.graph_objects as go

        from fintrader_app import charts

        charts.show(
            go.Figure(
                go.Bar(x=[f"name {k}" for k in range(30_000)], y=[0.1 * k for k in range(30_000)])
            ),
            "a",
        )
        charts.show(go.Figure(go.Bar(x=["a"], y=[1.0])), "b")

    test = AppTest.from_function(script, default_timeout=60).run()
    assert not test.exception
    assert "it is left out" in test.info[0].value
    assert len(test.get("plotly_chart")) == 1


def test_a_figure_of_a_version_is_made_once():
    def script():
        import plotly.graph_objects as go
        import streamlit as st

        from fintrader_app import charts

        def make():
            st.session_state["made"] = st.session_state.get("made", 0) + 1
            return go.Figure(go.Bar(x=["a"], y=[1.0]))

        charts.show(make, "once", version=("folder", st.session_state.get("version", 0)))

    test = AppTest.from_function(script, default_timeout=60).run().run()
    assert test.session_state["made"] == 1
    test.session_state["version"] = 1
    assert test.run().session_state["made"] == 2
