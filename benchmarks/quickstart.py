"""The quickstart as a newcomer runs it: what its test window shows, its share of an oracle's
growth, its time.

    python benchmarks/quickstart.py [--seeds 7 1 2] [--runs FOLDER] [--save]

Every seed is a run of `configs/quickstart.yaml` in a process, a folder and a data cache of its own;
the first is what `make run` gives on this machine. Shares are of the log growth that the oracle
made of the same window (`share_of_oracle`). The seconds are of the whole command, `load` says how
busy the machine was when it began. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.common import finish
from fintrader.results.formatting import PAPER_COLUMNS
from fintrader.results.run import Run

CONFIG = ROOT / "configs" / "quickstart.yaml"
SHOWN = ("ensemble", "best", "ridge", "buy_and_hold", "equal_weight", "benchmark", "oracle")
KEYS = ("sessions", *(key for key, _ in PAPER_COLUMNS))


def run(seed: int, runs: Path) -> Path:
    """A run from nothing, its folder."""
    name = f"quickstart-{seed}"
    words = [
        sys.executable,
        "-m",
        "fintrader",
        "run",
        str(CONFIG),
        "--name",
        name,
        "--seed",
        str(seed),
    ]
    words += ["--runs-dir", str(runs), "--cache", str(runs / f"{name}-cache")]
    subprocess.run(
        words,
        check=True,
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    return runs / name


def figures(folder: Path) -> dict[str, Any]:
    """What a finished run came to."""
    opened = Run(folder)
    stored = opened.backtest("test")
    honesty = stored.honesty
    planted = stored.context["planted"]
    return {
        "seed": opened.config["seed"],
        "trials": opened.manifest["trials"],
        "ensemble_size": opened.config["tournament"]["ensemble_size"],
        "cost_bps": stored.context["cost_bps"],
        "metrics": {
            name: {key: stored.metrics[name][key] for key in KEYS}
            for name in SHOWN
            if name in stored.metrics
        },
        "verdict": honesty["verdict"],
        "share_of_oracle": planted["share_of_oracle"],
        "sharpe_by_capital_usd": {
            row["setting"]: row["sharpe"]
            for row in stored.sensitivity
            if row["kind"] == "capital_usd"
        },
        "stage_seconds": {
            name: stage["seconds"] for name, stage in opened.manifest["stages"].items()
        },
    }


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument(
        "--seeds", type=int, nargs="+", default=[7, 1, 2], help="the configuration's own is 7"
    )
    arguments.add_argument(
        "--runs", type=Path, help="keep the run folders here; finished ones are not run again"
    )
    arguments.add_argument("--save", action="store_true")
    options = arguments.parse_args()

    with tempfile.TemporaryDirectory() as scratch:
        home = options.runs or Path(scratch)
        rows = []
        for seed in options.seeds:
            load = os.getloadavg()[0]
            began = time.monotonic()
            fresh = not (home / f"quickstart-{seed}" / "backtest" / "metrics.json").is_file()
            folder = run(seed, home) if fresh else home / f"quickstart-{seed}"
            row = figures(folder) | {
                "seconds": time.monotonic() - began if fresh else None,
                "load": load,
            }
            rows.append(row)
            share = row["share_of_oracle"]["ensemble"]
            print(
                f"seed {seed}: share {share:.3f}, {row['seconds'] or 0:.0f} s, {row['verdict']}",
                flush=True,
            )
        finish("quickstart", {"runs": rows}, seed=options.seeds[0], save=options.save)


if __name__ == "__main__":
    main()
