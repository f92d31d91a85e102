"""`fintrader data compare A B`: two sets of bars compared, cell by cell."""

from __future__ import annotations

import json
from pathlib import Path

from fintrader.cli.options import parse
from fintrader.errors import ConfigError
from fintrader.market.compare_bars import CompareSettings, compare_bars, open_side
from fintrader.records import to_json


class CompareOptions(CompareSettings):
    """Settings of a comparison of bars. Each side is a configuration, files, or a market."""

    as_json: bool = False
    """Print JSON."""
    out: Path = Path("comparison")
    """Folder that gets `comparison.json` and `comparison.html`."""
    cache: Path = Path("data/tensors")
    """Cache of markets; the folder next to it holds the bars of vendors."""


def compare_data(argv: list[str]) -> None:
    """Compare two sources of bars, cell by cell."""
    from fintrader.report.bar_comparison import describe, write_comparison

    sides = argv[:2]
    if len(sides) < 2 or any(word.startswith("-") for word in sides):
        raise ConfigError(
            "`fintrader data compare` needs A and B first: two configurations, files or built"
            " markets"
        )
    options = parse(CompareOptions(), argv[2:], "data compare")
    (a, calendar), (b, other) = (open_side(side, options, options.cache) for side in sides)
    if calendar != other:
        raise ConfigError(
            f"A has the calendar {calendar} and B has {other}; compare bars of one exchange"
        )
    report = compare_bars(a, b, calendar, tolerance_bps=options.tolerance_bps)
    written = write_comparison(report, options.out)
    if options.as_json:
        print(json.dumps(to_json(report)))
        return
    print(describe(report))
    for path in written:
        print(f"  {path}")
