"""What a backtest says of itself: how its figures were made, of which data, and what they take for
granted."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fintrader.backtesting.limits import LimitSettings
from fintrader.envs.settings import CONVENTIONS, EnvSettings
from fintrader.files import dump_json, read_json
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline.config import RunConfig, load_config
from fintrader.pipeline.run_recipe import run_recipe
from fintrader.records import to_json
from fintrader.runs import Manifest, RunFolder


@dataclass(frozen=True)
class Repeat:
    """A backtest of stored policies, made again."""

    command: str
    """The command line that gives it."""
    trained: EnvSettings
    """What the policies were trained in."""


def backtest_settings(config: RunConfig) -> EnvSettings:
    """The environment's settings, at the backtest's costs if it has its own."""
    if config.backtest.cost_bps is None:
        return config.trading
    return config.trading.model_copy(update={"cost_bps": config.backtest.cost_bps})


def settings_hash(config: RunConfig, window: str) -> str:
    """SHA-256 of everything a window's backtest is made with besides the run itself."""
    asked = {
        "window": window,
        "null_model": config.backtest.null_model,
        "sensitivity": config.backtest.sensitivity,
    }
    asked["limits"] = LimitSettings().model_dump()
    made_with = {"env": backtest_settings(config).model_dump(mode="json"), **asked}
    return hashlib.sha256(dump_json(made_with).encode()).hexdigest()


def provenance(
    config: RunConfig,
    manifest: Manifest,
    window: str,
    repeat: Repeat | None = None,
    *,
    title: str | None = None,
) -> dict[str, Any]:
    """What a report says of where its figures come from; nothing in it depends on the clock.

    `title` is what the report calls the window.
    """
    env = backtest_settings(config)
    trained = config.trading if repeat is None else repeat.trained
    other = [name for name in CONVENTIONS if getattr(env, name) != getattr(trained, name)]
    own = config if repeat is None else load_config(config.folder.config)
    context = {
        "run": config.name,
        "window": title or window,
        "trials": int(manifest.values["trials"]),
        "cost_bps": env.cost_bps,
        "trading": {name: getattr(env, name) for name in CONVENTIONS},
        "seed": config.seed,
        "settings_hash": settings_hash(config, window),
        "recipe": run_recipe(config, manifest, window, own=own, rolling=title is not None),
        **{
            name: manifest.values[name]
            for name in ("data_hash", "config_hash", "versions", "command")
        },
    }
    if other:
        context["changed"] = {
            name: f"{getattr(env, name)} ({getattr(trained, name)} in training)" for name in other
        }
    if repeat is not None:
        context |= {"command": repeat.command, "run_command": manifest.values["command"]}
    return context


def shrinkage_of(folders: Sequence[RunFolder]) -> dict[str, Any]:
    """How far the ensembles of these searches were drawn to the benchmark, and by what evidence;
    empty where they were not asked to be."""
    stored = [read_json(folder.ensemble / "ensemble.json").get("shrinkage") for folder in folders]
    known = [one for one in stored if one is not None]
    return {"shrinkage": known[0] if len(folders) == 1 else known} if known else {}


def data_summary(path: Path, windows: Sequence[MarketTensors]) -> dict[str, Any]:
    """For the report: how much of the windows has prices, what the build mended, and the faults
    found (`data quality`).

    `path` is the market file; what lies beside it is used where it is there.
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
        "cells_without_a_price": f"{1 - listed / cells:.2%} (before a listing, after an end)",
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
        summary["mended_bars"] = market.repairs
        for name, faults in (("waived", market.waived), ("doubtful", market.doubtful)):
            kinds = Counter(fault.kind for fault in faults)
            if kinds:
                summary[f"{name}_faults"] = ", ".join(
                    f"{kind}: {count}" for kind, count in sorted(kinds.items())
                )
        summary["symbols_left_out"] = len(market.left_out)
    survivors = market.survivorship
    if survivors is not None and (sentence := survivors.describe()):
        key = "survivorship" if survivors.survivors_only else "members_without_bars"
        summary[key] = sentence
    found = {"data": summary, "market": to_json(market)}
    if (quality := path.with_name("quality.json")).is_file():
        found["quality"] = read_json(quality)["kinds"]
    return found


def caveats(config: RunConfig, context: Mapping[str, Any]) -> list[str]:
    """What a run's data and windows take for granted, in words that complete "with ..."."""
    found = []
    if config.data.windows.embargo_sessions == 0:
        found.append("no embargo between the windows")
    if context["data"].get("survivorship"):
        found.append("a universe of survivors")
    if context["data"].get("planted_signal"):
        found.append("a made-up signal that knows the future among the features")
    return found
