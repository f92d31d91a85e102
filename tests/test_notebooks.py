"""The notebooks: stored with small pictures, no key and no network in them, and each runs from top
to bottom. `python -m tools.store_notebooks` stores them.

`make notebooks` runs this file. Each notebook is executed in a temporary folder by a kernel of its
own.
"""

import base64
import os
import re

import pytest

from tests import ROOT

FOLDER = ROOT / "notebooks"
NAMES = ("01_market", "02_env_in_your_own_rl", "03_tournament", "04_backtest")
SECONDS = 1200
"""What one cell may take at most; on an idle core a whole notebook takes a tenth of that."""
nbformat = pytest.importorskip(
    "nbformat", reason="nbformat is missing: pip install nbformat nbclient ipykernel"
)


def read(name):
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def test_every_notebook_is_tested():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_as_it_ran_with_small_pictures(name):
    first, *cells = read(name).cells
    assert "(attachment:first.png)" in first.source
    pictures = [first.attachments["first.png"]["image/png"]]
    ran = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in ran] == list(range(1, len(ran) + 1)), "run it again"
    for output in (output for cell in ran for output in cell.outputs):
        assert output.output_type != "error"
        shown = output.get("data", {})
        assert set(shown) <= {"image/png", "text/html", "text/plain"}, "scripts are not shown"
        pictures += [shown["image/png"]] if "image/png" in shown else []
    assert pictures[0] in pictures[1:]
    assert len(pictures) > 2
    for picture in pictures:
        data = base64.b64decode(picture)
        assert data.startswith(b"\x89PNG")
        assert len(data) <= 60_000


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_needs_no_key_no_network_and_no_place_of_its_own(name):
    cells = [cell for cell in read(name).cells if cell.cell_type == "code"]
    code = "\n".join(cell.source for cell in cells)
    assert not re.search(
        r"https?://|s3://|environ|api_key|getpass|requests|urllib|!pip|%pip|/home/|/tmp/", code
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    nbclient = pytest.importorskip(
        "nbclient", reason="nbclient is missing: pip install nbclient ipykernel"
    )
    pytest.importorskip("ipykernel", reason="ipykernel is missing: pip install ipykernel")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(FOLDER.parent), os.environ.get("PYTHONPATH", "")])
    )
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(
            proxy, "http://127.0.0.1:9"
        )  # nobody listens there: a download would fail
    notebook = read(name)
    client = nbclient.NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    )
    client.execute()
    outputs = [
        output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs
    ]
    figures = [
        output for output in outputs if "application/vnd.plotly.v1+json" in output.get("data", {})
    ]
    assert len(figures) >= 2, f"{name} draws {len(figures)} figures"
    warnings = [
        out.text for out in outputs if out.output_type == "stream" and "Warning" in out.text
    ]
    assert not warnings, f"{name} warns: {warnings}"
