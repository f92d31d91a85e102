"""The path of the configuration that `fintrader init` writes. This module loads nothing heavy, so
that an existing file is refused at once."""

from __future__ import annotations

import re
from pathlib import Path

from fintrader.bars.sources.layout import ENDINGS
from fintrader.config import refuse_url
from fintrader.errors import ConfigError


def choose_config_path(bars: str, out: Path | None = None) -> Path:
    """Path of the configuration for these bars: `out`, or `my.yaml` here for `somewhere/my.csv`."""
    if out is not None:
        refuse_url(out, "out")
        return out
    name = re.sub(rf"({ENDINGS})+$", "", bars.rstrip("/").rpartition("/")[2], flags=re.IGNORECASE)
    plain = re.sub(r"[^A-Za-z0-9._-]+|^[^A-Za-z0-9]+|\.\.+", "-", name).strip("-.")
    return Path(f"{plain or 'bars'}.yaml")


def refuse_existing(path: Path, *, force: bool) -> None:
    """Raise ConfigError for an existing configuration, unless forced."""
    if path.exists() and not force:
        raise ConfigError(
            f"{path} already exists; choose another --out, or overwrite it with --force"
        )
