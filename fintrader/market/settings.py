"""`DataSettings`: everything that decides a market."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from fintrader.bars.calendar import Hours, WindowSettings
from fintrader.bars.checks.gates import read_waiver
from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.vendor_settings import (
    AlpacaSettings,
    CcxtSettings,
    VendorSettings,
    YahooSettings,
)
from fintrader.config import PathText, Settings, merge_values, read_yaml, validate
from fintrader.errors import ConfigError
from fintrader.market.features import (
    TRUSTED,
    FeatureSettings,
    lag_ns,
    read_names,
    reads_data,
)
from fintrader.market.planted_in import PlantedInSettings
from fintrader.market.synthetic import SIGNAL, SyntheticSettings
from fintrader.market.universe import UniverseSettings
from fintrader.results.market_description import PlantedDrift

SourceSettings = Annotated[
    FilesSettings
    | PlantedInSettings
    | SyntheticSettings
    | YahooSettings
    | AlpacaSettings
    | CcxtSettings,
    Field(discriminator="kind"),
]


class DataSettings(Settings):
    """Bars and composition of a market."""

    source: SourceSettings = SyntheticSettings()
    path: PathText | None = None
    """Bars of a `files` source: a table, a zip archive or a folder of tables, a glob pattern, or an
    fsspec URL of one; `data/bars` by default. If set, it replaces any other source."""
    start: dt.date | None = None
    """First day; by default the first with bars for files, 2019-01-02 for a synthetic market. A
    vendor needs it."""
    end: dt.date | None = None
    """Last day, included; by default the last with bars, for a vendor yesterday."""
    calendar: str = "XNAS"
    """The exchange's calendar, as exchange_calendars calls it (XNAS, XNYS, ..., or 24/7 for markets
    that never close)."""
    hours: Hours = "regular"
    """`extended` keeps bars before the open and after the close: 04:00 to 20:00 in New York, to
    17:00 on a half day. `clock` is for bars of full hours where sessions open at half past: the
    first bar begins before the open."""
    bar_minutes: int = Field(1, ge=1, le=1440)
    """Length of the market's bars; shorter bars are aggregated inside each session."""
    universe: UniverseSettings = UniverseSettings()
    benchmark: PathText | None = None
    """CSV or Parquet file (a path or an fsspec URL) of the index to compare with, which is named
    after the file: date (or ts) and close. Times without a zone are in the calendar's zone. None:
    the synthetic index, or all symbols in equal weights."""
    daily: PathText | None = None
    """Daily bars of the same symbols from another source (a table, a folder, a glob pattern or a
    URL; their layout is detected), with which the build compares opening prints and days."""
    features: FeatureSettings = FeatureSettings()
    windows: WindowSettings = WindowSettings()
    actions: PathText | None = None
    """CSV file or fsspec URL of splits and dividends: symbol, day, split, dividend_usd (the last
    two may be empty), or ticker, ex_date, kind (split, dividend), value. It overrides the vendor: a
    split of 1 or a dividend of 0 cancels one. Without actions, a split looks like a loss and
    dividends are never paid."""
    waive: tuple[str, ...] = ()
    """Faults that would stop the build (see `data quality`) but are accepted: a kind everywhere
    (`excursion_day`), in one symbol (`excursion_day:AAPL`) or on one day
    (`excursion_day:AAPL:2016-01-04`). The report lists the accepted faults."""
    store: PathText | None = None
    """Folder or fsspec URL that keeps the bars as chunks; `bars` next to the cache of markets by
    default."""

    _names = field_validator("features", mode="before")(read_names)

    @field_validator("windows", mode="before")
    @classmethod
    def _shares(cls, value: Any) -> Any:
        """Read a list of three shares."""
        return {"fractions": value} if isinstance(value, list | tuple) else value

    @field_validator("waive")
    @classmethod
    def _waivers(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for text in value:
            read_waiver(text)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        source = self.source
        taken = (*self.features.names, *self.features.extra)
        if isinstance(source, PlantedInSettings) and SIGNAL in taken:
            raise ValueError(f"{SIGNAL} is the name of the planted feature; rename the other one")
        if isinstance(source, VendorSettings) and self.path is None and self.start is None:
            raise ValueError(
                f"start: {source.kind} is asked for bars from this day on; set it, like 2024-01-02"
            )
        if isinstance(source, CcxtSettings) and "calendar" not in self.model_fields_set:
            raise ValueError(
                "pairs trade around the clock: set calendar to 24/7, or to an exchange's to keep"
                " its hours"
            )
        if self.start is not None and self.end is not None and self.end < self.start:
            raise ValueError("end is before start; swap the two dates")
        return self

    def effective(self) -> DataSettings:
        """Resolve the source: a `files` source where `path` is set, with the extra columns that
        features need."""
        source = self.source
        if self.path is not None and not isinstance(source, FilesSettings):
            source = FilesSettings()
        if isinstance(source, FilesSettings):
            factor = source.columns.get("factor")
            extra = self.features.extra
            known = [when for name, when in self.features.known_at.items() if name in extra]
            moments = [when for when in known if lag_ns(when) is None]
            wanted = dict.fromkeys((*extra, *moments, factor))
            needed = [name for name in wanted if name is not None and name not in source.extra]
            source = source.model_copy(update={"extra": (*source.extra, *needed)})
        return self.model_copy(update={"source": source})

    @property
    def bar_path(self) -> str:
        """Path or URL of the bars of a `files` source."""
        return "data/bars" if self.path is None else self.path


def read_settings(
    data: Settings | Mapping[str, Any] | Path | str, changes: Mapping[str, Any] | None = None
) -> DataSettings:
    """Read the data settings of a configuration (a name, a YAML file, settings or plain values),
    overridden by `changes`.

    Raises ConfigError naming the field that is wrong.
    """
    if isinstance(data, str | Path):
        values = read_yaml(Path(data))
        where = str(data)
        values = values.get("data", values)
    elif isinstance(data, Mapping):
        # as in a file, alone or in a whole configuration
        values = dict(data.get("data", data))
        where = "settings"
    else:
        settings = getattr(data, "data", data)  # of a whole run's configuration
        if not isinstance(settings, DataSettings):
            raise ConfigError(
                f"{type(data).__name__} holds no data settings; give DataSettings or a run's"
                " configuration"
            )
        if not changes:
            return settings
        values = settings.model_dump(exclude_unset=True)
        where = "settings"
    return validate(DataSettings, merge_values(values, changes or {}), where)


def raw_features(settings: DataSettings) -> tuple[str, ...]:
    """List the features that are not scaled: the planted signal, unless it is named as an extra
    column."""
    planted = planted_column(settings)
    return () if planted is None or planted in settings.features.extra else (planted,)


def planted_column(settings: DataSettings) -> str | None:
    """Return the feature that is planted to predict returns; None without one."""
    source = settings.source
    is_planted = isinstance(source, PlantedInSettings) or (
        isinstance(source, SyntheticSettings) and source.planted is not None
    )
    return SIGNAL if is_planted else None


def list_trusted_columns(settings: DataSettings) -> tuple[str, ...]:
    """List the columns from bars, from daily files and from a function's own data without a
    `features.known_at`: no test shows when their values became known."""
    taken = settings.features
    others = (*taken.extra, *taken.daily, *filter(reads_data, taken.names))
    trusted = [name for name in others if taken.known_at.get(name, TRUSTED) == TRUSTED]
    source = settings.source
    own = source.signals if isinstance(source, SyntheticSettings) else ()
    return tuple(name for name in trusted if name not in (planted_column(settings), *own))


def factor_column(settings: DataSettings) -> str | None:
    """Return the column of the factors that turn a file's prices into those that were traded."""
    source = settings.source
    return source.columns.get("factor") if isinstance(source, FilesSettings) else None


def describe_drift(settings: DataSettings, num_assets: int) -> PlantedDrift | None:
    """Describe the drift planted in a synthetic market; None where there is none."""
    source = settings.source
    if not isinstance(source, SyntheticSettings) or source.planted is None:
        return None
    planted = source.planted
    return PlantedDrift(
        feature=SIGNAL,
        drift_bps=planted["drift_bps"],
        switch=planted["switch"],
        num_assets=num_assets,
        bar_minutes=settings.bar_minutes,
    )
