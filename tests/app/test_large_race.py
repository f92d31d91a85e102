from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from fintrader.results.figures.downsample import MAX_CHART_BYTES, figure_bytes
from fintrader.results.folders import Folder
from fintrader.runs import RunFolder
from fintrader_app import artifacts, charts, race
from tests.engines import fakes
from tests.results.test_figures import numbers


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> pd.DataFrame:
    """A race of 2,000 pods as the app reads it."""
    folder = RunFolder(tmp_path_factory.mktemp("race"))
    fakes.long_race(folder, pods=2_000)
    return artifacts.pods(Folder(folder.root.resolve()))


def dressed(figure: go.Figure) -> list[Any]:
    """Its traces as the browser has them."""
    found = charts.dressed(figure, dark=False)
    assert figure_bytes(found) <= MAX_CHART_BYTES
    return list(found.to_plotly_json()["data"])


def points(trace: dict[str, Any]) -> list[tuple[Any, ...]]:
    """x, y, colour and hover text of each drawn point of a trace."""
    colour = trace["marker"]["color"]
    colours = [colour] * len(trace["customdata"]) if isinstance(colour, str) else numbers(colour)
    return list(zip(numbers(trace["x"]), numbers(trace["y"]), colours, trace["customdata"], strict=True))


def test_every_point_of_a_setting_and_of_a_score_is_a_pod(pods: pd.DataFrame) -> None:
    values = race.hyper_table(pods)["learning_rate"]
    by_pod = pods.assign(value=values).set_index("pod")
    drawn = points(dressed(race.drift_figure(pods, values, "learning_rate"))[0])
    assert len(drawn) == by_pod["score"].notna().sum()
    for x, y, colour, pod in drawn:
        assert (x, y, colour) == tuple(by_pod.loc[pod, ["idx", "value", "score"]])
    best, *clouds = dressed(race.score_figure(pods))
    minutes = (by_pod["finished"] - by_pod["started"].min()) / 60
    for x, y, _, pod in (point for cloud in clouds for point in points(cloud)):
        assert (x, y) == (pytest.approx(minutes[pod]), by_pod.loc[pod, "score"])
    assert numbers(best["y"])[-1] == pods["score"].max()
    assert (np.diff(numbers(best["y"]))[:-1] > 0).all()


def test_points_of_the_lineage_are_pods_and_edges_are_pairs(pods: pd.DataFrame) -> None:
    figure = race.lineage_figure(pods)
    edges, *clouds = dressed(figure)
    by_pod = pods.set_index("pod")
    place: dict[tuple[float, float], str] = {}
    for x, y, colour, told in (point for cloud in clouds for point in points(cloud)):
        pod = told.split(" ")[0]
        row = by_pod.loc[pod]
        place[x, y] = pod
        assert x == row["generation"]
        said = re.search(r"score ([-\d.]+)", told)
        if np.isnan(row["score"]):
            assert (said, colour) == (None, race.GREY)
        else:
            assert (said[1], colour) == (f"{row['score']:.3f}", row["score"])
        assert (f"child of {row['parent']}" in told) == isinstance(row["parent"], str)
    drawn = set(place.values())
    assert len(drawn) == sum(len(cloud["customdata"]) for cloud in clouds) <= race.MOST_PODS
    x, y = numbers(edges["x"]), numbers(edges["y"])
    ends = zip(x[::3], y[::3], x[1::3], y[1::3], strict=True)
    pairs = {place[end[2:]]: place[end[:2]] for end in ends}
    assert pairs == {pod: parent for pod in drawn if isinstance(parent := by_pod.loc[pod, "parent"], str)}
    assert figure.layout.meta["note"].startswith(f"{len(drawn):,} of 2,000 pods")
    assert pods.loc[pods["score"].idxmax(), "pod"] in drawn


def test_lost_attempts_are_drawn_with_their_reason_and_without_secrets(pods: pd.DataFrame) -> None:
    few = pods.head(8)
    start = float(few["started"].min())
    lost = {"event": "lost", "attempt": 1}
    log = [
        {"event": "launched", "pod": "p0001", "time": start},
        {**lost, "pod": "p0001", "reason": "oom", "time": start + 4, "host": "node-7", "detail": "s3://key:s3cr3t@b/x"},
        {**lost, "pod": "p0002", "reason": "died", "time": start + 9.0},
    ]
    found, total = race.attempts(few, {}, race.lost_attempts(log))
    assert total == 8 + 2
    figure = race.timeline_figure(found, total)
    bars = next(trace for trace in figure.data if trace.name == "Lost")
    assert (list(bars.x), list(bars.base)) == ([4.0, 0.0], [0.0, 9.0])
    first, second = bars.customdata
    assert first.startswith("p0001 · lost (oom)<br>attempt 1<br>host node-7")
    assert "s3cr3t" not in first
    assert second.startswith("p0002 · lost (died)")
