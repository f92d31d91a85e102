"""The quickstart as a newcomer runs it: figures of its test window, its share of an oracle's
growth, its time.

    python -m benchmarks.quickstart [--seeds 7 1 2] [--runs FOLDER] [--save]

Every seed is a run of `configs/quickstart.yaml` in its own process, folder and data cache; the
first is that of `make run` on this machine. The ledger of looks begins empty. Shares are of the
log growth that the oracle made of the same window (`share_of_oracle`). The seconds are of the whole
command, `load` says how busy the machine was when it began. `--runs` keeps the folders; finished
ones are not run again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._bench import ROOT, Values, finish, read_arguments
from fintrader.results.formatting import PAPER_COLUMNS
from fintrader.results.run import Run

CONFIG = ROOT / "configs" / "quickstart.yaml"
SHOWN = ("ensemble", "best", "ridge", "buy_and_hold", "equal_weight", "benchmark", "oracle")
KEYS = ("sessions", *(key for key, _ in PAPER_COLUMNS))


def run(seed: int, runs: Path) -> None:
    """Run from nothing, in a folder of `runs`."""
    name = f"quickstart-{seed}"
    options = {"name": name, "seed": seed, "runs-dir": runs, "cache": runs / f"{name}-cache"}
    words = [sys.executable, "-m", "fintrader", "run", str(CONFIG)]
    words += [word for key, value in options.items() for word in (f"--{key}", str(value))]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    env["FINTRADER_HOME"] = str(runs / f"{name}-home")
    subprocess.run(words, check=True, cwd=ROOT, env=env)


def describe(folder: Path) -> Values:
    """Figures of a finished run."""
    opened = Run(folder)
    stored = opened.backtest("test")
    return {
        "seed": opened.config["seed"],
        "trials": opened.manifest["trials"],
        "ensemble_size": opened.config["tournament"]["ensemble_size"],
        "cost_bps": stored.context.trading.cost_bps,
        "metrics": {
            name: {key: stored.metrics[name][key] for key in KEYS}
            for name in SHOWN
            if name in stored.metrics
        },
        "verdict": stored.conclusion,
        "share_of_oracle": stored.context.share_of_oracle,
        "sharpe_by_capital_usd": {
            row.setting: row.sharpe for row in stored.sensitivity if row.kind == "capital_usd"
        },
    }


def main() -> None:
    """Run every seed; the configuration's own is 7."""
    options = read_arguments(__doc__, seeds=[7, 1, 2], runs=Path)
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        home = options.runs or Path(scratch)
        for seed in options.seeds:
            load = os.getloadavg()[0]
            began = time.monotonic()
            folder = home / f"quickstart-{seed}"
            is_fresh = not (folder / "backtest" / "metrics.json").is_file()
            if is_fresh:
                run(seed, home)
            seconds = time.monotonic() - began if is_fresh else None
            row = describe(folder) | {"seconds": seconds, "load": load}
            rows.append(row)
            share = row["share_of_oracle"]["ensemble"]
            print(f"seed {seed}: share {share:.3f}, {seconds or 0:.0f} s, {row['verdict']}")
    finish("quickstart", {"runs": rows}, options)


if __name__ == "__main__":
    main()
