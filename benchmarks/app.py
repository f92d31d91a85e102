"""The app: is it quick with 1,000 runs, are its charts light, and does it stay quick beside a
tournament?

    python benchmarks/app.py [--runs 1000] [--pods N] [--save]

`cold_first_page_s` is the first drawing of the Runs page in a fresh process, from the first import
of the app's own modules (the server has imported streamlit before it answers at all); what a reader
waits in a browser is `benchmarks/app_browser.py`'s. `rerun_ms` are medians of 20 reruns, on the
cores as they are (`load` says how busy; the `cpu` figures do not depend on it) and while two
processes burn both cores at the niceness that the New run page gives its runs. `live_rerun_ms` are
the Tournament and Pod pages of the quickstart's race while it runs, started as the New run page
does. `largest_chart_bytes` is over all pages, with a backtest of a million rows. Prints one JSON
object as its last line.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")
PAGES = ("runs", "tournament", "pod", "backtest", "honesty", "compare", "market")
COLD = """
import json, sys, time
from streamlit.testing.v1 import AppTest
test = AppTest.from_file(sys.argv[1], default_timeout=120)
start, spent = time.perf_counter(), time.process_time()
test.run()
cold, cold_cpu = time.perf_counter() - start, time.process_time() - spent
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
print(json.dumps(
    {"cold": cold, "cold_cpu": cold_cpu, "reruns": times, "rerun_cpu": cpu, "torch": "torch" in sys.modules}
))
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
LIVE = """
import json, sys, time
from streamlit.testing.v1 import AppTest
test = AppTest.from_file(sys.argv[1], default_timeout=120).run()
found = {}
for page in ("tournament", "pod"):
    test.query_params["run"] = "quickstart"
    test.switch_page(f"views/{page}.py").run()
    times = []
    for _ in range(20):
        start = time.perf_counter()
        test.run()
        times.append(time.perf_counter() - start)
        time.sleep(0.2)  # as a reader's page would, it sees the race move on
    assert not test.exception
    found[page] = {"times": times, "running": any("running" in str(badge.value) for badge in test.markdown)}
print(json.dumps(found))
"""
BURN = "import os\nos.nice(5)\nwhile True: sum(range(100_000))"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--runs", type=int, default=1000)
    arguments.add_argument(
        "--pods", type=int, help="of the live race; the quickstart's own number by default"
    )
    arguments.add_argument("--save", action="store_true")
    options = arguments.parse_args()
    home = Path(tempfile.mkdtemp(prefix="app-"))
    try:
        figures = measure(home, options.runs, options.pods)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    from benchmarks.common import finish

    finish("app", figures, seed=0, save=options.save)


def measure(home: Path, count: int, pods: int | None) -> dict[str, Any]:
    from fintrader.runs import RunFolder
    from tests.engines import fakes

    market = fakes.save_market(home / "data" / "tensors")
    template = fakes.make_run(home / "one" / "runs", "demo", market=market)
    fakes.many_runs(template, home / "many" / "runs", count)
    figures: dict[str, Any] = {"runs": count, "load": round(os.getloadavg()[0], 1)}
    idle = drawn(COLD, home / "many", str(count))
    figures["cold_first_page_s"] = round(idle["cold"], 3)
    figures["rerun_ms"] = milliseconds(idle["reruns"])
    figures["cold_first_page_cpu_s"] = round(idle["cold_cpu"], 3)
    figures["rerun_cpu_ms"] = round(1000 * idle["rerun_cpu"], 1)
    figures["imports_torch"] = idle["torch"]
    burners = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(2)]
    try:
        time.sleep(1.0)
        busy = drawn(COLD, home / "many", str(count))
        figures["cold_first_page_busy_s"] = round(busy["cold"], 3)
        figures["rerun_busy_ms"] = milliseconds(busy["reruns"])
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()
    each = drawn(EACH, home / "one", ",".join(PAGES))
    figures["page_rerun_ms"] = {page: milliseconds(found["times"]) for page, found in each.items()}
    largest = max(found["largest"] for found in each.values())
    figures["million_rows"] = fakes.long_backtest(
        RunFolder.named("demo", home / "one" / "runs"), bars=500_000
    )
    long = drawn(EACH, home / "one", "runs,backtest,compare")
    figures["million_rows_rerun_ms"] = {
        page: milliseconds(found["times"]) for page, found in long.items()
    }
    figures["largest_chart_bytes"] = max(largest, *(found["largest"] for found in long.values()))
    figures |= live(home / "live", pods)
    return figures


def live(site: Path, pods: int | None) -> dict[str, Any]:
    """Reruns of the pages that watch a race, beside the quickstart's own race."""
    import yaml

    from fintrader.errors import FintraderError
    from fintrader.results.folders import RunsFolder
    from fintrader_app import artifacts, jobs
    from fintrader_app.race import at_work

    values = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    values |= {
        "name": "quickstart",
        "runs_dir": str(site / "runs"),
        "cache": str(site / "data" / "tensors"),
    }
    if pods is not None:
        values["tournament"]["pods"] = pods
    runs = RunsFolder.at(site / "runs")
    job = jobs.start(runs, "quickstart", yaml.safe_dump(values), working=ROOT)
    try:
        until = time.monotonic() + 600
        while True:  # the pages are timed while pods are at work, not while the market is built
            try:
                if at_work(artifacts.events(runs.run("quickstart"))):
                    break
            except FintraderError:
                pass
            if not job.alive or time.monotonic() > until:
                raise SystemExit(
                    f"the live race did not start:\n{jobs.last_words(runs, 'quickstart')}"
                )
            time.sleep(0.2)
        found = drawn(LIVE, site)
    finally:
        jobs.kill(job)
    return {
        "live_rerun_ms": {page: milliseconds(one["times"]) for page, one in found.items()},
        "live_rerun_max_ms": {
            page: round(1000 * max(one["times"]), 1) for page, one in found.items()
        },
        "live_was_running": {page: one["running"] for page, one in found.items()},
    }


def milliseconds(times: list[float]) -> float:
    return round(1000 * statistics.median(times), 1)


def variables(site: Path) -> dict[str, str]:
    from fintrader_app.launch import environment

    return environment(site / "runs", site.parent / "data" / "tensors")


def drawn(program: str, site: Path, *arguments: str) -> dict[str, Any]:
    """What a fresh process that draws pages says as its last line."""
    script = str(ROOT / "app" / "fintrader_app" / "streamlit_app.py")
    done = subprocess.run(
        [sys.executable, "-c", program, script, *arguments],
        env=variables(site),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
