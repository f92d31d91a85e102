"""`DataConfig`: the part of a run's configuration on the bars and where they are kept. Needs no
torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationInfo, field_validator

from fintrader import runs
from fintrader.bars.sources.layout import FilesSettings
from fintrader.bars.sources.presets import PRESETS
from fintrader.bars.sources.vendor_settings import VendorSettings
from fintrader.config import (
    REFERENCE,
    Settings,
    check_url,
    list_models,
    read_yaml,
    refuse_url,
    validate,
)
from fintrader.errors import ConfigError, FintraderError
from fintrader.files import is_run_folder, refuse_irregular
from fintrader.market.settings import DataSettings
from fintrader.reproducible import Reproducible
from fintrader.storage.mirror import Markets, find_mirror


@contextlib.contextmanager
def _as_value_error(prefix: str) -> Iterator[None]:
    """Raise our errors as ValueError, which pydantic reports with the name of the field."""
    try:
        yield
    except FintraderError as error:
        raise ValueError(str(error).removeprefix(prefix)) from None


class DataConfig(Settings):
    """The part of a run's configuration that commands on bars read."""

    name: str = "run"
    """Name of the run and of its folder below `runs_dir`; by default the name of the configuration
    file."""
    reproducible: Reproducible = "same_machine"
    """Where a seed gives the same bytes. `same_machine`: on processors of this kind;
    `across_machines`: on every x86-64 one under Linux with the same packages and C library, by
    fixed code paths and one thread: two to three times slower, and no GPU."""
    runs_dir: Path = Path("runs")
    """Folder that holds all runs."""
    cache: Path = Path("data/tensors")
    """Folder of built markets, shared by all runs."""
    store: str | None = None
    """URL below which all runs are kept (`s3://bucket/runs`); the local folders are then copies.
    None: local only."""
    data: DataSettings = DataSettings()

    @field_validator("name")
    @classmethod
    def _plain_name(cls, name: str) -> str:
        with _as_value_error(""):
            runs.RunFolder.named(name, Path())
        return name

    @field_validator("store")
    @classmethod
    def _url(cls, store: str | None) -> str | None:
        with _as_value_error("store: "):
            return None if store is None else check_url(store)

    @field_validator("runs_dir", "cache", mode="before")
    @classmethod
    def _local(cls, folder: Any, info: ValidationInfo) -> Any:
        with _as_value_error(f"{info.field_name}: "):
            refuse_url(str(folder), str(info.field_name))
        return folder

    @property
    def folder(self) -> runs.RunFolder:
        return runs.RunFolder.named(self.name, self.runs_dir)


def map_union(annotation: object, key: str) -> dict[str, type[Settings]]:
    """Map the discriminator values of a union to its settings models."""
    models = [model for model in list_models(annotation) if issubclass(model, Settings)]
    return {
        value: model for model in models for value in get_args(model.model_fields[key].annotation)
    }


Choices = Mapping[str, Mapping[str, type[Settings]]]
DATA_CHOICES: Choices = {
    "data.source.kind": map_union(DataSettings.model_fields["source"].annotation, "kind"),
    "data.source.preset": dict.fromkeys(PRESETS, FilesSettings),
}
"""Options that choose a settings model. Switching to another model keeps the settings that both
have."""


def load_data_config(path: Path | str, chosen: Mapping[str, str] | None = None) -> DataConfig:
    """Load the settings of bars from a configuration file; see `load_config`. Raises
    ConfigError."""
    values = read_values(Path(path))
    for option, choice in (chosen or {}).items():
        choose(values, option, choice, DATA_CHOICES)
    return validate(
        DataConfig,
        {name: values[name] for name in DataConfig.model_fields if name in values},
        str(path),
    )


def read_values(path: Path) -> dict[str, Any]:
    """Read a configuration file's values, its own name among them.

    Raises ConfigError, and UnsafePathError if the file is a link or a pipe in a run's folder;
    elsewhere a pipe is read.
    """
    if is_run_folder(path.parent):
        refuse_irregular(path)
    values = read_yaml(path)
    values.setdefault("name", path.parent.name if path.name == "config.yaml" else path.stem)
    return values


def choose(values: dict[str, Any], option: str, choice: str, choices: Choices) -> None:
    """Switch a union to the member `choice`, in place. Raises ConfigError for an unknown member."""
    models = choices[option]
    model = models.get(choice, models.get(REFERENCE) if ":" in choice else None)
    if model is None:
        raise ConfigError(
            f"--{option}: {choice!r} is unknown; choose one of {', '.join(sorted(models))}"
        )
    *path, key = option.split(".")
    for name in path:
        if isinstance(values.get(name), list):  # a list of agents gives way to one agent
            values[name] = {}
        if isinstance(values.get(name), str):  # the short form of a member without settings
            values[name] = {key: values[name]}
        values = values.setdefault(name, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{name}: expected settings, got {values!r}")
    if values.get(key) != choice:
        for name in set(values) - set(model.model_fields):
            del values[name]
        values[key] = choice
    if option == "data.source.preset":  # only files have presets
        values["kind"] = "files"


def find_store(config: DataConfig) -> str | None:
    """Return the URL of a run's store: the store that its folder mirrors, else the setting."""
    mirror = find_mirror(config.folder.root)
    return config.store if mirror is None else mirror.store_url


def open_markets(config: DataConfig) -> Markets | None:
    """Return the built markets of a run's store; None without a store."""
    store = find_store(config)
    return None if store is None else Markets(store)


def resolve_data(config: DataConfig) -> DataSettings:
    """Return the data's settings; a vendor's bars, which cost a request each, are kept in the run's
    store."""
    store = find_store(config)
    if (
        store is None
        or config.data.store is not None
        or not isinstance(config.data.source, VendorSettings)
    ):
        return config.data
    return config.data.model_copy(update={"store": f"{store}/.bars"})
