"""Steps a second of other libraries' training loops, on `TradingEnv` and on an environment of theirs.

    python -m benchmarks.borrowed [--libraries tianshou ...] [--fresh] [--save]

Each library runs in the environment that `make test-adapters` makes for it (`.venv-NAME` in
`--environments`), on one thread, both of its environments in turn within one process and in process
CPU time: 16 accounts, rollouts of 32 steps, episodes of 200, two hidden layers of 64, minibatches of
128, otherwise the library's defaults (`_borrowed.py`). `trading` and `reference` hold the median and
the range of the rounds, env-steps/s with the library's updates; `times` those of the rounds' own
ratios. Observations of the trading market are wider than a pendulum's, and its actions more.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks import _borrowed
from benchmarks._bench import (
    ROOT,
    FinishedRuns,
    call_in_child,
    read_arguments,
)
from benchmarks._libraries import LIBRARIES, Library


def find_python(library: Library, environments: Path) -> Path:
    """The interpreter of a library's environment. Raises SystemExit where there is none."""
    python = environments / f".venv-{library.environment}" / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"{python} is not there; `make test-adapters` makes it")
    return python


def main() -> None:
    """Measure and print."""
    options = read_arguments(
        __doc__,
        libraries=list(LIBRARIES),
        environments=str(ROOT),
        rounds=3,
        seconds=3.0,
        fresh=False,
    )
    finished = FinishedRuns("borrowed", options)
    settings = {"rounds": options.rounds, "seconds": options.seconds}
    found = {}
    for name in options.libraries:
        python = str(find_python(LIBRARIES[name], Path(options.environments)))
        asked = (_borrowed.measure, name, *settings.values())
        work = partial(call_in_child, *asked, python=python, PYTHONWARNINGS="ignore")
        found[name] = finished.get(name, settings, work)
    env = _borrowed.make_env()
    sizes = {"accounts": _borrowed.ACCOUNTS, "rollout": _borrowed.ROLLOUT}
    sizes |= {"observation_width": env.layout.width, "assets": env.layout.num_assets, **settings}
    finished.finish({**sizes, "libraries": found})


if __name__ == "__main__":
    main()
