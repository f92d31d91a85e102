"""Thinning keeps every extreme exactly, draws only stored points, and keeps charts light."""

from __future__ import annotations

import itertools

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app import decimation

SERIES = st.lists(st.floats(-1e12, 1e12) | st.just(float("nan")), min_size=1, max_size=400)


@given(SERIES, st.integers(8, 200))
@settings(max_examples=300, deadline=None)
def test_keeps_extremes_ends_and_order(values: list[float], points: int) -> None:
    array = np.array(values)
    kept = decimation.keep(array, points)
    assert (np.diff(kept) > 0).all()
    assert len(kept) <= max(points, 8)
    assert kept[0] == 0
    assert kept[-1] == len(array) - 1
    if not np.isnan(array).all():
        assert np.nanmin(array[kept]) == np.nanmin(array)
        assert np.nanmax(array[kept]) == np.nanmax(array)


@pytest.mark.parametrize("points", [8, 33, 100])
def test_every_bucket_keeps_its_own_extremes(points: int) -> None:
    values = np.random.default_rng(0).normal(size=1000)
    kept = set(decimation.keep(values, points).tolist())
    edges = np.linspace(0, len(values), points // 4 + 1).astype(int)
    for begin, end in itertools.pairwise(edges):  # the slow, obvious way
        assert begin + int(np.argmin(values[begin:end])) in kept
        assert begin + int(np.argmax(values[begin:end])) in kept


def test_short_series_stay_whole() -> None:
    assert decimation.keep(np.arange(50.0), 100).tolist() == list(range(50))


@pytest.mark.parametrize("traces", [1, 6, 12])
def test_figures_become_light_and_keep_extremes(traces: int) -> None:
    rng = np.random.default_rng(1)
    times = np.datetime64("2020-01-02T14:30", "ns") + np.arange(200_000) * np.timedelta64(1, "m")
    lines = [np.cumsum(rng.normal(size=len(times))) for _ in range(traces)]
    figure = go.Figure([go.Scatter(x=times, y=line, customdata=np.arange(len(times))) for line in lines])
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


def test_light_figures_are_left_alone() -> None:
    figure = go.Figure(go.Scatter(x=[1, 2, 3], y=[3.0, 1.0, 2.0]))
    assert list(decimation.fit(figure).data[0].y) == [3.0, 1.0, 2.0]


def test_stamps_are_as_short_as_they_can_be() -> None:
    days = np.array(["2020-01-02", "2020-01-03"], dtype="datetime64[ns]")
    assert decimation.stamps(days).tolist() == ["2020-01-02", "2020-01-03"]
    assert decimation.stamps(days + np.timedelta64(90, "m")).tolist() == ["2020-01-02T01:30", "2020-01-03T01:30"]
    assert decimation.stamps(days + np.timedelta64(1, "s"))[0] == "2020-01-02T00:00:01"
