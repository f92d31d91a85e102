import itertools
import re
from functools import partial

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from fintrader.numerals import chance, count, percent, ratio, short_count, usd
from fintrader.results.figures.downsample import MAX_CHART_BYTES, figure_bytes
from fintrader.results.folders import Folder
from fintrader.results.formatting import duration, moment, when
from fintrader.results.tournament_events import DrainEvent, LaunchEvent, LossEvent, ResumptionEvent
from fintrader.runs import RunFolder
from fintrader_app import artifacts, charts, race
from fintrader_app.shell import human
from tests.engines import fakes
from tests.results.test_figures import numbers


def table(*rows):
    blank = {
        "parent": None,
        "origin": "fresh",
        "generation": 0,
        "state": "done",
        "reason": "",
        "device": "cpu",
        "score": None,
        "started": None,
        "finished": None,
        "env_steps": None,
    }
    return pd.DataFrame([{**blank, "idx": k, **row} for k, row in enumerate(rows)])


RACE = (
    {"pod": "a", "score": 1.0, "started": 100.0, "finished": 110.0, "env_steps": 500.0},
    {"pod": "b", "score": 3.0, "started": 100.0, "finished": 130.0, "env_steps": 700.0},
    {
        "pod": "c",
        "state": "failed",
        "reason": "nan",
        "started": 110.0,
        "finished": 120.0,
        "env_steps": 0.0,
    },
    {"pod": "d", "parent": "b", "generation": 1, "origin": "exploit", "state": "running"},
    {"pod": "e", "parent": "b", "generation": 1, "origin": "exploit", "state": "waiting"},
)


def test_pace_by_hand():
    pace = race.measure_pace(table(*RACE), 7, {"d": 120.0}, alive=True, now=150.0)
    assert (pace.planned, pace.done, pace.failed, pace.running, pace.best) == (7, 3, 1, 1, 3.0)
    assert pace.elapsed_seconds == 50.0
    assert pace.steps_per_second == 1200 / 30
    assert pace.left_seconds == pytest.approx((10 + 30 + 10) / 3 * 4 / 1)


def test_a_pause_is_no_time_at_work():
    late = {"pod": "f", "score": 1.0, "started": 1000.0, "finished": 1010.0, "env_steps": 400.0}
    pace = race.measure_pace(table(*RACE, late), 7, alive=False)
    assert pace.steps_per_second == 1600 / 40


def test_the_clock_stops_with_the_race():
    dead = race.measure_pace(table(*RACE), 7, alive=False, now=1e9)
    assert (dead.running, dead.elapsed_seconds, dead.left_seconds) == (0, 30.0, None)
    assert race.measure_pace(table(*RACE[:3]), 3, alive=True, now=1e9).elapsed_seconds == 30.0


def test_pace_before_the_first_result():
    pace = race.measure_pace(table(RACE[3]), None, {"d": 120.0}, alive=True, now=150.0)
    assert pace.elapsed_seconds == 30.0
    assert (pace.best, pace.steps_per_second, pace.left_seconds) == (None, None, None)
    assert race.measure_pace(pd.DataFrame(), 3, alive=True).done == 0


def test_lanes_do_not_overlap():
    found, total = race.list_attempts(table(*RACE), {"d": 120.0}, [], now=150.0)
    assert len(found) == total == 4
    figure = race.plot_timeline(found, total)
    spans = {}
    for trace in figure.data:
        for lane, base, width in zip(trace.y, trace.base, trace.x, strict=True):
            spans.setdefault(int(lane), []).append((base, base + width))
    for found in spans.values():
        found.sort()
        assert all(one[1] <= two[0] + 1e-9 for one, two in itertools.pairwise(found))


def test_tree_places_everyone_once_however_deep():
    pods = table(
        *RACE, {"pod": "x", "parent": "y"}, {"pod": "y", "parent": "x"}
    )  # a circle no generator makes
    rows = race.assign_rows(pods)
    assert set(rows) == set(pods["pod"])
    assert rows["b"] == (rows["d"] + rows["e"]) / 2
    leaves = [rows[name] for name in "acde"]
    assert len(set(leaves)) == 4
    race.plot_lineage(pods)
    chain = [
        {"pod": f"p{k}", "parent": f"p{k - 1}" if k else None, "generation": k} for k in range(3000)
    ]
    assert len(race.assign_rows(table(*chain))) == 3000


def test_at_work():
    log = [
        LaunchEvent(pod="a", attempt=1, time=2.0),
        LaunchEvent(pod="b", attempt=1, time=3.0),
        DrainEvent(pod="a", time=4.0),
        LaunchEvent(pod="c", attempt=1, time=5.0),
        LossEvent(pod="c", attempt=1, reason="died", detail="", time=6.0),
    ]
    assert race.find_launched(log) == {"b": 3.0}
    again = ResumptionEvent(token=2, of="seal", pods=3, results=0, time=7.0)
    assert race.find_launched([*log, again]) == {}


