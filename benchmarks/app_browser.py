"""The app in a browser: how long a reader waits, and the documentation's pictures, taken of the
same pages.

    python benchmarks/app_browser.py [--runs 1000] [--repeats 5] [--browser PATH] [--pictures RUNS]
    [--save]

Needs a Chromium and playwright. `first_page_s` is the time from opening the address of a server
that has just begun to answer until the first runs of the list can be read, with nothing cached;
`table_s` until all of them can be sorted and chosen from; `chosen_run_s` until the chosen run's
charts stand below; `server_s` is how long that server took to answer, from its command. `again_s`
is a second reader's first page, `bare_first_s` and `bare_again_s` a page of streamlit's with one
table and no more, the floor of `table_s`. `rerun_ms` are a page's reruns in the browser (the key
R), from the key until the script has ended and what it drew is on the screen; medians, of the pages
of one run among `--runs`. `--pictures RUNS` takes `docs/images/app-*.png` of the run `quickstart`
in that folder instead; nothing is measured.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")
PAGES = ("runs", "tournament", "pod", "backtest", "honesty", "compare", "market")
PICTURES = {"runs": 1130, "tournament": 1640, "backtest": 1400, "honesty": 960}
"""Pages that the documentation shows, and how far down, in pixels."""
BARE = """
import pandas as pd, streamlit as st
st.title("One table")
st.dataframe(pd.DataFrame({"a": range(1000), "b": ["x"] * 1000}))
"""
ROWS = ".ft-runs td"
LIST = '[data-testid="stDataFrame"] canvas'
CHART = ".js-plotly-plot .main-svg"
RERUN = """() => new Promise((done, failed) => {
  const app = document.querySelector('[data-testid="stApp"]')
  const start = performance.now()
  let began = false
  const look = new MutationObserver(() => {
    const state = app.getAttribute('data-test-script-state')
    if (state === 'running') began = true
    else if (began) {
      look.disconnect()
      requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - start)))
    }
  })
  look.observe(app, {attributes: true})
  const key = {key: 'r', code: 'KeyR', keyCode: 82, which: 82, bubbles: true}
  document.body.dispatchEvent(new KeyboardEvent('keydown', key))
  document.body.dispatchEvent(new KeyboardEvent('keyup', key))
  setTimeout(() => failed(new Error('no rerun')), 20000)
})"""


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--runs", type=int, default=1000)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--browser", default=shutil.which("chromium"), help="path of a Chromium")
    arguments.add_argument(
        "--pictures", type=Path, metavar="RUNS", help="a folder that holds the run `quickstart`"
    )
    arguments.add_argument("--save", action="store_true")
    options = arguments.parse_args()
    if options.browser is None:
        arguments.error("there is no chromium on the PATH; give one by --browser")
    with sync_playwright() as play:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        chromium = play.chromium.launch(executable_path=options.browser, args=flags)
        if options.pictures:
            pictures(chromium, options.pictures)
            return
        home = Path(tempfile.mkdtemp(prefix="app-"))
        try:
            figures = measure(chromium, home, options.runs, options.repeats)
        finally:
            shutil.rmtree(home, ignore_errors=True)
    from benchmarks.common import finish

    finish("app_browser", figures, seed=0, save=options.save)


def measure(chromium: Browser, home: Path, count: int, repeats: int) -> dict[str, Any]:
    from tests.engines import fakes

    market = fakes.save_market(home / "data" / "tensors")
    template = fakes.make_run(home / "one" / "runs", "demo", market=market)
    fakes.many_runs(template, home / "many" / "runs", count)
    figures: dict[str, Any] = {
        "runs": count,
        "repeats": repeats,
        "load": round(os.getloadavg()[0], 1),
    }
    names = (
        "server_s",
        "first_page_s",
        "table_s",
        "chosen_run_s",
        "again_s",
        "bare_first_s",
        "bare_again_s",
    )
    waits: dict[str, list[float]] = {name: [] for name in names}
    bare = home / "bare.py"
    bare.write_text(BARE)
    for _ in range(repeats):
        start = time.perf_counter()
        with served(home / "many" / "runs", home / "data" / "tensors") as address:
            started = time.perf_counter() - start
            opening = waited(chromium, address, ROWS, LIST, CHART)
            (again,) = waited(chromium, address, ROWS)
        with served(home / "many" / "runs", script=bare) as address:
            floor = [*waited(chromium, address, LIST), *waited(chromium, address, LIST)]
        for name, found in zip(names, (started, *opening, again, *floor), strict=True):
            waits[name].append(found)
    figures |= {what: round(statistics.median(found), 2) for what, found in waits.items()}
    run = sorted(path.name for path in (home / "many" / "runs").iterdir() if path.is_dir())[-1]
    with served(home / "many" / "runs", home / "data" / "tensors") as address:
        page = chromium.new_context(viewport={"width": 1440, "height": 900}).new_page()
        reruns = {}
        for name in PAGES:
            opened(page, f"{address}/{name}?run={run}&runs={run}")
            reruns[name] = round(statistics.median(page.evaluate(RERUN) for _ in range(repeats)))
        figures["rerun_ms"] = reruns
    return figures


def waited(chromium: Browser, address: str, *marks: str) -> list[float]:
    """Seconds from opening the address until each mark stands, in a browser that has cached
    nothing."""
    page = chromium.new_context().new_page()
    page.goto("about:blank")
    start = time.perf_counter()
    found = []
    page.goto(address)
    for mark in marks:
        page.wait_for_selector(mark)
        found.append(time.perf_counter() - start)
    page.context.close()
    return found


def pictures(chromium: Browser, runs: Path) -> None:
    """Take the documentation's pictures of the run `quickstart`."""
    from PIL import Image

    with served(runs) as address:
        page = chromium.new_context(
            viewport={"width": 1280, "height": 900}, color_scheme="light"
        ).new_page()
        for name, height in PICTURES.items():
            page.set_viewport_size({"width": 1280, "height": height})
            opened(page, f"{address}/{name}?run=quickstart")
            path = ROOT / "docs" / "images" / f"app-{name}.png"
            page.screenshot(path=path)
            Image.open(path).quantize(96).save(
                path, optimize=True
            )  # a third of the bytes, and nobody sees it
            print(path.relative_to(ROOT))


def opened(page: Page, address: str) -> None:
    """Open a page and wait until it has drawn itself, charts included."""
    page.goto(address)
    page.wait_for_selector("h1")
    page.wait_for_timeout(1500)
    page.wait_for_function(
        '() => !document.querySelector(\'[data-testid="stApp"][data-test-script-state="running"]\')'
    )
    page.wait_for_timeout(1500)


@contextmanager
def served(runs: Path, cache: Path | None = None, script: Path | None = None) -> Iterator[str]:
    """The app over these runs, as `fintrader app` serves it, or another script; its address, as
    soon as it answers."""
    from fintrader_app.launch import command, environment
    from tests.engines.waiting import free_port

    port = free_port()
    words = command(port, headless=True, no_token=True)
    if script is not None:
        words = [str(script) if word.endswith("served.py") else word for word in words]
    server = subprocess.Popen(
        words, env=environment(runs, cache), cwd=runs.parent, stdout=subprocess.DEVNULL
    )
    try:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1).read()
                break
            except OSError:
                if server.poll() is not None:
                    raise SystemExit("the app's server has ended") from None
                time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    main()
