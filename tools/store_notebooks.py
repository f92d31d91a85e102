"""Run the notebooks and store their outputs, each chart as a PNG.

    python -m tools.store_notebooks [NAME ...]

Charts of plotly are drawn by Chromium on the path, through playwright, because pages that show
notebooks run no scripts. The first picture of a notebook also stands at its top. Needs the extra
`notebooks`, playwright and pillow.
"""

from __future__ import annotations

import base64
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbclient
import nbformat
import plotly.io
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from plotly.offline import get_plotlyjs

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
MOST_BYTES = 60_000
PLOTLY = "application/vnd.plotly.v1+json"
SIZE = {"width": 760, "height": 380}
TOP = "![The first picture](attachment:first.png)"
KINDS = ("image/png", "text/html", "text/plain")
"""Kinds of output that are kept."""
MOST_HTML = 12_000
PROGRESS = re.compile(r"stage \d|[\w ]+: [\d.]+/\d+ |  p\d{4}: ")


def main(names: list[str]) -> None:
    """Run and store these notebooks; all of them by default."""
    paths = [path for path in sorted(FOLDER.glob("*.ipynb")) if not names or path.stem in names]
    with sync_playwright() as play:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        page.set_content("<body style='margin:0'><div id='chart'></div></body>")
        page.add_script_tag(content=get_plotlyjs())
        for path in paths:
            store(path, page)
            print(f"{path.name}: {path.stat().st_size / 1024:,.0f} KiB")
        browser.close()


def store(path: Path, page: Page) -> None:
    """Run a notebook in an empty folder, and store it with its outputs."""
    notebook: Any = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"FINTRADER_HOME": folder, "TMPDIR": folder, "OMP_NUM_THREADS": "1"}
        resources = {"metadata": {"path": folder}}
        nbclient.NotebookClient(notebook, timeout=1200, resources=resources).execute()
        clean(notebook, page, folder)
    nbformat.validate(notebook)
    nbformat.write(notebook, path)


def clean(notebook: Any, page: Page, folder: str) -> None:
    """Make a PNG of each chart, drop parts that vary between runs, and put the first on top."""
    first = ""
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if "outputs" in cell:
            cell.outputs = [output for output in cell.outputs if not is_progress(output)]
        for output in cell.get("outputs", []):
            if PLOTLY in output.get("data", {}):
                png = draw(output["data"][PLOTLY], page)
                output["data"] = {"image/png": png}
                first = first or png
            elif "data" in output:
                shown = {kind: text for kind, text in output["data"].items() if kind in KINDS}
                if len(shown.get("text/html", "")) > MOST_HTML:
                    del shown["text/html"]
                output["data"] = shown
            for holder, key in ((output, "text"), (output.get("data", {}), "text/plain")):
                if key in holder:
                    holder[key] = holder[key].replace(folder, "/tmp")
    top = notebook.cells[0]
    title, _, text = top.source.replace(f"{TOP}\n\n", "").partition("\n\n")
    top.source = f"{title}\n\n{TOP}\n\n{text}"
    top.attachments = {"first.png": {"image/png": first}}


def is_progress(output: Any) -> bool:
    """Report whether an output is a line of progress, which varies from run to run."""
    return output.get("name") == "stderr" and PROGRESS.match(output["text"]) is not None


def draw(figure: Any, page: Page) -> str:
    """Draw a chart as a PNG of at most MOST_BYTES; return it in base64."""
    shown = plotly.io.from_json(plotly.io.to_json(figure, validate=False), skip_invalid=True)
    shown.update_layout(**SIZE)
    page.evaluate(
        "text => { const {data, layout} = JSON.parse(text);"
        " return Plotly.newPlot('chart', data, layout, {displayModeBar: false}) }",
        shown.to_json(),
    )
    picture = Image.open(io.BytesIO(page.locator("#chart").screenshot()))
    stored = io.BytesIO()
    picture.convert("RGB").quantize(64).save(stored, "PNG", optimize=True)
    if stored.tell() > MOST_BYTES:
        raise SystemExit(f"a picture of {stored.tell()} bytes; the most is {MOST_BYTES}")
    return base64.b64encode(stored.getvalue()).decode()


if __name__ == "__main__":
    main(sys.argv[1:])