def test_figures_are_dressed_for_the_dark():
    figure = go.Figure(go.Scatter(x=[0, 1], y=[1.0, 2.0], line={"color": "#0b4f9e"}))
    figure.update_layout(paper_bgcolor="white", title="x", font={"color": "#1f2933"})
    light, dark = (charts.apply_style(go.Figure(figure), dark=dark) for dark in (False, True))
    assert light.data[0].line.color == "#0b4f9e"
    assert dark.data[0].line.color == "#6cb2ff"
    assert dark.layout.paper_bgcolor is None
    assert dark.layout.font.color is None


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), "1", True, [], 10**400])
def test_what_is_no_number_is_a_dash(value):
    assert {
        percent(value),
        ratio(value),
        usd(value),
        count(value),
        short_count(value),
        duration(value),
    } == {"–"}


def test_wording():
    assert percent(0.12345) == "12.35 %"
    assert percent(-0.5, signed=True) == "-50.00 %"
    assert percent(4926.0) == "492,600 %"
    assert usd(-1234.5) == "-$1,234"
    assert usd(12.5, signed=True) == "+$12.50"
    assert short_count(1_234_567) == "1.23 M"
    assert duration(75) == "1 min 15 s"
    assert duration(90_000) == "1 d 01 h"
    assert (chance(0.0), chance(0.0123), chance(None)) == ("< 0.001", "0.012", "–")
    assert human("learning_rate") == "Learning rate"
    assert when("2026-01-02T03:04:05+01:00") == "2026-01-02 02:04 UTC"
    assert when("yesterday") == "–"
    assert moment(1e300) is None


@pytest.fixture(scope="module")
def pods(tmp_path_factory):
    """A race of 2,000 pods as the app reads it."""
    folder = RunFolder(tmp_path_factory.mktemp("race"))
    fakes.long_race(folder, pods=2_000)
    return artifacts.load_pods(Folder(folder.root.resolve()))


def dressed(figure):
    """Its traces as the browser has them."""
    found = charts.apply_style(figure, dark=False)
    assert figure_bytes(found) <= MAX_CHART_BYTES
    return list(found.to_plotly_json()["data"])


def points(trace):
    """x, y, colour and hover text of each drawn point of a trace."""
    colour = trace["marker"]["color"]
    colours = [colour] * len(trace["customdata"]) if isinstance(colour, str) else numbers(colour)
    return list(
        zip(numbers(trace["x"]), numbers(trace["y"]), colours, trace["customdata"], strict=True)
    )


@pytest.mark.slow
def test_every_point_of_a_setting_and_of_a_score_is_a_pod(pods):
    values = race.select_numbers(pods)["learning_rate"]
    by_pod = pods.assign(value=values).set_index("pod")
    drawn = points(dressed(race.plot_drift(pods, values, "learning_rate"))[0])
    assert len(drawn) == by_pod["score"].notna().sum()
    for x, y, colour, pod in drawn:
        assert (x, y, colour) == tuple(by_pod.loc[pod, ["idx", "value", "score"]])
    best, *clouds = dressed(race.plot_scores(pods))
    minutes = (by_pod["finished"] - by_pod["started"].min()) / 60
    for x, y, _, pod in (point for cloud in clouds for point in points(cloud)):
        assert (x, y) == (pytest.approx(minutes[pod]), by_pod.loc[pod, "score"])
    assert numbers(best["y"])[-1] == pods["score"].max()
    assert (np.diff(numbers(best["y"]))[:-1] > 0).all()


def test_points_of_the_lineage_are_pods_and_edges_are_pairs(pods):
    figure = race.plot_lineage(pods)
    edges, *clouds = dressed(figure)
    by_pod = pods.set_index("pod")
    place = {}
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
    x = numbers(edges["x"])
    y = numbers(edges["y"])
    ends = zip(x[::3], y[::3], x[1::3], y[1::3], strict=True)
    pairs = {place[end[2:]]: place[end[:2]] for end in ends}
    assert pairs == {
        pod: parent for pod in drawn if isinstance(parent := by_pod.loc[pod, "parent"], str)
    }
    assert figure.layout.meta["note"].startswith(f"{len(drawn):,} of 2,000 pods")
    assert pods.loc[pods["score"].idxmax(), "pod"] in drawn


def test_lost_attempts_are_drawn_with_their_reason_and_without_secrets(pods):
    few = pods.head(8)
    start = float(few["started"].min())
    lost = partial(LossEvent, attempt=1)
    secret = "s3://key:s3cr3t@b/x"
    log = [
        LaunchEvent(pod="p0001", attempt=1, time=start),
        lost(pod="p0001", reason="oom", detail=secret, time=start + 4),
        lost(pod="p0002", reason="died", detail="", time=start + 9.0),
    ]
    found, total = race.list_attempts(few, {}, race.list_lost_attempts(log), now=0.0)
    assert total == 8 + 2
    figure = race.plot_timeline(found, total)
    bars = next(trace for trace in figure.data if trace.name == "Lost")
    assert (list(bars.x), list(bars.base)) == ([4.0, 0.0], [0.0, 9.0])
    first, second = bars.customdata
    assert first.startswith("p0001 · lost (oom)<br>attempt 1<br>s3://")
    assert "s3cr3t" not in first
    assert second.startswith("p0002 · lost (died)")


def test_a_pod_of_a_later_rung_leads_once_it_has_a_score():
    pods = pd.DataFrame({"pod": list("abcd"), "rung": [0, 0, 1, 1]})
    pods["score"] = [5.0, 7.0, None, 1.0]
    assert artifacts.rank_pods(pods) == ["d", "b", "a", "c"]
