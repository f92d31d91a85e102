"""A real browser walks through every page, at two widths and in both themes. Skips where there is
none."""

import re
import shutil
import subprocess
import zlib
from contextlib import contextmanager

import pytest

from fintrader.backtesting import read_backtest
from fintrader.cli.start import AppSettings
from fintrader.report.html import write_report
from fintrader.results.sections import BacktestView, present_verdict
from fintrader.runs import RunFolder
from fintrader_app import launch
from fintrader_app.shell import PAGES
from tests.app.conftest import PARTS
from tests.app.test_live import made
from tests.engines.waiting import PATIENCE_SECONDS, answers, free_port, until
from tests.judging.test_judge import make_returns

__all__ = ["made"]  # a fixture
CHROMIUM = next(
    (
        found
        for name in ("chromium", "chromium-browser", "google-chrome")
        if (found := shutil.which(name))
    ),
    None,
)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on the PATH"),
]

WIDTHS = (1440, 390)
THEMES = ("light", "dark")
FAULTS = ("Page not found", "Traceback", "could not be drawn", "it is left out", "Connection error")
OWN = "/_stcore/"
"""What streamlit's script asks of its server. Below a page's path, where it looks for the root
first, it gets a 404."""
OF_STREAMLIT = {
    "presentation-role-conflict": "<section",
    "scrollable-region-focusable": "<pre",
}
"""Rule of axe -> the part of streamlit that breaks it: the zone of a file uploader; a block of
code, which Chromium lets the keyboard scroll all the same."""
TOKEN = "a-token-of-the-tests-0123456789"
PATIENCE_MS = 1000 * PATIENCE_SECONDS
QUERIES = {
    **{
        page: [f"{key}={part}" for key, parts in choices.items() for part in parts]
        for page, choices in PARTS.items()
    },
    "new": [f"section={section}" for section in ("run", "data", "agent", "yaml")],
    "compare": ["runs=demo,second"],
}


@contextmanager
def served(site, deployments):
    """The app over the runs of `site`, as `fintrader app` serves it; its address."""
    port = free_port()
    variables = {
        **launch.build_environment(site / "runs"),
        launch.CACHE_VARIABLE: str(site / "data" / "tensors"),
        launch.DEPLOYMENTS_DIR_VARIABLE: str(deployments),
    }
    variables[launch.TOKEN_VARIABLE] = TOKEN
    server = subprocess.Popen(
        launch.build_command(AppSettings(port=port, headless=True)),
        env=variables,
        stdout=subprocess.DEVNULL,
    )
    try:
        address = f"http://127.0.0.1:{port}"

        until(
            lambda: server.poll() is not None or answers(f"{address}/_stcore/health"),
            "the server to answer",
        )
        assert server.poll() is None
        yield address
    finally:
        server.terminate()
        server.wait()


@pytest.fixture(scope="module")
def addresses(template, long, made):
    """Two servers: over the small runs, one of which is at work, and over the long ones; both over
    a deployment that has ended."""
    with (
        RunFolder.named("racing", template / "runs").lock(),
        served(template, made) as small,
        served(long, made) as large,
    ):
        yield {"small": small, "large": large}


@pytest.fixture(scope="module")
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
        )
        yield browser
        browser.close()


def links():
    """Name, server and address of every page, with its parts."""
    found = [
        (f"{page.path} {part}".strip(), "small", f"{page.path}?run=demo&{part}".rstrip("&"))
        for page in PAGES
        for part in QUERIES.get(page.path, [""])
    ]
    found += [(f"live {path}", "small", f"{path}?run=racing") for path in ("tournament", "pod")]
    found += [
        (f"large {path}", "large", f"{path}?run=demo")
        for path in ("tournament", "honesty", "backtest")
    ]
    return found


