"""The notebooks: stripped in git, no key and no network in them, and each runs from top to bottom.

`make notebooks` runs this file. Each notebook is executed in a temporary folder by a kernel of its
own.
"""

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
def test_a_notebook_is_stored_without_outputs_and_needs_no_key_no_network_and_no_place_of_its_own(
    name,
):
    cells = [cell for cell in read(name).cells if cell.cell_type == "code"]
    for cell in cells:
        assert cell.outputs == [], f"{name}, {cell.id}: strip the outputs before committing"
        assert cell.execution_count is None, (
            f"{name}, {cell.id}: strip the execution counts before committing"
        )
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
