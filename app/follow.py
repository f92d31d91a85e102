"""Runs that lie in a store: copies on this disk, which a process of its own keeps up to date while the app is open.

python -m fintrader_app.follow URL PARENT
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from fintrader.errors import FintraderError

EVERY_SECONDS = 10.0


def follow(url: str) -> Path:
    """The folder of the copies, complete as of now; it is kept up to date until this process ends.

    Raises StorageError when the store cannot be read.
    """
    from fintrader.pipeline import open_store

    home = open_store(url)
    home.mkdir(parents=True, exist_ok=True)
    root = str(Path(__file__).resolve().parents[1])
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}
    subprocess.Popen(
        [sys.executable, "-P", "-m", "fintrader_app.follow", url, str(os.getpid())],
        stdin=subprocess.DEVNULL,
        env=variables,
    )
    return home


def main() -> None:
    """Bring the copies up to date again and again, until the process that asked for it is gone."""
    from fintrader.pipeline import open_store

    url, parent, told = sys.argv[1], int(sys.argv[2]), ""
    while os.getppid() == parent:
        try:
            open_store(url)
            told = ""
        except FintraderError as error:
            if str(error) != told:  # a store that is away stays away for a while: say so once
                told = str(error)
                print(f"fintrader app: {told}", file=sys.stderr)
        time.sleep(EVERY_SECONDS)


if __name__ == "__main__":
    main()
