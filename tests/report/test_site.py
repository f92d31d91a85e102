"""A run as static pages."""

import re

import pytest

from fintrader.errors import RunError, UnsafePathError
from fintrader.report.html import render_report
from fintrader.report.site import MARK, write_site
from fintrader.results.run import Run
from tests.engines.runs import fintrader


@pytest.fixture
def run(site):
    return Run(site / "runs" / "demo")


def test_every_link_leads_to_a_page_of_the_folder_and_nothing_foreign_is_replaced(run, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "CNAME").write_text("example.org")
    index = write_site(run, mine)
    text = index.read_text()
    links = re.findall(r'href="([^"]+)"', text)
    pages = [link for link in links if not link.startswith("#")]
    assert "report-test.html" in pages
    for link in links:
        if link.startswith("#"):
            assert f'id="{link[1:]}"' in text
        else:
            assert (index.parent / link).is_file()
    assert not re.search(r'(src|href)="(https?:)?//', text)
    stored = run.backtest("test")
    assert (index.parent / "report-test.html").read_text() == render_report(stored)
    for row in run.leaderboard["pod"]:
        assert f">{row}<" in text
    assert write_site(run, mine).read_bytes() == text.encode(), "equal runs give equal bytes"
    assert (mine / "CNAME").read_text() == "example.org"
    (mine / MARK).unlink()
    (mine / "index.html").write_text("mine")
    with pytest.raises(UnsafePathError, match="choose another --out"):
        write_site(run, mine)
    assert (mine / "index.html").read_text() == "mine"
    (run.folder.backtest / "tear_sheet.png").write_bytes(b"a picture")
    report = write_site(run, tmp_path / "sheet").parent / "report-test.html"
    (address,) = re.findall(r'<a href="([^"]+)">Tear sheet</a>', report.read_text())
    assert report.with_name(address).read_bytes() == b"a picture"
    (tmp_path / "sheets").mkdir()
    (tmp_path / "sheets" / "tear_sheet-train.pdf").write_text("mine")
    with pytest.raises(UnsafePathError, match=r"has a tear_sheet-train\.pdf that no export wrote"):
        write_site(run, tmp_path / "sheets")
    with pytest.raises(RunError, match="no backtest yet"):
        write_site(Run(run.folder.root.parent / "started"), tmp_path / "started")
    assert not (tmp_path / "started").exists()


def test_the_command(run, tmp_path):
    out = tmp_path / "web"
    done = fintrader("export", str(run.folder.root), "--format", "html", "--out", str(out))
    assert done.status == 0, done.err
    assert "to any web host" in done.out
    assert (out / "index.html").is_file()
