"""The recipe of a run: its configuration as stored in reports, and the way back from a report to a
configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fintrader.config import list_code, validate
from fintrader.errors import ReportError
from fintrader.pipeline.config import RESULT_NEUTRAL, RunConfig, changed_results
from fintrader.report.recipe import made_by
from fintrader.runs import Manifest


def run_recipe(
    config: RunConfig, manifest: Manifest, window: str, *, own: RunConfig, rolling: bool
) -> dict[str, Any]:
    """Describe the origin of a window's backtest as plain JSON, without times, local folders or the
    store's address.

    `own`: the configuration that the policies were trained with; `config` is what they are
    backtested with.
    """
    plain = {"verb": "walkforward" if rolling else "run", "window": window, "config": portable(own)}
    if changed_results(own, config):
        plain["backtest"] = portable(config)
    return plain | made_by(manifest.values)


def portable(config: RunConfig) -> dict[str, Any]:
    """Collect the run's name and every setting that can change a result (not `RESULT_NEUTRAL`)."""
    values: dict[str, Any] = config.model_dump(mode="json")
    return {
        name: value
        for name, value in values.items()
        if name == "name" or name not in RESULT_NEUTRAL
    }


def config_from(values: Any, where: str, *, allow_code: bool, **places: Any) -> RunConfig:
    """Read settings from a report and check them like a file's; `places` (name, runs_dir, cache)
    override them.

    Raises ReportError if they are damaged, or import code without `allow_code`, ConfigError for a
    configuration of another version.
    """
    if not isinstance(values, Mapping):
        raise ReportError(f"{where}: its configuration is damaged; ask for the file again")
    unknown = sorted(set(values) & {*RESULT_NEUTRAL} - {"name"})
    if unknown:
        raise ReportError(
            f"{where}: a report must not set {', '.join(unknown)}; ask for the file again"
        )
    named = list_code(values)
    if named and not allow_code:
        raise ReportError(
            f"{where}: its configuration imports {', '.join(named)}; read that code, then say"
            " --allow-code True"
        )
    return validate(RunConfig, {**values, **places}, where)
