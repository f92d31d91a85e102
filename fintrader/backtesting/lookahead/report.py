"""The report of a look-ahead check: trials, findings, and inputs that cannot be proved."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fintrader.backtesting.lookahead.differences import Leak
from fintrader.backtesting.lookahead.views import MODES
from fintrader.config import strip_folders
from fintrader.market.planted_in import PlantedInSettings
from fintrader.market.settings import (
    DataSettings,
    factor_column,
    list_trusted_columns,
    planted_column,
)


@dataclass(frozen=True)
class LookaheadReport:
    """Trials and findings of a look-ahead check."""

    cuts: tuple[int, ...]
    """Bars from which on the whole market's future was changed."""
    leaks: tuple[Leak, ...]
    prefixes: tuple[int, ...] = ()
    """Bars from which on the future of a piece around them was changed."""
    alarms: tuple[str, ...] = ()
    """Columns that know implausibly much of the returns after them: no proof, but a reason to
    ask."""
    trusted: tuple[str, ...] = ()
    """Inputs that no view can prove, because they are not made of bars."""
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
    found: dict[str, Leak] = {}
    for leak in leaks:
        first = found.get(leak.what)
        found[leak.what] = replace(first, times=first.times + leak.times) if first else leak
    return tuple(found[what] for what in sorted(found))


def trusted(
    data: DataSettings, benchmark: str, own_index: bool, unmoved: Sequence[str]
) -> tuple[str, ...]:
    """List the inputs that were not computed from the changed bars; `unmoved` are columns that did
    not react.

    A file's rows are hidden from their dates on, but only its maker can say when each was known.
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
    files = {
        "index level": data.benchmark,
        **{f"context {name}": path for name, path in features.daily.items()},
        "membership": universe.membership,
        "shares outstanding": universe.shares_outstanding,
        "splits and dividends": data.actions,
    }
    found += [f"{what}: {strip_folders(path)}" for what, path in files.items() if path is not None]
    if data.benchmark is None and own_index:
        found.append(f"index level: {benchmark}, as the source gave it")
    if universe.index is not None:
        own = universe.index == "nasdaq100"
        who = "fintrader's own table" if own else "the package index-constitution"
        found.append(f"membership: {universe.index} by {who}")
    factor = factor_column(data)
    if factor is not None:
        found.append(f"prices: as traded by the column {factor}")
    declared = {*list_trusted_columns(data), planted}
    still = "stays the same when every bar changes, so it is not computed from them"
    return (*found, *(f"{name}: {still}" for name in unmoved if name not in declared))
