"""Folders of very many runs, or very long ones, and a way to open a page on any."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

pytest.importorskip("streamlit")

from streamlit import config
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import AppTest

import fintrader_app as app
from fintrader.runs import RunFolder
from fintrader_app import launch
from tests import ROOT
from tests.engines import fakes
from tests.engines.runs import fintrader
from tests.pipeline import test_classic_run
from tests.pipeline.conftest import in_this_process

__all__ = ["in_this_process"]  # a fixture
SCRIPT = Path(app.__file__).parent / "streamlit_app.py"
PAGES = ("runs", "tournament", "pod", "backtest", "honesty", "compare", "market", "new_run")
PARTS = {
    "backtest": {
        "part": (
            *("curves", "risk", "calendar", "weights"),
            *("profit", "trades", "decisions", "metrics"),
        )
    },
    "market": {"view": ("bars", "features", "coverage", "quality", "ties")},
}
"""Page -> what its address calls a part, and the parts."""
Open = Callable[..., AppTest]
RENDER_SECONDS = 300.0
"""What a page may take on a machine that is busy with other things; well under one second on an
idle core."""


@pytest.fixture(scope="session", autouse=True)
def _quick_pages():
    """Streamlit searches all installed packages for components whenever a page is opened, of which
    the app has none, and all objects for garbage after each script: both cost more than a page."""
    config.set_option("runner.postScriptGC", False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manifest_scanner, "scan_component_manifests", list)
        yield
    config.set_option("runner.postScriptGC", True)


@pytest.fixture(scope="session")
def crowd(template, tmp_path_factory):
    """Three hundred runs. Nobody may change them."""
    root = tmp_path_factory.mktemp("crowd")
    fakes.many_runs(RunFolder.named("demo", template / "runs"), root / "runs", 300)
    (root / "data").symlink_to(template / "data")
    return root


@pytest.fixture(scope="session")
def long(template, tmp_path_factory):
    """`demo` with a backtest of a hundred thousand rows, and a race of 2,000 pods. Nobody may
    change it."""
    root = tmp_path_factory.mktemp("long") / "site"
    shutil.copytree(template, root)
    demo = RunFolder.named("demo", root / "runs")
    assert fakes.long_backtest(demo, bars=50_000) >= 100_000
    fakes.long_race(demo, pods=2_000)
    return root


@pytest.fixture(scope="module")
def classic_site(tmp_path_factory, in_this_process):
    """A finished run in a classic environment, `tiny`. Nobody may change it."""
    path = test_classic_run.write(tmp_path_factory.mktemp("classic"), pods=2)
    done = fintrader("run", str(path))
    assert done.status == 0, done.err
    return path.parent


@pytest.fixture
def open_page(monkeypatch, tmp_path):
    """`open_page(site, "backtest", run="demo")`: that page as a reader would see it; without
    `ready` at first."""

    def opened(site, page, *, times=1, ready=True, **query):
        monkeypatch.setenv(launch.RUNS_DIR_VARIABLE, str(site / "runs"))
        monkeypatch.setenv(launch.CACHE_VARIABLE, str(site / "data" / "tensors"))
        monkeypatch.setenv(launch.CONFIGS_VARIABLE, str(ROOT / "configs"))
        test = AppTest.from_file(str(SCRIPT), default_timeout=RENDER_SECONDS)
        if ready:
            test.session_state["runs_ready"] = test.session_state["preview_ready"] = True
        test.session_state["preview_settings"] = True  # unfolded
        for key, value in query.items():
            test.query_params[key] = value
        if page in ("new_run", "judge_returns"):
            test.run()  # their addresses are not their files' names, which the first script tells
        test.switch_page(f"views/{page}.py")
        for _ in range(times):
            test.run()
        return test

    return opened


def one(elements, label):
    """The element of that label."""
    return next(element for element in elements if element.label == label)


def box(test, label):
    """The select box of that label."""
    return one(test.selectbox, label)


def said(test):
    """Everything that the page says in words."""
    kinds = (
        "title",
        "header",
        "markdown",
        "caption",
        "info",
        "warning",
        "error",
        "success",
        "code",
        "text",
    )
    return "\n".join(str(element.value) for kind in kinds for element in getattr(test, kind))


def healthy(test):
    """No traceback, no fault that was merely caught, and something to look at."""
    assert not test.exception, [element.value for element in test.exception]
    assert "could not be drawn" not in said(test), said(test)
    assert test.title
    drawn = (
        len(test.metric)
        + len(test.dataframe)
        + len(test.get("plotly_chart"))
        + len(test.get("text_input"))
    )
    assert drawn or test.info or test.error or test.warning


def cards(test):
    """Label and value of every metric on the page."""
    return {metric.label: metric.value.replace("\\", "") for metric in test.metric}


def texts_of(table):
    """The cells of a table as a reader sees them."""
    styler = table.proto.arrow_data.styler
    if not styler.display_values:
        return table.value.astype(str)
    return pa.ipc.open_stream(styler.display_values).read_pandas()


def table_with(test, column, read=lambda table: table.value):
    """The first table that has such a column: its values, or what `read` makes of it."""
    return next(read(table) for table in test.dataframe if column in table.value)
