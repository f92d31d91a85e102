"""Compare a run's settings with the defaults and with another run's, without the settings' models,
which need torch.

    defaults.json   every setting's default, made from the models by `python -m
                    fintrader.pipeline.defaults`

Defaults depend on the chosen member of a union (`agent.algo: sac` has others than `ppo`), so
the file has a set for each member. They are those of this version; a setting that this version
lacks is marked (`Setting.known`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fintrader.config import flatten_values

DEFAULTS = Path(__file__).with_name("defaults.json")
NAME = "name"
"""Setting that comparisons of runs leave out: the run's name."""


@dataclass(frozen=True)
class Setting:
    """One setting of a run."""

    value: Any
    default: Any = None
    known: bool = True
    """True if this version has the setting in this place."""

    @property
    def changed(self) -> bool:
        """True if it differs from this version's default."""
        return self.known and bool(self.value != self.default)


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(DEFAULTS.read_text())
    return table


def read_run_settings(config: Mapping[str, Any]) -> dict[str, Setting]:
    """Dotted name -> setting, of a run's `config.yaml` as plain values, in its order."""
    table = _table()
    free = table["mappings"]
    given = flatten_values(config, free)
    defaults = dict(table["settings"])
    for place, members in table["choices"].items():
        chosen = given.get(place)
        if isinstance(chosen, str) and chosen in members and chosen != defaults[place]:
            below = place.rpartition(".")[0] + "."
            others = {name: value for name, value in defaults.items() if not name.startswith(below)}
            defaults = {**others, **members[chosen], place: defaults[place]}
    for place, entries in free.items():
        defaults.setdefault(place, entries)
        defaults |= {f"{place}.{key}": value for key, value in entries.items()}
    within = tuple(f"{place}." for place in free)
    return {
        name: Setting(value, defaults.get(name), name in defaults or name.startswith(within))
        for name, value in given.items()
    }


def changed(config: Mapping[str, Any]) -> dict[str, Setting]:
    """Select the settings that differ from this version's defaults, and those unknown to it."""
    return {
        name: one for name, one in read_run_settings(config).items() if one.changed or not one.known
    }


def differing(configs: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Setting | None]]:
    """Find the settings that differ between runs: dotted name -> run -> setting (None where the run
    lacks it)."""
    runs = {run: read_run_settings(config) for run, config in configs.items()}
    names = dict.fromkeys(name for settings in runs.values() for name in settings if name != NAME)
    table = {name: {run: settings.get(name) for run, settings in runs.items()} for name in names}
    return {name: row for name, row in table.items() if not _are_alike(*row.values())}


def _are_alike(first: Setting | None, *others: Setting | None) -> bool:
    return first is not None and all(one and one.value == first.value for one in others)


def format_setting(value: Any) -> str:
    """Write a setting's value as YAML on one line; of a group only the settings that are set."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, Mapping):
        value = {
            name: below
            for name, below in value.items()
            if below or (below == 0 and below is not False)
        }
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
    return text.strip().removesuffix("\n...").strip()
