"""The layout that the bars of a folder share, among files of other things."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fintrader.bars.sniff import Known, Layout, name_pattern, sniff
from fintrader.bars.sources.bar_files import csv_line, present_columns, share_layout
from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.listing import BarFile
from fintrader.config import validate
from fintrader.errors import BarError


def has_date(file: BarFile) -> bool:
    """True where the file's name says a date."""
    return re.search(r"(19|20)\d\d-?[01]\d-?[0-3]\d", file.stem) is not None


def choose_prices(files: Sequence[BarFile]) -> list[BarFile]:
    """Choose the files of trades among those whose names say bid, ask or trade. Raises BarError for
    bids and asks alone."""
    kinds: dict[str, list[BarFile]] = {}
    for file in files:
        word = re.search(r"[._\s-](ask|bid|last|mid|quote|trade)(?![^._\s-])", file.stem, re.I)
        kinds.setdefault(word[1].lower() if word else "", []).append(file)
    if len(kinds) < 2 or "" in kinds:
        return list(files)
    for kind in ("trade", "last"):
        if kind in kinds:
            return kinds[kind]
    kind, chosen = next(iter(kinds.items()))
    pattern = name_pattern(chosen, needs_date=False)
    raise BarError(
        f"{chosen[0].name}: by their names the files hold several kinds of prices"
        f" ({', '.join(kinds)}); choose one, such as {kind}: --name-pattern '{pattern}'"
    )


def choose_layout(
    files: Sequence[BarFile], known: Known
) -> tuple[Layout, list[BarFile], list[str]]:
    """Choose the layout of bars that most files have; return it, those files, and why each other
    one is left out. `known`: settings that the user gave.

    Raises BarError when no file has the layout of bars.
    """
    alike: dict[str, list[BarFile]] = {}
    for file in files:
        alike.setdefault(_describe_columns(file) if len(files) > 1 else "", []).append(file)
    faults = []
    for first, *_ in sorted(alike.values(), key=len, reverse=True):
        try:
            layout = sniff(first, has_date(first), known, is_alone=len(files) == 1)
        except BarError as error:
            faults.append(error)
            continue
        values = {name: value for name, value in layout.values.items() if value}
        values.pop("symbol", None)
        pattern = {"name_pattern": "{symbol}"} if layout.single else {}
        settings = validate(FilesSettings, values | pattern, "detected")
        return layout, *share_layout(files, settings)
    raise faults[0]


def _describe_columns(file: BarFile) -> str:
    """The names of the columns, or the first line without its numbers; empty where it cannot be
    read."""
    try:
        if file.kind != "csv":
            return ",".join(present_columns(file, FilesSettings()))
        return re.sub(r"\d+(\.\d+)?", "0", csv_line(file))
    except BarError:
        return ""
