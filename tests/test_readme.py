"""README and documentation say what the records say; stale figures, typed figures and unclean
records are refused."""

import argparse
import copy
import json
import re

import pytest

from benchmarks import _bench, readme
from benchmarks._figures import BLOCKS
from benchmarks._records import MARK, commits, read, refused

PAGES = {page: (readme.ROOT / page).read_text() for page in readme.PAGES}


@pytest.fixture(scope="module")
def records():
    return read()


def wrong(text, records, page="README.md", **how):
    return list(readme.problems(page, text, records, **how))


@pytest.mark.parametrize("page", PAGES)
def test_pages_say_what_the_records_say(page, records):
    assert wrong(PAGES[page], records, page) == []
    assert readme.rewritten(PAGES[page], records) == PAGES[page]


def test_every_block_stands_on_a_page():
    used = [at[1] for text in PAGES.values() for at in readme.BLOCK.finditer(text)]
    assert sorted(used) == sorted(BLOCKS)


def test_a_record_that_was_measured_again_makes_the_page_stale(records):
    changed = copy.deepcopy(records)
    changed["training"]["default_4096_times_64"] += 1
    page = "docs/measured.md"
    (found,) = wrong(PAGES[page], changed, page)
    assert "'speed' are not those of the records; run `python -m benchmarks.readme`" in found
    assert wrong(readme.rewritten(PAGES[page], changed), changed, page) == []


def test_the_readme_tells_of_luck_and_of_every_verdict_on_real_bars(records):
    changed = copy.deepcopy(records)
    changed["real"]["sets"]["us14/0"]["verdict"] = "Unlikely to be luck: ahead."
    changed["real"]["sets"]["daily/0"]["ensemble"]["sharpe"] = 1.0
    text = readme.rewritten(PAGES["README.md"], changed)
    assert "**NASDAQ-100, minutes: Sharpe ratio 2.04" in text, (
        "the best Sharpe ratio of those that may be luck"
    )
    assert "| 2.09 / 1.58 | Unlikely to be luck |" in text
    assert len(wrong(PAGES["README.md"], changed)) == 2, "both blocks are stale"


def test_the_readme_fits_one_reading():
    """Words and figures; rules of tables and printed output are not read word by word."""
    text = re.sub(r"^```text\n.*?^```$", "", PAGES["README.md"], flags=re.M | re.S)
    assert sum(any(map(str.isalnum, word)) for word in text.split()) <= 900


def test_seeds_of_a_set_of_real_bars_are_told_together(records):
    """Median, range and the outermost interval; the verdict is the first seed's, whoever else
    looked later."""
    grown = copy.deepcopy(records)
    first = grown["real"]["sets"]["us14/0"]
    first["ensemble"] |= {
        "active_return": 0.1,
        "interval": [-0.02, 0.2],
        "folds_not_below": "6 of 6",
    }
    second = copy.deepcopy(first) | {"verdict": "Unlikely to be luck: of the second seed."}
    second["ensemble"] |= {
        "active_return": 0.3,
        "interval": [0.01, 0.5],
        "folds_not_below": "5 of 6",
    }
    grown["real"]["sets"] = {"us14/1": second, "us14/0": first, "n100/0": copy.deepcopy(first)}
    text = readme.rewritten(PAGES["docs/results.md"], grown)
    for title in ("14 US stocks, minutes", "NASDAQ-100, minutes"):
        assert text.count(f"| {title} |") == 4, title
    assert (
        "| 14 US stocks, minutes | ensemble | +20.0 %, seeds +10.0 to +30.0 (-2.0 to +50.0) |"
        in text
    )
    assert "| 5 to 6 of 6 |" in text
    assert "| NASDAQ-100, minutes | ensemble | +10.0 % (-2.0 to +20.0) |" in text
    assert "of the second seed" not in text


