"""A finished run's backtest again, from its stored policies: at other costs, say, or with a newer version."""

from __future__ import annotations

from pathlib import Path

from fintrader.errors import RunError
from fintrader.pipeline.configuration import RunConfig
from fintrader.pipeline.stages import RunOutcome, backtest_stage, conclude, control_stage, make_market
from fintrader.pipeline.walkforward import folds_of, judge_folds
from fintrader.pipeline.workplace import workplace
from fintrader.runs import Manifest


def backtest_run(folder: Path, config: RunConfig) -> RunOutcome:
    """Backtest a run's stored policies again, with the settings of `config` where they concern the backtest.

    A walk-forward is judged over all its folds. Every further look at a window is counted. Raises RunError when the
    run's tournament has not finished.
    """
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
            control_stage(config, manifest, market)
        if manifest.done("backtest"):  # every further look at a window makes it less of a test
            manifest.update(looks=int(manifest.values.get("looks", 1)) + 1)
        if not rolling:
            return backtest_stage(config, manifest, market, again=True)
        with manifest.stage("backtest"):
            judge_folds(config, manifest)
        manifest.saved()
        manifest.finish()
        return conclude(config, manifest)
