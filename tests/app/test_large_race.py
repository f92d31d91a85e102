"""Races of thousands of pods: every drawn point is one pod, every edge a true pair, every chart light enough."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from fintrader.results.figures.downsample import MAX_CHART_BYTES, figure_bytes
from fintrader_app import charts, lineage, race, timeline

SIZES = (40, 1_500, 10_000)


def large(count: int, seed: int = 0) -> pd.DataFrame:
    """A race of distinct scores in which every 11th pod failed and the last three wait."""
    rng = np.random.default_rng(seed)
    parents = [None if k < 20 or k % 4 == 0 else f"p{rng.integers(max(0, k - 300), k):05d}" for k in range(count)]
    depth: dict[str, int] = {}
    for k, parent in enumerate(parents):
        depth[f"p{k:05d}"] = depth[parent] + 1 if parent else 0
    state = np.where(np.arange(count) % 11 == 5, "failed", "done").astype(object)
    state[-3:] = "waiting"
    ended = state != "waiting"
    begin = 1e9 + 7.0 * (np.arange(count) // 4)
    return pd.DataFrame(
        {
            "pod": list(depth),
            "idx": np.arange(count),
            "origin": ["exploit" if parent else "fresh" for parent in parents],
            "parent": parents,
            "generation": list(depth.values()),
            "state": state,
            "reason": np.where(state == "failed", "nan", ""),
            "device": "cpu",
            "score": np.where(state == "done", rng.permutation(count) / 7.0, np.nan),
            "started": np.where(ended, begin, np.nan),
            "finished": np.where(ended, begin + 6.0, np.nan),
            "env_steps": 1000.0,
            "hyper": [{"learning_rate": float(rate)} for rate in 10 ** rng.uniform(-5, -3, count)],
        }
    )


def points(trace: Any) -> list[tuple[Any, ...]]:
    """x, y, colour, symbol and hover text of each drawn point of a trace."""
    size = len(trace.y)

    def each(value: Any) -> list[Any]:
        if value is None or isinstance(value, str):
            return [value] * size
        assert len(value) == size
        return list(value)

    marker = trace.marker
    columns = (trace.x, trace.y, marker.color, marker.symbol, trace.customdata)
    return list(zip(*map(each, columns), strict=True))


def plain(value: Any) -> Any:
    """A figure as the browser has it, with arrays that travelled as base64 decoded."""
    if isinstance(value, dict) and "bdata" in value:
        return np.frombuffer(base64.b64decode(value["bdata"]), dtype=np.dtype(value["dtype"])).tolist()
    if isinstance(value, dict):
        return {name: plain(below) for name, below in value.items()}
    return [plain(below) for below in value] if isinstance(value, list) else value


def dressed(figure: go.Figure) -> go.Figure:
    found = charts.dressed(figure, dark=False)
    assert figure_bytes(found) <= MAX_CHART_BYTES
    return go.Figure(plain(json.loads(found.to_json())), skip_invalid=True)


@pytest.mark.parametrize("count", SIZES)
def test_drift_points_are_pods(count: int) -> None:
    pods = large(count)
    values = race.hyper_table(pods)["learning_rate"]
    figure = dressed(race.drift_figure(pods, values, "learning_rate"))
    true = {
        pod: (idx, value, score)
        for pod, idx, value, score in zip(pods["pod"], pods["idx"], values, pods["score"], strict=True)
    }
    drawn = points(figure.data[0])
    assert all((x, y, colour) == true[told] for x, y, colour, _, told in drawn)
    shown, total = (figure.layout.meta or {}).get("shown", (len(drawn), len(drawn)))
    assert shown == len(drawn)
    assert total == pods["score"].notna().sum()
    assert {pods["idx"].iloc[0], pods.loc[pods["score"].notna(), "idx"].iloc[-1]} <= {point[0] for point in drawn}


@pytest.mark.parametrize("count", SIZES)
def test_scores_are_pods(count: int) -> None:
    pods = large(count)
    figure = dressed(race.score_figure(pods))
    ends = dict(zip(pods["pod"], (pods["finished"] - pods["started"].min()).tolist(), strict=True))
    scores = dict(zip(pods["pod"], pods["score"], strict=True))
    unit = next(size for size in (3600.0, 60.0, 1.0) if max(ends.values()) > 3 * size)
    for trace in figure.data[1:]:
        for x, y, _, _, told in points(trace):
            assert (round(x * unit, 6), y) == (round(ends[told], 6), scores[told])
    best = figure.data[0]
    assert best.y[-1] == pods["score"].max()
    assert (np.diff(best.y)[:-1] > 0).all()


@pytest.mark.parametrize("count", SIZES)
def test_lineage_points_are_pods_and_edges_are_pairs(count: int) -> None:
    pods = large(count)
    figure = dressed(lineage.lineage_figure(pods))
    by_pod = pods.set_index("pod")
    edges, *clouds = figure.data
    place: dict[tuple[float, float], str] = {}
    for cloud in clouds:
        for x, y, colour, symbol, told in points(cloud):
            pod = told.split(" ")[0]
            row = by_pod.loc[pod]
            place[x, y] = pod
            assert x == row["generation"]
            said = re.search(r"score ([-\d.]+)", told)
            if np.isnan(row["score"]):
                assert (said, colour) == (None, lineage.GREY)
                assert symbol == ("x" if row["state"] == "failed" else "circle-open")
            else:
                assert colour == row["score"]
                assert said is not None
                assert said[1] == f"{row['score']:.3f}"
            assert (f"child of {row['parent']}" in told) == isinstance(row["parent"], str)
    drawn = set(place.values())
    assert len(drawn) == sum(len(cloud.y) for cloud in clouds)
    pairs = set()
    for k in range(0, len(edges.x), 3):
        assert edges.x[k + 2] is None
        parent, child = place[edges.x[k], edges.y[k]], place[edges.x[k + 1], edges.y[k + 1]]
        assert by_pod.loc[child, "parent"] == parent
        pairs.add(child)
    assert pairs == {pod for pod in drawn if by_pod.loc[pod, "parent"] in drawn}
    assert all(by_pod.loc[pod, "parent"] in drawn for pod in drawn if isinstance(by_pod.loc[pod, "parent"], str))
    if count > lineage.MOST_PODS:
        assert figure.layout.meta["note"].startswith(f"{len(drawn):,} of {count:,} pods")
        assert pods.loc[pods["score"].idxmax(), "pod"] in drawn
    else:
        assert drawn == set(pods["pod"])


def test_lost_attempts_are_drawn_with_their_reason() -> None:
    pods = large(8)
    start = float(pods["started"].min())
    log = [
        {"event": "launched", "pod": "p00001", "time": start},
        {"event": "lost", "pod": "p00001", "attempt": 1, "reason": "oom", "time": start + 4.0, "host": "node-7",
         "detail": "killed at s3://key:s3cr3t@bucket/x"},
        {"event": "lost", "pod": "p00002", "attempt": 1, "reason": "died", "time": start + 9.0},
    ]  # fmt: skip
    found, total = timeline.attempts(pods, {}, timeline.lost_attempts(log))
    assert total == 5 + 2
    figure = timeline.timeline_figure(found, total)
    lost = next(trace for trace in figure.data if trace.name == "Lost")
    assert lost.marker.color == charts.LOSS
    assert list(lost.x) == [4.0, 0.0]
    assert list(lost.base) == [0.0, 9.0]
    first, second = lost.customdata
    assert first.startswith("p00001 · lost (oom)<br>attempt 1<br>host node-7")
    assert "s3cr3t" not in first
    assert second.startswith("p00002 · lost (died)")
