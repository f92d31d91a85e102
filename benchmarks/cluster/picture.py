"""The predicted curves beside the paper's points, as one picture for the docs (matplotlib, from the
extra `report`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

NAMES = {
    "long_pods": "pods of 600 s",
    "short_pods": "pods of 60 s",
}


def redraw(root: Path) -> None:
    """The picture of what is stored now: `scaling.json` and, if it is there, `search.json`."""
    results = root / "benchmarks" / "results"
    stored = {
        name: json.loads((results / f"{name}.json").read_text())
        for name in ("scaling", "search")
        if (results / f"{name}.json").exists()
    }
    if "scaling" in stored:
        draw(stored["scaling"], stored.get("search"), root / "docs" / "images" / "scaling.png")


def draw(record: dict[str, Any], search: dict[str, Any] | None, path: Path) -> None:
    """Left: efficiency of throughput. Right: speed-up to a target, of the search and of the
    paper."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.2), constrained_layout=True)
    for name, curve in record["throughput"].items():
        counts = [int(count) for count in curve["by_gpus"]]
        shares = [100 * row["efficiency"] for row in curve["by_gpus"].values()]
        left.plot(counts, shares, marker="o", markersize=4, label=NAMES[name])
    left.set(
        xscale="log",
        ylim=(0, 105),
        xlabel="GPUs",
        ylabel="% of ideal",
        title=f"Throughput: time to {curve['pods']:,} pods (predicted)",
    )
    left.set_xticks(counts, [str(count) for count in counts])
    left.minorticks_off()
    left.legend(loc="lower left", frameon=False)

    right.plot([16, 80], [1, 5], color="0.6", linestyle=":", label="ideal")
    for target, found in record["paper"].items():
        times = found["seconds"]
        right.plot(
            [16, 80],
            [1, times["16"] / times["80"]],
            marker="s",
            linestyle="--",
            label=f"paper, to a return of {target}",
        )
    for target, found in (search or {"targets": {}})["targets"].items():
        if "16" not in found["seconds"]:
            continue
        counts = [int(count) for count in found["seconds"]]
        speedups = [found["seconds"]["16"] / seconds for seconds in found["seconds"].values()]
        right.plot(
            counts,
            speedups,
            marker="o",
            markersize=4,
            label=f"simulated search, to {float(target):.0%}",
        )
    right.set(
        xscale="log",
        yscale="log",
        xlabel="GPUs",
        ylabel="speed-up over 16",
        title="Search: time to a target",
    )
    right.set_xticks([8, 16, 32, 80], ["8", "16", "32", "80"])
    right.set_yticks([0.5, 1, 2, 3, 5], ["0.5", "1", "2", "3", "5"])
    right.minorticks_off()
    right.legend(loc="upper left", frameon=False, fontsize=8)
    for axes in (left, right):
        axes.grid(True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, metadata={"Software": None})
    pyplot.close(figure)
