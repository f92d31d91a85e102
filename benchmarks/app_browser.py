"""The app in a browser: a reader's waits, and the documentation's pictures of the same pages.

    python -m benchmarks.app_browser [--runs 1000] [--repeats 5] [--browser PATH] [--pictures RUNS]
    [--save]

Needs a Chromium and playwright. `first_page_s` is the time from opening the address of a server
that has just begun to answer until the first runs of the list can be read, with nothing cached;
`table_s` until all of them can be sorted and chosen from; `chosen_run_s` until the chosen run's
charts stand below; `server_s` is how long that server took to answer, from its command. `again_s`
is a second reader's first page, `bare_first_s` and `bare_again_s` a page of streamlit's with one
table and no more, the floor of `table_s`. `rerun_ms` are a page's reruns in the browser (the key
R), from the key until the script has ended and what it drew is on the screen; medians, of the pages
of one run among `--runs`. `--pictures RUNS` takes `docs/images/app-*.png` of the runs `quickstart`
and `nasdaq100-days` in that folder instead (of those that are there); nothing is measured. The
second run is what `fintrader init` and `fintrader run` make of a file of daily bars of the
NASDAQ-100.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks._bench import ROOT, Values, finish, read_arguments
from tests.engines import fakes
from tests.engines.waiting import answers, free_port

PAGES = ("runs", "tournament", "pod", "backtest", "honesty", "compare", "market")
PICTURES = {"runs": 900, "tournament": 1180, "backtest": 1180, "honesty": 900, "judge": 900}
"""Pages that the documentation shows, and how far down, in pixels."""
REFUSED = "nasdaq100-days"
"""Run on real bars whose backtest the README shows."""
WAITS = (
    "server_s",
    "first_page_s",
    "table_s",
    "chosen_run_s",
    "again_s",
    "bare_first_s",
    "bare_again_s",
)
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


def measure(chromium: Browser, home: Path, count: int, repeats: int) -> Values:
    """Open the pages of many runs again and again; medians."""
    market = fakes.save_market(home / "data" / "tensors")
    template = fakes.make_run(home / "one" / "runs", "demo", market=market)
    fakes.many_runs(template, home / "many" / "runs", count)
    figures = {"runs": count, "load": os.getloadavg()[0], "repeats": repeats}
    rounds = []
    bare = home / "bare.py"
    bare.write_text(BARE)
    for _ in range(repeats):
        start = time.perf_counter()
        with served(home / "many" / "runs", home / "data" / "tensors") as address:
            waits = [time.perf_counter() - start]
            waits += measure_waits(chromium, address, ROWS, LIST, CHART)
            waits += measure_waits(chromium, address, ROWS)
        with served(home / "many" / "runs", script=bare) as address:
            waits += measure_waits(chromium, address, LIST)
            waits += measure_waits(chromium, address, LIST)
        rounds.append(waits)
    figures |= zip(WAITS, map(statistics.median, zip(*rounds, strict=True)), strict=True)
    run = sorted(path.name for path in (home / "many" / "runs").iterdir() if path.is_dir())[-1]
    with served(home / "many" / "runs", home / "data" / "tensors") as address:
        page = chromium.new_context(viewport={"width": 1440, "height": 900}).new_page()
        reruns = {}
        for name in PAGES:
            open_page(page, f"{address}/{name}?run={run}&runs={run}")
            reruns[name] = round(statistics.median(page.evaluate(RERUN) for _ in range(repeats)))
        figures["rerun_ms"] = reruns
    return figures


def measure_waits(chromium: Browser, address: str, *marks: str) -> list[float]:
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


def take_pictures(chromium: Browser, runs: Path) -> None:
    """Take the documentation's pictures of the runs that are there."""
    from PIL import Image

    with served(runs) as address:
        page = chromium.new_context(
            viewport={"width": 1280, "height": 900}, color_scheme="light"
        ).new_page()
        wanted = [(name, name, "quickstart", height) for name, height in PICTURES.items()]
        wanted.append(("refused", "backtest", REFUSED, 820))
        for picture, name, run, height in wanted:
            if not (runs / run).is_dir():
                continue
            page.set_viewport_size({"width": 1280, "height": height})
            open_page(page, f"{address}/{name}?run={run}")
            if name == "judge":
                judge_a_file(page)
            page.wait_for_selector(CHART)
            page.wait_for_timeout(1500)
            path = ROOT / "docs" / "images" / f"app-{picture}.png"
            page.screenshot(path=path)
            # A third of the bytes, without a visible difference.
            Image.open(path).quantize(128).save(path, optimize=True)
            print(path.relative_to(ROOT))


def judge_a_file(page: Page) -> None:
    """Judge two years of made-up daily returns."""
    draws = np.random.default_rng(4)
    days = pd.bdate_range("2022-01-03", periods=500)
    returns = pd.Series(0.0006 + 0.008 * draws.standard_normal(500), days, name="returns")
    content = returns.rename_axis("date").to_csv().encode()
    file = {"name": "strategy.csv", "mimeType": "text/csv", "buffer": content}
    page.set_input_files("input[type=file]", file)
    page.get_by_role("spinbutton", name="Trials").fill("12")
    page.get_by_role("button", name="Judge", exact=True).click()
    page.mouse.move(0, 0)


def open_page(page: Page, address: str) -> None:
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
    """The address of the app over these runs, as `fintrader app` serves it, or of another script,
    as soon as it answers."""
    from fintrader.cli.start import AppSettings
    from fintrader_app.launch import CACHE_VARIABLE, build_command, build_environment

    port = free_port()
    words = build_command(AppSettings(port=port, headless=True, no_token=True))
    if script is not None:
        words = [str(script) if word.endswith("served.py") else word for word in words]
    variables = build_environment(runs)
    if cache is not None:
        variables[CACHE_VARIABLE] = str(cache.resolve())
    server = subprocess.Popen(words, env=variables, cwd=runs.parent, stdout=subprocess.DEVNULL)
    try:
        while not answers(f"http://127.0.0.1:{port}/_stcore/health"):
            if server.poll() is not None:
                raise SystemExit("the app's server has ended")
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    """Measure, or take pictures."""
    options = read_arguments(
        __doc__, runs=1000, repeats=5, browser=shutil.which("chromium") or "", pictures=Path
    )
    if not options.browser:
        raise SystemExit("there is no chromium on the PATH; give one by --browser")
    with (
        sync_playwright() as play,
        tempfile.TemporaryDirectory(prefix="app-", ignore_cleanup_errors=True) as home,
    ):
        flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        chromium = play.chromium.launch(executable_path=options.browser, args=flags)
        if options.pictures:
            take_pictures(chromium, options.pictures)
            return
        figures = measure(chromium, Path(home), options.runs, options.repeats)
    finish("app_browser", figures, options)


if __name__ == "__main__":
    main()
