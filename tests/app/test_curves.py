"""The validation curve of a pod, on its own page and on its tournament's."""

import numpy as np
import pandas as pd
import pytest

from fintrader.files import append_jsonl
from fintrader_app import race
from tests.app.conftest import healthy, said
from tests.quick import mostly_slow

LOOKS = [
    {"share": 0.25, "env_steps": 100, "fold": 0, "score": 1.0, "return": 0.01},
    {"share": 0.25, "env_steps": 200, "fold": 1, "score": 3.0, "return": 0.03},
    {"share": 1.0, "env_steps": 400, "fold": None, "score": 5.0, "return": 0.05},
]


def looked(site, pod, *, torn=False):
    path = site / "runs" / "demo" / "pods" / pod / "validation.jsonl"
    for record in LOOKS:
        append_jsonl(path, record)
    if torn:
        with path.open("a") as file:
            file.write('{"share": 0.5, "env_st')


def test_folds_are_faint_and_their_mean_is_the_line():
    figure = race.plot_curves({"p0001": pd.DataFrame(LOOKS)}, "score")
    *folds, line = figure.data
    assert [trace.opacity for trace in folds] == [0.25, 0.25]
    assert np.asarray(line.x).tolist() == [0.25, 1.0]
    assert np.asarray(line.y).tolist() == [2.0, 5.0]


@pytest.mark.parametrize("page", mostly_slow("pod", every=["pod", "tournament"]))
def test_the_curve_stands_before_any_loss(open_page, site, page):
    test = open_page(site, page, run="demo", pod="p0001")
    healthy(test)
    assert not any("return" in str(one.value).lower() for one in test.header)
    looked(site, "p0001", torn=True)
    test = open_page(site, page, run="demo", pod="p0001")
    healthy(test)
    assert not test.error
    titles = [str(one.value) for one in test.header]
    assert any("eturn" in title and "alidation" in title for title in titles), said(test)
    if page == "pod":
        assert titles[0] == "Return in validation"
