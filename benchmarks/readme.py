"""Figures of README and documentation, written from the records in `benchmarks/results/`.

    python -m benchmarks.readme            # rewrite what stands between the marks
    python -m benchmarks.readme --check    # change nothing; say what is stale, and fail

What stands between `<!-- figures: NAME -->` and `<!-- end -->` is generated (`_figures.py`,
`_claims.py`). A page is refused for a block that differs from its records, a figure in a table of
its own, a digit in a page's section of results, and a record that was measured in a tree with local
changes and is not on the list in `_records.py`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator

from benchmarks._bench import read_options
from benchmarks._figures import BLOCKS, figures_of
from benchmarks._records import LOCAL_CHANGES, ROOT, Records, read, refused
from fintrader.files import write_text

OF_FIGURES = ("docs/results.md", "docs/measured.md")
"""Where every figure is a measured one: prose there has no digits of its own."""
OTHERS = ("algorithms/index", "environment", "execution", "gpu", "own-loop", "tasks")
PAGES = ("README.md", *OF_FIGURES, *(f"docs/{name}.md" for name in OTHERS))
RESULTS_SECTION = re.compile(r"^## Results\n(.*?)^## ", re.M | re.S)
"""The part of the README for which the same holds."""
BLOCK = re.compile(r"^<!-- figures: (\w+) -->\n(.*?)^<!-- end -->$", re.M | re.S)
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`|\]\([^)]*\)", re.M | re.S)
"""Code, and where links lead to."""


def rewritten(text: str, records: Records) -> str:
    """The page with every block made anew; `unmade` says which cannot be."""
    return BLOCK.sub(
        lambda at: f"<!-- figures: {at[1]} -->\n{figures_of(at[1], records)}\n<!-- end -->", text
    )


def unmade(page: str, text: str, records: Records) -> Iterator[str]:
    """Why a page's blocks cannot be made, a line each."""
    names = [at[1] for at in BLOCK.finditer(text)]
    if len(re.findall(r"^<!-- figures:", text, re.M)) != len(names):
        yield f"{page}: a block of figures has no <!-- end -->"
    for name in names:
        if name not in BLOCKS:
            yield f"{page}: no block is called {name!r}; there are {', '.join(BLOCKS)}"
        elif missing := [one for one in BLOCKS[name].records if one not in records]:
            yield (
                f"{page}: {name!r} needs benchmarks/results/{missing[0]}.json; measure it with"
                " --save"
            )


def problems(
    page: str, text: str, records: Records, allowed: frozenset[str] = LOCAL_CHANGES
) -> Iterator[str]:
    """What is wrong with a page whose blocks can be made, a line each."""
    blocks = list(BLOCK.finditer(text))
    used = dict.fromkeys(one for at in blocks for one in BLOCKS[at[1]].records)
    yield from (f"{page}: {why}" for why in refused(records, used, allowed))
    for at in blocks:
        if figures_of(at[1], records) != at[2].removesuffix("\n"):
            yield (
                f"{page}: the figures of {at[1]!r} are not those of the records; run `python"
                " -m benchmarks.readme`"
            )
    if page in ("README.md", *OF_FIGURES):
        own = CODE.sub("", BLOCK.sub("", text))
        yield from (f"{page}: {line}" for line in typed(own, everywhere=page in OF_FIGURES))


def typed(own: str, *, everywhere: bool = False) -> Iterator[str]:
    """Figures that stand outside the marks, in a table or among the results; `own` is the page
    without its blocks."""
    for line in own.splitlines():
        if line.startswith("|") and re.search(r"\b\d", line):
            yield f"a table outside the marks has a figure: {line.strip()[:80]}"
    found = None if everywhere else RESULTS_SECTION.search(own)
    for line in own.splitlines() if everywhere else found[1].splitlines() if found else ():
        if re.search(r"\b\d", line):
            yield f"a figure outside the marks among the results: {line.strip()[:80]}"


def main() -> None:
    options = read_options(__doc__, check=False)
    records = read()
    pages = {page: (ROOT / page).read_text() for page in PAGES}
    found = [why for page, text in pages.items() for why in unmade(page, text, records)]
    for page, text in () if found else tuple(pages.items()):
        if not options.check:
            pages[page] = rewritten(text, records)
            write_text(ROOT / page, pages[page])
        found += problems(page, pages[page], records)
    print("\n".join(found) or f"{', '.join(PAGES)}: as the records say")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
