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


_PRICES = "ask|bid|last|mid|quote|trade"
_LENGTHS = r"\d+ ?(?:m|mins?|minutes?|h|hours?|d|days?)|m(?:1|5|15|30)|h[14]|d1|daily|hourly"
"""MetaTrader's M30, but not a future of June 2024 (M24)."""


def choose_kind(files: Sequence[BarFile]) -> list[BarFile]:
    """Choose the files of trades among those whose names say bid, ask or trade. Raises BarError for
    bids and asks alone, and for several lengths of bars."""
    for said, words in (("kinds of prices", _PRICES), ("lengths of bars", _LENGTHS)):
        kinds: dict[str, list[BarFile]] = {}
        for file in files:
            found = re.findall(rf"[._\s-]({words})(?![^._\s-])", file.stem, re.I)
            kinds.setdefault(found[-1].lower() if found else "", []).append(file)
        if len(kinds) < 2 or "" in kinds:
            continue
        chosen = kinds.get("trade") or kinds.get("last")
        if chosen is None:
            kind, chosen = next(iter(kinds.items()))
            raise BarError(
                f"{chosen[0].name}: by their names the files hold several {said}"
                f" ({', '.join(kinds)}); choose one, such as {kind}:"
                f" --name-pattern '{name_pattern(chosen, needs_date=False)}'"
            )
        files = chosen
    return list(files)


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
