"""The report of a look-ahead check: trials, findings, and inputs that it cannot test."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fintrader.backtesting.lookahead.differences import Leak
from fintrader.config import strip_folders
from fintrader.market.features import TRUSTED
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

    leaks: tuple[Leak, ...]
    trials: Mapping[str, tuple[int, int]]
    """Stage -> numbers of trials: compared, and in all, without the untried ones."""
    alarms: tuple[str, ...] = ()
    """Columns that predict the returns after them implausibly well: no proof of a leak, but a
    reason to check."""
    trusted: tuple[str, ...] = ()
    """Inputs that are not made of bars, which changed bars cannot test."""
    untried: tuple[str, ...] = ()
    """Bars at which a market with another future could not be built."""
    is_kept: bool = False
    """True if the same call continues with the remaining trials."""

    @property
    def clean(self) -> bool:
        """True if there is neither a leak nor an alarm."""
        return not self.leaks and not self.alarms

    @property
    def unproved(self) -> tuple[str, ...]:
        """The numbers of remaining trials, by stage."""
        left = {stage: (total - done, total) for stage, (done, total) in self.trials.items()}
        return tuple(f"{one:,} of {all_:,} {stage}" for stage, (one, all_) in left.items() if one)

    def __str__(self) -> str:
        number = sum(done for done, _ in self.trials.values())
        heading = "Look-ahead found" if self.leaks else "No look-ahead found"
        lines = [f"{heading}: {number:,} markets with another future were compared."]
        lines += [f"  {leak}" for leak in self.leaks]
        tried = [
            f"{one:,} of {all_:,} {stage}" for stage, (one, all_) in self.trials.items() if one
        ]
        more = "; the same command resumes with them" if self.is_kept else ""
        for title, entries in (
            ("Implausibly good", self.alarms),
            ("Tried" if self.leaks else "Proved", tried),
            (f"Not proved, for lack of time{more}", self.unproved),
            ("Taken on trust", self.trusted),
            ("Not proved, because these could not be built", self.untried),
        ):
            lines += [f"{title}:", *(f"  {line}" for line in entries)] if entries else []
        return "\n".join(lines)


def gather(leaks: Iterable[Leak]) -> tuple[Leak, ...]:
    """Merge leaks by name: the first one, with all counts; sorted by name."""
    merged: dict[str, Leak] = {}
    for leak in leaks:
        first = merged.get(leak.name)
        merged[leak.name] = replace(first, times=first.times + leak.times) if first else leak
    return tuple(merged[name] for name in sorted(merged))


def list_trusted(
    data: DataSettings,
    benchmark: str,
    own_index: bool,
    unmoved: Sequence[str],
    opened: Mapping[str, Sequence[str]],
) -> tuple[str, ...]:
    """List the inputs that were not computed from the changed bars; `unmoved` are columns that did
    not react, `opened` the files that own features opened.

    A file's rows dated after the cut are hidden, but only its maker knows when each was published.
    """
    features = data.features
    universe = data.universe
    source = data.source
    planted = planted_column(data)
    known = dict.fromkeys((*features.extra, *features.daily), TRUSTED)
    known |= {name: f"known at: {when}" for name, when in features.known_at.items()}
    inputs = [
        f"feature {name}: a column of the bars, {known[name]}"
        for name in features.extra
        if name != planted
    ]
    if isinstance(source, PlantedInSettings):
        inputs.append(
            f"feature {planted}: planted, and"
            f" {'looks ahead on purpose' if source.ic else 'noise alone'}"
        )
    elif planted is not None:
        inputs.append(f"feature {planted}: planted on purpose, known when its bar has closed")
    files = {
        "index level": data.benchmark,
        **{f"context {name}, {known[name]}": path for name, path in features.daily.items()},
        "membership": universe.membership,
        "shares outstanding": universe.shares_outstanding,
        "splits and dividends": data.actions,
    }
    inputs += [f"{name}: {strip_folders(path)}" for name, path in files.items() if path is not None]
    if data.benchmark is None and own_index:
        inputs.append(f"index level: {benchmark}, as the source gave it")
    if universe.index is not None:
        own = universe.index == "nasdaq100"
        who = "fintrader's own table" if own else "the package index-constitution"
        inputs.append(f"membership: {universe.index} by {who}")
    factor = factor_column(data)
    if factor is not None:
        inputs.append(f"prices: multiplied by the column {factor}")
    inputs += [
        f"feature {name}: opens {', '.join(map(strip_folders, paths))}, which is the same in every"
        " future; join it to the bars as a column, with data.features.known_at"
        for name, paths in opened.items()
    ]
    declared = {*list_trusted_columns(data), planted}
    still = "stays the same when every bar changes, so it is not computed from them"
    return (*inputs, *(f"{name}: {still}" for name in unmoved if name not in declared))
