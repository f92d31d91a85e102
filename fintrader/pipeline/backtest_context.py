"""Context of a backtest: the origin of its figures, its data, and its assumptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fintrader.backtesting.data_caveats import describe_idle, describe_outside
from fintrader.backtesting.limits import LimitSettings
from fintrader.backtesting.result import Results
from fintrader.envs.settings import CONVENTIONS, EnvSettings
from fintrader.files import dump_json, hash_bytes, read_json
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline.config import RESULT_NEUTRAL, RunConfig, changed_results, load_config
from fintrader.records import to_json
from fintrader.report.recipe import describe_software
from fintrader.results.context import BacktestContext
from fintrader.runs import Manifest, RunFolder
from fintrader.tournament.ensemble import read_ensemble


@dataclass(frozen=True)
class Repeat:
    """A backtest of stored policies, made again."""

    command: str
    """The command line to repeat it."""
    trained: EnvSettings
    """Environment that the policies were trained in."""


def settings_hash(config: RunConfig, window: str) -> str:
    """SHA-256 of the settings that a window's backtest of a given run depends on."""
    made_with = {
        "env": config.trading.model_dump(mode="json"),
        "window": window,
        "null_model": config.backtest.null_model,
        "sensitivity": config.backtest.sensitivity,
        "limits": LimitSettings().model_dump(),
    }
    return hash_bytes(dump_json(made_with).encode())


def select_portable(config: RunConfig) -> dict[str, Any]:
    """Collect the run's name and every setting that can change a result (not `RESULT_NEUTRAL`)."""
    values = config.model_dump(mode="json")
    return {
        name: value
        for name, value in values.items()
        if name == "name" or name not in RESULT_NEUTRAL
    }


def describe_origin(
    config: RunConfig,
    manifest: Manifest,
    window: str,
    repeat: Repeat | None,
    *,
    title: str | None,
) -> BacktestContext:
    """Describe where a backtest's figures come from; nothing in it depends on the clock, and it
    names no local folder and no store.

    `title`: name of the window in the report.
    """
    env = config.trading
    trained = env if repeat is None else repeat.trained
    # Orders of a training fill at once, whatever `execution` says.
    other = [
        name
        for name in CONVENTIONS
        if name != "execution" and getattr(env, name) != getattr(trained, name)
    ]
    own = config if repeat is None else load_config(config.folder.config)
    verb = "run" if title is None else "walkforward"
    recipe: dict[str, Any] = {"verb": verb, "window": window, "config": select_portable(own)}
    if changed_results(own, config):
        recipe["backtest"] = select_portable(config)
    return BacktestContext(
        run=config.name,
        window=title or window,
        trials=int(manifest.values["trials"]),
        trading=env.terms(),
        changed={
            name: f"{getattr(env, name)} ({getattr(trained, name)} in training)" for name in other
        },
        seed=config.seed,
        settings_hash=settings_hash(config, window),
        recipe=recipe | describe_software(manifest.values),
        data_hash=manifest.values["data_hash"],
        config_hash=manifest.values["config_hash"],
        versions=manifest.values["versions"],
        command=manifest.values["command"] if repeat is None else repeat.command,
        run_command=None if repeat is None else manifest.values["command"],
    )


def add_ensembles(context: BacktestContext, folders: Sequence[RunFolder]) -> BacktestContext:
    """Add how far the ensembles of these searches were shrunk to the benchmark, and how alike their
    members are."""
    stored = [read_ensemble(folder) for folder in folders]
    return replace(
        context,
        shrinkage=tuple(to_json(one.shrinkage) for one in stored if one.shrinkage is not None),
        correlations=tuple(
            known
            for one in stored
            for k, row in enumerate(one.correlations)
            for known in row[:k]
            if known is not None
        ),
    )


def add_data(
    context: BacktestContext,
    path: Path,
    windows: Sequence[MarketTensors],
    results: Results,
) -> BacktestContext:
    """Add the extent of the windows' bars, the build's repairs and faults, and the reason if the
    `results` invest little.

    `path`: the market file; files of the build next to it are used where they exist.
    """
    first = windows[0]
    last = windows[-1]
    cells = sum(window.tradable.numel() for window in windows)
    traded = sum(int(window.tradable.sum()) for window in windows)
    listed = sum(int((~window.close.isnan()).sum()) for window in windows)
    summary: dict[str, Any] = {
        "symbols": first.num_assets,
        "bars": sum(window.num_bars for window in windows),
        "bar_minutes": first.bar_minutes,
        "bars_from_to": (
            f"{str(first.timestamps()[0])[:16]} to {str(last.timestamps()[-1])[:16]} UTC"
        ),
        "cells_with_a_trade": (
            f"{traded / cells:.2%} (the others carry the last price, and nothing trades there)"
        ),
        "cells_without_a_price": f"{1 - listed / cells:.2%} (not yet or no longer listed)",
    }
    market = first.provenance
    signal = market.planted_signal
    if signal is not None and signal.ic == 0:
        summary["planted_noise"] = signal.statement
    elif signal is not None:
        summary["planted_signal"] = (
            f"{signal.statement}: an information coefficient of {signal.ic:g} with the return of"
            f" the next {signal.horizon} bars"
        )
    if market.source is not None:
        summary["repaired_bars"] = market.repairs
        for name, faults in (("waived", market.waived), ("doubtful", market.doubtful)):
            kinds = Counter(fault.kind for fault in faults)
            if kinds:
                summary[f"{name}_faults"] = ", ".join(
                    f"{kind}: {count}" for kind, count in sorted(kinds.items())
                )
        summary["symbols_left_out"] = len(market.left_out)
    terms = context.trading
    participation = None if terms is None else terms.participation
    notes = {
        "rows_outside": describe_outside(market),
        "little_invested": describe_idle(windows, results, participation),
    }
    summary |= {key: text for key, text in notes.items() if text}
    survivors = market.survivorship
    if survivors is not None and (sentence := survivors.describe()):
        key = "survivorship" if survivors.survivors_only else "members_without_bars"
        summary[key] = sentence
    quality = path.with_name("quality.json")
    return replace(
        context,
        data=summary,
        market=market,
        quality=read_json(quality)["kinds"] if quality.is_file() else {},
    )
