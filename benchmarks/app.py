"""The app without a browser: its reruns with 1,000 runs, and the weight of its charts.

    python benchmarks/app.py [--runs 1000] [--save]

`benchmarks/app_browser.py` measures a reader's wait in a browser. `rerun_ms` are medians of 20
reruns, on the cores as they are (`load` shows how busy; the `cpu` figures do not depend on it).
`largest_chart_bytes` is over all pages, with a backtest of a million rows.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._bench import ROOT, finish, milliseconds, read_arguments, run_child
from fintrader.runs import RunFolder
from tests.engines import fakes

PAGES = ("runs", "tournament", "pod", "backtest", "honesty", "compare", "market")
LIST = """
import json, sys, time
from streamlit.testing.v1 import AppTest
test = AppTest.from_file(sys.argv[1], default_timeout=120).run()
assert not test.exception and any("<td>" in one.proto.body for one in test.get("html"))
test.session_state["runs_ready"] = test.session_state["preview_ready"] = True  # what a browser asks for a moment later
test.run()
assert not test.exception and len(test.dataframe[0].value) == int(sys.argv[2])
times, spent = [], time.process_time()
for _ in range(20):
    start = time.perf_counter()
    test.run()
    times.append(time.perf_counter() - start)
cpu = (time.process_time() - spent) / 20
print(json.dumps({"reruns": times, "rerun_cpu": cpu}))
"""
EACH = """
import json, sys, time
from streamlit.testing.v1 import AppTest
test = AppTest.from_file(sys.argv[1], default_timeout=120).run()
test.session_state["runs_ready"] = test.session_state["preview_ready"] = True
found = {}
for page in sys.argv[2].split(","):
    test.query_params["run"] = "demo"
    test.switch_page(f"views/{page}.py").run()
    times, largest = [], 0
    for _ in range(10):
        start = time.perf_counter()
        test.run()
        times.append(time.perf_counter() - start)
    parts = ["curves", "risk", "calendar", "weights", "trades"] if page == "backtest" else [None]
    for part in parts:
        if part:
            test.query_params["part"] = part
            test.run()
        assert not test.exception
        largest = max([largest, *(len(chart.proto.spec.encode()) for chart in test.get("plotly_chart"))])
    found[page] = {"times": times, "largest": largest}
print(json.dumps(found))
"""


def make_runs(home: Path, count: int) -> dict[str, Any]:
    """Write one run and many; their number, and the machine's load."""
    market = fakes.save_market(home / "data" / "tensors")
    template = fakes.make_run(home / "one" / "runs", "demo", market=market)
    fakes.many_runs(template, home / "many" / "runs", count)
    return {"runs": count, "load": round(os.getloadavg()[0], 1)}


def measure(home: Path, count: int) -> dict[str, Any]:
    """Draw the pages of one run and of many, and of a backtest of a million rows."""
    figures = make_runs(home, count)
    drawn = draw(LIST, home / "many", str(count))
    figures |= {
        "rerun_ms": median_ms(drawn["reruns"]),
        "rerun_cpu_ms": milliseconds(drawn["rerun_cpu"], 1),
    }
    each = draw(EACH, home / "one", ",".join(PAGES))
    figures["page_rerun_ms"] = {page: median_ms(found["times"]) for page, found in each.items()}
    figures["million_rows"] = fakes.long_backtest(
        RunFolder.named("demo", home / "one" / "runs"), bars=500_000
    )
    long = draw(EACH, home / "one", "runs,backtest,compare")
    figures["million_rows_rerun_ms"] = {
        page: median_ms(found["times"]) for page, found in long.items()
    }
    pages = [*each.values(), *long.values()]
    figures["largest_chart_bytes"] = max(found["largest"] for found in pages)
    return figures


def median_ms(seconds: list[float]) -> float:
    return milliseconds(statistics.median(seconds), 1)


def draw(program: str, site: Path, *arguments: str) -> dict[str, Any]:
    """Draw pages in a fresh process; its figures."""
    from fintrader_app.launch import CACHE_VARIABLE, build_environment

    script = str(ROOT / "app" / "fintrader_app" / "streamlit_app.py")
    variables = build_environment(site / "runs")
    variables[CACHE_VARIABLE] = str(site.parent.resolve() / "data" / "tensors")
    return run_child(["-c", program, script, *arguments], **variables)


def main() -> None:
    """Measure on runs in a temporary folder."""
    options = read_arguments(__doc__, runs=1000)
    with tempfile.TemporaryDirectory(prefix="app-") as home:
        finish("app", measure(Path(home), options.runs), options)


if __name__ == "__main__":
    main()
