"""`load_market`: a market of whatever says which, be it a configuration, a finished file or bars in pandas."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from fintrader.config import Settings, overlay, validate
from fintrader.data.build import assemble, build_market
from fintrader.data.settings import DataSettings, read_settings
from fintrader.data.sources.files import FilesSettings
from fintrader.data.sources.frames import are_frames, frames_feed
from fintrader.data.tensors import MarketTensors
from fintrader.errors import ConfigError


def load_market(
    what: Settings | Mapping[str, Any] | pd.DataFrame | Path | str | None = None,
    *,
    cache: Path | str = "data/tensors",
    timezone: str | None = None,
    label: Literal["start", "end"] | None = None,
    **settings: Any,
) -> MarketTensors:
    """A market: out of the cache where it was built before, built first where it was not.

    `what`: a market file (`.safetensors`), a configuration (its name, a YAML file, or settings; a whole run's or only
    its `data` part), or bars in pandas: a long table (time, symbol, open, high, low, close, volume, in any order and in
    the usual spellings, the time also as index), a wide one with columns (field, symbol) or (symbol, field), or a
    dictionary of one table for each symbol. `settings` are fields of `DataSettings`, put over what the configuration
    says: `load_market(bars, bar_minutes=5, windows={"fractions": [0.6, 0.2, 0.2]})`.

    Of bars in pandas, `timezone` is the zone of times that carry none, `label` says whether a time is its bar's start
    (the default) or end, and `bar_minutes` is by default the length that the bars have.

    Raises ConfigError for a setting that is wrong, DataError (BarError, MarketError) for bars or a file that are.
    """
    if are_frames(what):
        return _market_of(what, timezone, label, settings)
    if timezone is not None or label is not None:
        raise ConfigError("timezone and label say how a DataFrame's times are read; of files, set them in `source`")
    if isinstance(what, str | Path) and Path(what).suffix == ".safetensors":
        if settings:
            raise ConfigError(
                f"{what} is built already, so {', '.join(settings)} cannot be set; give its configuration"
            )
        return MarketTensors.load(what)
    if (what is None or what == {}) and not settings:
        raise ConfigError("say which market: a configuration's name or path, a market file, bars, or settings")
    if not (what is None or isinstance(what, str | Path | Mapping | Settings)):
        raise ConfigError(
            f"no market can be made of {type(what).__name__}: give a configuration's name or path, a market file, "
            "settings, a DataFrame, or a dictionary of DataFrames"
        )
    chosen = read_settings({} if what is None else what, settings)
    return MarketTensors.load(build_market(chosen, cache=Path(cache)))


def _market_of(bars: Any, timezone: str | None, label: str | None, values: Mapping[str, Any]) -> MarketTensors:
    """The market of bars in pandas, built in memory by the same steps as that of files."""
    reading = {name: one for name, one in (("timezone", timezone), ("label", label)) if one is not None}
    chosen = overlay({"source": {"kind": "files", **reading}}, values)
    settings = validate(DataSettings, chosen, "settings").effective()
    if not isinstance(settings.source, FilesSettings):
        raise ConfigError("the bars are those of the DataFrame, so `source` takes only how files are read")
    zoned = "timezone" in chosen["source"]
    feed, minutes = frames_feed(bars, settings.source, zoned=zoned, calendar=settings.calendar)
    if "bar_minutes" not in values:
        settings = settings.model_copy(update={"bar_minutes": minutes})
    return assemble(settings, feed)[0]