def test_a_typed_figure_is_refused(records):
    page = PAGES["README.md"]
    assert "a table outside the marks" in wrong(page + "\n| ours | 2.1 |\n", records)[0]
    inside = page.replace("## Results\n", "## Results\n\nSharpe 2.1 in `v2`.\n", 1)
    assert "a figure outside the marks among the results: Sharpe 2.1" in wrong(inside, records)[0]
    assert wrong(page + "\n| `v2` | ![ours](docs/2.png) |\n", records) == []
    results = PAGES["docs/results.md"] + "\nIt reached 2.1.\n"
    assert (
        "a figure outside the marks among the results: It reached 2.1"
        in wrong(results, records, "docs/results.md")[0]
    )


def test_a_record_of_an_unclean_tree_is_refused_or_marked(records):
    changed = copy.deepcopy(records)
    changed["training"]["commit"] = "0123456789ab+changes"
    page = "docs/measured.md"
    text = readme.rewritten(PAGES[page], changed)
    (found,) = wrong(text, changed, page, allowed=frozenset(changed) - {"training"})
    assert "training.json was measured with local changes; commit, measure again" in found
    assert wrong(text, changed, page, allowed=frozenset(changed)) == []
    row = next(line for line in text.splitlines() if "`training` 0123456" in line)
    assert row.endswith(f"{MARK} |")
    assert f"{MARK} measured with local changes" in text
    del changed["training"]["machine"]
    assert "names no machine" in refused(changed, ["training"], frozenset(changed))[0]


def test_a_claim_measured_on_two_instruction_sets_shows_both(
    records, tmp_path, monkeypatch, capsys
):
    page = "docs/measured.md"
    monkeypatch.setattr(_bench, "ROOT", tmp_path)
    monkeypatch.setattr(_bench, "read_commit", lambda: "0123456789ab")
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    path = tmp_path / "benchmarks" / "results" / "training.json"
    path.write_text(json.dumps(records["training"]))
    options = argparse.Namespace(seed=0, save=True, beside=True)
    for set_of, rate in (("AVX2", 1.5), ("AVX512", 9.5), ("AVX512", 2.5)):
        machine = {"cpu": "Fast", "cores": 2, "instruction_set": set_of, "threads": 1}
        monkeypatch.setattr(_bench, "describe_machine", lambda machine=machine: machine)
        _bench.finish("training", {**records["training"], "mlp_times_sb3": rate}, options)
    changed = {**records, "training": json.loads(path.read_text())}
    text = readme.rewritten(PAGES[page], changed)
    row = next(line for line in text.splitlines() if line.startswith("| MLP 128-128"))
    first = f"{records['training']['mlp_times_sb3']:.1f} × Stable"
    for said in ("| 2.5 × Stable", "2 × Fast (AVX2): 1.5 × Stable", f": {first}"):
        assert row.count(said) == 1, row
    assert "9.5" not in row, "the latest of an instruction set"
    assert "2 × Fast (AVX2), threads 1." in text.splitlines()
    options.beside = False
    _bench.finish("training", records["training"], options)
    assert "elsewhere" not in json.loads(path.read_text())


def test_parts_of_a_record_have_commits_too():
    record = {
        "commit": "a",
        "parts": [{"commit": "b+changes"}, {"commits": ["c", "d"]}],
        "figures": {"x": 1},
    }
    assert list(commits(record)) == ["a", "b+changes", "c", "d"]


def test_blocks_and_records_that_are_missing_are_named(records):
    def why(text, known):
        return "\n".join(readme.unmade("README.md", text, known))

    real = "<!-- figures: real -->\n<!-- end -->\n"
    assert why(real, records) == ""
    assert "no block is called 'alpha'; there are quickstart" in why(
        real.replace("real", "alpha"), records
    )
    assert "has no <!-- end -->" in why("<!-- figures: real -->\n", records)
    fewer = {name: one for name, one in records.items() if name != "real"}
    assert "'real' needs benchmarks/results/real.json" in why(real, fewer)