def settled(page):
    """Wait until the script has ended and charts stand; of a page that redraws itself, once is
    enough."""
    page.wait_for_selector("h1", timeout=PATIENCE_MS)
    page.wait_for_function(
        "() =>"
        ' !document.querySelector(\'[data-testid="stApp"][data-test-script-state="running"]\')',
        timeout=PATIENCE_MS,
    )
    page.wait_for_timeout(400)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_walk(chromium, addresses, width, theme):
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    for address in addresses.values():
        page.goto(f"{address}/?token={TOKEN}")
    trouble = []
    name = ""

    def heard(line):
        if line.type == "error" and not line.text.startswith(
            "Failed to load resource"
        ):  # see `answered`
            trouble.append(f"{name}: console: {line.text} {line.location['url']}")

    def answered(response):
        if response.status >= 400 and OWN not in response.url:
            trouble.append(f"{name}: {response.status} for {response.url}")

    page.on("console", heard)
    page.on("response", answered)
    page.on("pageerror", lambda error: trouble.append(f"{name}: script: {error}"))

    def seen(request):
        if not request.url.replace("ws://", "http://").startswith(
            (*addresses.values(), "data:", "blob:")
        ):
            trouble.append(f"{name}: asks {request.url[:80]}")

    page.on("request", seen)
    page.on("websocket", seen)
    for name, server, path in links():
        page.goto(f"{addresses[server]}/{path}", timeout=PATIENCE_MS)
        if name == "runs":  # the list stands first, the chosen run follows
            page.wait_for_selector(".js-plotly-plot")
        settled(page)
        text = page.inner_text("body")
        trouble += [f"{name}: says {words!r}" for words in FAULTS if words in text]
        over = page.evaluate(
            "() => Math.max(...[document.scrollingElement,"
            " ...document.querySelectorAll('[data-testid=\"stMain\"]')].map(part =>"
            " part.scrollWidth - part.clientWidth))"
        )
        if over > 0:
            trouble.append(f"{name}: {over} px too wide")
    context.close()
    assert not trouble, "\n".join(trouble)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page_passes_axe(chromium, addresses, width, theme):
    name = "axe_playwright_python.sync_playwright"
    axe = pytest.importorskip(name, reason="axe-playwright-python is not installed").Axe()
    context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{addresses['small']}/?token={TOKEN}")
    trouble = []
    for name, server, path in links():
        if server == "large":  # the same pages
            continue
        page.goto(f"{addresses[server]}/{path}")
        settled(page)
        for fault in axe.run(page).response["violations"]:
            known = OF_STREAMLIT.get(fault["id"], "no part")
            found = [node["html"] for node in fault["nodes"]]
            trouble += [
                f"{name}: {fault['id']}: {part}" for part in found if not part.startswith(known)
            ]
    context.close()
    assert not trouble, "\n".join(trouble)


def read_pages(pdf):
    """The drawing commands of each page of a PDF by Chromium."""
    found = []
    for page in re.findall(rb"<</Type /Page\b.*?>>\s*endobj", pdf, re.S):
        number = re.search(rb"/Contents (\d+) 0 R", page)[1]
        stream = re.search(rb"\n%s 0 obj.*?stream\r?\n(.*?)\r?\nendstream" % number, pdf, re.S)[1]
        found.append(zlib.decompress(stream))
    return found


