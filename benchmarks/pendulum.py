"""A tournament on Pendulum beside seeds of the same budget: an illustration, without a test.

    python -m benchmarks.pendulum [--seeds 5] [--seed 1] [--runs FOLDER] [--save]

Every seed is a run of `configs/pendulum.yaml` (two generations of three SAC pods; the best one goes on
and is copied over the others, settings moved), and a second run of the same file whose six pods begin
from new weights with the configured settings. Both return an ensemble of two and a best pod by
validation; the figures are their mean undiscounted returns in the run's 100 test episodes. Finished
runs are in `runs/benchmarks`.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean

from benchmarks._bench import ROOT, FinishedRuns, Values, list_seeds, read_arguments
from fintrader.files import read_json

CONFIG = ROOT / "configs" / "pendulum.yaml"
SEEDS_ALONE = ["--tournament.order", "submission", "--tournament.search", "{}"]
"""`fresh` is 1 by default: no pod has a parent."""
WAYS: dict[str, list[str]] = {"tournament": [], "seeds": SEEDS_ALONE}


def race(way: str, seed: int, runs: Path) -> Values:
    """Run the configuration once: mean test returns, and CPU seconds."""
    name = f"{way}-{seed}"
    words = [sys.executable, "-m", "fintrader", "run", str(CONFIG), "--name", name]
    words += ["--seed", str(seed), "--runs-dir", str(runs), *WAYS[way]]
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, check=True, cwd=runs, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = read_json(runs / name / "evaluation" / "episodes.json")
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    returns = {policy: fmean(episodes) for policy, episodes in found["returns"].items()}
    return {"seed": seed, "returns": returns, "cpu_seconds": round(spent, 1)}


def main() -> None:
    """Every seed both ways, one after another."""
    options = read_arguments(__doc__, seeds=5, seed=1, runs=Path)
    finished = FinishedRuns("pendulum", options)
    settings = {"config": CONFIG.read_text(), "ways": WAYS}
    with tempfile.TemporaryDirectory() as scratch:
        home = options.runs or Path(scratch)
        runs = {
            way: [
                finished.get(f"{way}-{seed}", settings, lambda w=way, s=seed: race(w, s, home))
                for seed in list_seeds(options)
            ]
            for way in WAYS
        }
    finished.finish({"runs": runs})


if __name__ == "__main__":
    main()
