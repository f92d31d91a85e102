"""What a cluster would do: constants measured here, a curve predicted from them, the orchestrator
tried at its size.

    python benchmarks/scaling.py [--pods 4800] [--quick] [--save]

constants    what a pod costs besides its training, each as a distribution
throughput   time to a fixed total of pods on 8 to 1,000 GPUs, simulated with samples of those
             constants and with the real orchestrator on a simulated clock, its own CPU seconds
             included
stress       1,000 to 10,000 pods with failures, preemptions, late results and deaths of the
             orchestrator: every result is applied once, capacity is honoured
paper        the figures of the paper (arXiv 2112.05923), which are times to a target

Nothing here ran on 80 GPUs: `throughput` is a prediction. docs/scaling.md states the model, what it
assumes and what it cannot say; `search.py` asks how much the selection itself gains. Draws
docs/images/scaling.png with `--save`. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.cluster import constants, prediction
from benchmarks.common import ROOT, finish

SHORT_POD = 60.0
LONG_POD = 600.0


def main() -> None:
    """Measure, predict, try, and say so."""
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--pods", type=int, default=4_800, help="total of the throughput curve")
    arguments.add_argument("--quick", action="store_true", help="everything small: does it work?")
    arguments.add_argument("--save", action="store_true")
    options = arguments.parse_args()
    if options.quick:
        options.pods = 200
    memory = Path("/dev/shm")
    with (
        tempfile.TemporaryDirectory(prefix="scaling-") as disk,
        tempfile.TemporaryDirectory(
            prefix="scaling-", dir=memory if memory.is_dir() else None
        ) as ram,
    ):
        samples, sizes = constants.measure(Path(disk), options.quick)
        print(
            {name: constants.distribution(taken)["mean_ms"] for name, taken in samples.items()},
            flush=True,
        )
        gpus = (8, 16, 80) if options.quick else prediction.GPUS
        curves: dict[str, Any] = {}
        for name, seconds, remote in (
            ("long_pods", LONG_POD, True),
            ("short_pods", SHORT_POD, True),
        ):
            curves[name] = prediction.throughput(
                Path(ram), samples, pods=options.pods, seconds=seconds, remote=remote, gpus=gpus
            )
            print(name, curves[name], flush=True)
        sizes_of_stress = (
            ((100, 16),) if options.quick else ((1_000, 100), (4_000, 400), (10_000, 1_000))
        )
        stress = [
            prediction.stress(Path(ram), pods=pods, gpus=count, quick=options.quick)
            for pods, count in sizes_of_stress
        ]
        for row in stress:
            print(row, flush=True)
    record: dict[str, Any] = {
        "constants": {name: constants.distribution(taken) for name, taken in samples.items()},
        "sizes": sizes,
        "throughput": curves,
        "stress": stress,
        "paper": prediction.paper(),
    }
    finish("scaling", record, seed=0, save=options.save)
    if options.save:
        from benchmarks.cluster.picture import redraw

        redraw(ROOT)


if __name__ == "__main__":
    main()