def test_a_report_prints_with_the_verdict_on_its_first_page_and_no_empty_one(
    chromium, template, tmp_path
):
    stored = read_backtest(template / "runs" / "demo" / "backtest")
    path = write_report(tmp_path / "report.html", stored)
    page = chromium.new_page(viewport={"width": 690, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready=yes]")
    few = read_pages(page.pdf(format="A4"))
    page.emulate_media(media="print")
    verdict = page.locator("header").bounding_box()
    assert page.inner_text("h1") == present_verdict(BacktestView.of(stored)).title
    assert verdict["y"] + verdict["height"] < 1000  # of the paper's 1,030 pixels
    page.emulate_media(media="screen")
    page.click("#all")
    page.wait_for_timeout(2000)
    many = read_pages(page.pdf(format="A4"))
    page.close()
    assert 1 <= len(few) < len(many)
    for shown in (few, many):
        assert min(commands.count(b"Tj") + commands.count(b"TJ") for commands in shown) > 3


def test_each_page_shows_its_chart_on_the_first_screen(chromium, addresses):
    """The whole first chart lies above the fold at 1440 by 900 pixels."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{addresses['small']}/?token={TOKEN}")
    found = {}
    for name, server, path in links():
        # Ten sessions are too few to roll; a file is judged below.
        without = "live", "new", "judge", "market view=quality", "backtest part=risk"
        if server == "large" or name.startswith(without):
            continue
        page.goto(f"{addresses[server]}/{path}")
        chart = page.locator(".js-plotly-plot").first
        chart.wait_for()
        settled(page)
        box = chart.bounding_box()
        found[name] = round(box["y"] + box["height"])
    context.close()
    assert len(found) > 14
    assert {name: bottom for name, bottom in found.items() if bottom > 900} == {}


@pytest.mark.parametrize("width", WIDTHS)
def test_a_chosen_file_is_judged(chromium, addresses, width):
    """By keyboard from the last option; the chart lies above the fold of a wide screen."""
    context = chromium.new_context(viewport={"width": width, "height": 900})
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{addresses['small']}/?token={TOKEN}")
    page.goto(f"{addresses['small']}/judge")
    content = make_returns()[["mine"]].rename_axis("date").to_csv().encode()
    returns = {"name": "mine.csv", "mimeType": "text/csv", "buffer": content}
    page.set_input_files("input[type=file]", returns)
    page.get_by_role("spinbutton", name="Trials").fill("40")
    for _ in range(8):  # the field's buttons, its help and the box follow
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.innerText") == "Judge":
            break
    page.keyboard.press("Enter")
    chart = page.locator(".js-plotly-plot").first
    chart.wait_for()
    settled(page)
    box = chart.bounding_box()
    assert width < 1000 or box["y"] + box["height"] <= 900
    assert "the choice of 40 trials" in page.inner_text("details summary")
    over = "() => { const main = document.querySelector('[data-testid=\"stMain\"]'); return main.scrollWidth - main.clientWidth }"
    assert page.evaluate(over) <= 0
    context.close()


def test_nobody_shows_it_inside_their_own_page(addresses, chromium):
    context = chromium.new_context()
    context.new_page().goto(f"{addresses['small']}/?token={TOKEN}")
    page = context.new_page()
    address = f"{addresses['small']}/?token={TOKEN}"
    page.set_content(f'<iframe src="{address}" width=800 height=400></iframe>')
    page.wait_for_timeout(3000)
    assert page.frames[1].url.startswith("chrome-error:")
    context.close()


def test_the_token_opens_the_app_and_stays(addresses, chromium):
    address = addresses["small"]
    context = chromium.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    refused = page.goto(f"{address}/honesty?run=demo")
    assert refused.status == 403
    assert "?token=" in page.inner_text("body")
    page.goto(f"{address}/honesty?run=demo&token={TOKEN}")
    settled(page)
    assert page.inner_text("h1") == "Honesty"
    assert "token" not in page.url
    assert TOKEN not in page.evaluate("document.cookie")
    page.get_by_role("link", name="Backtest").click()
    page.wait_for_function("() => document.querySelector('h1')?.innerText === 'Backtest'")
    context.set_offline(True)
    context.set_offline(False)
    page.reload()
    settled(page)
    assert page.inner_text("h1") == "Backtest"
    context.close()


def test_a_link_on_another_site_needs_a_click(addresses, chromium):
    """A browser that comes from another site sends no strict cookie, and from our page it does."""
    address = addresses["small"]
    context = chromium.new_context()
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    link = f'<a href="{address}/honesty?run=demo&token={TOKEN}">there</a>'

    def answer(route):
        route.fulfill(content_type="text/html", body=link)

    page.route("http://other.example/", answer)
    page.goto("http://other.example/")
    page.get_by_text("there").click()
    page.get_by_text("go on").click()
    settled(page)
    assert page.inner_text("h1") == "Honesty"
    context.close()
