"""What was tried, what was found, and what could not be proved: never silently clean."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fintrader.backtesting.lookahead.differences import Leak
from fintrader.backtesting.lookahead.views import MODES
from fintrader.config import strip_folders
from fintrader.market.planted_in import PlantedInSettings
from fintrader.market.settings import DataSettings, factor_column
from fintrader.market.synthetic import SIGNAL, SyntheticSettings


@dataclass(frozen=True)
class LookaheadReport:
    """What was tried and what was found."""

    cuts: tuple[int, ...]
    """Bars from which on the whole market's future was changed."""
    leaks: tuple[Leak, ...]
    prefixes: tuple[int, ...] = ()
    """Bars from which on the future of a piece around them was changed."""
    alarms: tuple[str, ...] = ()
    """Columns that know implausibly much of the returns after them: no proof, but a reason to
    ask."""
    trusted: tuple[str, ...] = ()
    """What no view can prove because it is not made of bars."""
    untried: tuple[str, ...] = ()
    """What the pieces around a bar were too short for, or could not be built for."""

    @property
    def clean(self) -> bool:
        """Whether nothing was found: neither a leak nor a reason for an alarm."""
        return not self.leaks and not self.alarms

    def __str__(self) -> str:
        tried = f"{len(self.cuts)} cuts of the whole market, bars {', '.join(map(str, self.cuts))}"
        if self.prefixes:
            tried += f", {len(self.prefixes):,} of pieces"
        tried += f", future {' and '.join(MODES)}"
        lines = [f"{'Look-ahead found' if self.leaks else 'No look-ahead found'}: {tried}."]
        lines += [f"  {leak}" for leak in self.leaks]
        for title, found in (
            ("Alarm, implausible", self.alarms),
            ("Taken on trust", self.trusted),
            ("Tried on the whole market only", self.untried),
        ):
            lines += [f"{title}:", *(f"  {line}" for line in found)] if found else []
        return "\n".join(lines)


def gathered(leaks: Iterable[Leak]) -> tuple[Leak, ...]:
    """One of each name, the first that was found, and how often it was."""
    ordered = sorted(enumerate(leaks), key=lambda item: (item[1].what, item[0]))
    groups = [
        [leak for _, leak in group]
        for _, group in itertools.groupby(ordered, key=lambda item: item[1].what)
    ]
    return tuple(replace(group[0], times=sum(leak.times for leak in group)) for group in groups)


def trusted(
    data: DataSettings, benchmark: str, own_index: bool, unmoved: Sequence[str]
) -> tuple[str, ...]:
    """By name, what nobody computed from the bars that were changed; `unmoved` are columns that did
    not react.

    A file's rows are hidden from their dates on, but when each was really known only its maker can
    say.
    """
    features = data.features
    universe = data.universe
    source = data.source
    planted = planted_column(data)
    found = [
        f"feature {name}: a column of the bars as they came"
        for name in (*features.extra, *features.extra_raw)
        if name != planted
    ]
    if isinstance(source, PlantedInSettings):
        found.append(
            f"feature {planted}: planted, and"
            f" {'looks ahead on purpose' if source.ic else 'noise alone'}"
        )
    elif planted is not None:
        found.append(f"feature {planted}: planted on purpose, known when its bar has closed")
    if data.benchmark is not None:
        found.append(f"index level: {strip_folders(data.benchmark)}")
    elif own_index:
        found.append(f"index level: {benchmark}, as the source gave it")
    found += [f"context {name}: {strip_folders(path)}" for name, path in features.daily.items()]
    if universe.membership is not None:
        found.append(f"membership: {strip_folders(universe.membership)}")
    elif universe.index is not None:
        who = (
            "fintrader's own table"
            if universe.index == "nasdaq100"
            else "the package index-constitution"
        )
        found.append(f"membership: {universe.index} by {who}")
    if universe.shares_outstanding is not None:
        found.append(f"shares outstanding: {strip_folders(universe.shares_outstanding)}")
    if data.actions is not None:
        found.append(f"splits and dividends: {strip_folders(data.actions)}")
    factor = factor_column(data)
    if factor is not None:
        found.append(f"prices: as traded by the column {factor}")
    declared = {*features.extra, *features.extra_raw, *features.daily, planted}
    return (
        *found,
        *(
            f"{name}: stays the same when every bar changes, so it is not computed from them"
            for name in unmoved
            if name not in declared
        ),
    )


def planted_column(data: DataSettings) -> str | None:
    """The column that knows something of the returns ahead because somebody asked for it."""
    source = data.source
    if isinstance(source, PlantedInSettings):
        return SIGNAL
    if isinstance(source, SyntheticSettings) and source.planted is not None:
        return SIGNAL
    return None
