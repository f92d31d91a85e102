"""Files of bars in random layouts: each is built as `init` proposes, and no cell may differ from the
frame that it was written from."""

import csv
import random

import pytest

from tests.bars.tables import COLUMNS
from tests.bars.test_zoo import MARKETS, Zoo, assert_cells
from tests.quick import slow_but

DATES = (
    *("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%Y/%m/%d", "%Y.%m.%d", "%Y年%m月%d日"),
    *("%Y%m%d", "%d%m%Y", "%y%m%d", "%d%m%y", "%d/%m/%y", "%-d/%-m/%Y", "%-m/%-d/%y"),
    *("%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%B %d, %Y", "%a %d %b %Y", "%A, %B %d, %Y"),
)
CLOCKS = (
    *("%H:%M", "%H:%M:%S", "%H:%M:%S.%f", "%-H:%M", "%H%M", "%H%M%S", "%H.%M"),
    *("%I:%M %p", "%-I:%M:%S %p"),
)
NAMES = (
    "",
    "date time symbol open high low close volume",
    "Date Time Ticker Open High Low Close Volume",
    "d t s o h l c v",
    "<DATE> <TIME> <TICKER> <OPEN> <HIGH> <LOW> <CLOSE> <VOL>",
    "Datum Uhrzeit Symbol Eröffnung Hoch Tief Schlusskurs Volumen",
)


def write_random(zoo, seed):
    """Write the zoo's bars in a random layout; return the layout and the path."""
    draws = random.Random(seed)
    table = zoo.long()
    date, clock = draws.choice(DATES), draws.choice(CLOCKS)
    is_split = not zoo.daily and draws.random() < 0.5
    if zoo.daily or is_split:
        table["date"] = table.ts.dt.strftime(date)
        table["time"] = table.ts.dt.strftime(clock)
    else:
        table["date"] = table.ts.dt.strftime(f"{date} {clock}")
    before, after = draws.choice([((), COLUMNS), (("volume",), COLUMNS[:4])])
    times = ["date", "time"] if is_split else ["date"]
    is_long = draws.random() < 0.4
    keys = draws.choice([["symbol", *times], [*times, "symbol"]]) if is_long else times
    names = draws.choice(NAMES)
    mark = draws.choice(",;\t|")
    look = {
        "sep": mark,
        "header": bool(names),
        "decimal": draws.choice(".,") if mark != "," else ".",
        "quoting": draws.choice([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    }
    called = dict(zip(NAMES[1].split(), names.split(), strict=False))
    is_newest_first = draws.random() < 0.25
    is_numbered = draws.random() < 0.2
    whole = table[[*keys, *before, *after]].rename(columns=called)
    parts = {"bars": whole} if is_long else dict(iter(whole.groupby(table.symbol)))
    for name, part in parts.items():
        part = part[::-1] if is_newest_first else part
        part.reset_index(drop=True).to_csv(zoo.folder / f"{name}.csv", index=is_numbered, **look)
    return [*keys, *before, *after, date, clock, names, look, is_newest_first, is_numbered]


@pytest.mark.parametrize("seed", slow_but(3, 17, every=range(200)))
def test_random_layouts_are_built_cell_by_cell(seed, tmp_path):
    zoo = Zoo(tmp_path / "bars", list(MARKETS)[seed % len(MARKETS)], daily=seed % 2 == 0)
    zoo.folder.mkdir()
    layout = write_random(zoo, seed)
    assert_cells(zoo, zoo.folder, tmp_path, layout)
