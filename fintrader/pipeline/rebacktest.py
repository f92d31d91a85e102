"""A finished run's backtest again, from its stored policies: at other costs, say, or with a newer version."""

from __future__ import annotations

import shlex
from pathlib import Path

from fintrader.envs.settings import CONVENTIONS
from fintrader.errors import ConfigError, RunError
from fintrader.pipeline.config import RunConfig, differences, load_config
from fintrader.pipeline.data import make_market
from fintrader.pipeline.evaluation import Repeat
from fintrader.pipeline.run import RunOutcome, backtest_stage, conclude, null_model_stage
from fintrader.pipeline.session import workplace
from fintrader.pipeline.walk_forward import check_window, evaluate_folds, folds_of
from fintrader.runs import Manifest


def backtest_run(folder: Path, config: RunConfig, *, called: str | None = None) -> RunOutcome:
    """Backtest a run's stored policies again, with `config` where it concerns the backtest and its trading.

    A walk-forward is judged over all its folds. Every further look at a window is counted, and the report says
    `called` (default: the folder) as the run of the command that gives it again. Raises ConfigError for a setting that
    the stored policies were trained with, RunError when the run's tournament has not finished.
    """
    own = load_config(folder / "config.yaml")
    repeat = Repeat(_command(called or str(folder), own, config), own.trading)
    config = config.model_copy(update={"name": folder.resolve().name, "runs_dir": folder.resolve().parent})
    with workplace(config.model_copy(update={"store": None})) as mirror:
        manifest = Manifest.load(config.folder.manifest)
        if mirror is not None:
            manifest.saved = mirror.publish
        rolling = bool(folds_of(config.folder))
        if not manifest.done("tournament"):
            verb = "walkforward" if rolling else "run"
            raise RunError(
                f"{folder}: its tournament has not finished; run `fintrader {verb} {folder}/config.yaml` first"
            )
        if not rolling:
            market = make_market(config, manifest)
            # The null model is the same search, so it trains in what the pods were trained in.
            null_model_stage(config.model_copy(update={"env": own.env}), manifest, market)
            return backtest_stage(config, manifest, market, repeat=repeat)
        check_window(config)
        with manifest.stage("backtest"):
            evaluate_folds(config, manifest, repeat)
        manifest.saved()
        manifest.finish()
        return conclude(config, manifest)


def _command(called: str, own: RunConfig, config: RunConfig) -> str:
    """The shell line for the settings in which `config` differs from the run's own. Raises ConfigError."""
    words = ["fintrader", "backtest", called]
    changed = differences(own, config)
    # Places change no result, but these three would be ignored without a word: the folder says them.
    changed |= {name: (None, getattr(config, name)) for name in _FIXED if getattr(own, name) != getattr(config, name)}
    for field, (_, value) in changed.items():
        option = [f"--{field.replace('_', '-')}", *map(str, value if isinstance(value, list) else [value])]
        if not field.startswith("backtest.") and field not in _ALLOWED:
            what = (
                "is said by the folder" if field in _FIXED else "says how policies are trained, and these are already"
            )
            other = "" if field in _FIXED else f" --name {config.name}-2"
            raise ConfigError(
                f"{option[0]}: {what}; a backtest takes --backtest.* and of --env.* how orders are carried out (fill, "
                f"decision-interval, costs, initial-cash-usd, limits). For another run: "
                f"`fintrader run {called}/config.yaml {shlex.join(option)}{other}`"
            )
        words += option
    return shlex.join(words)


_ALLOWED = frozenset(f"env.{name}" for name in CONVENTIONS)
_FIXED = ("name", "runs_dir", "store")
