"""What the New run page starts: the same command line, in a process of its own that outlives the app.

    python -m fintrader_app.worker run CONFIG

It answers an interrupt even where the app's own parent had interrupts switched off, takes a polite end (SIGTERM) for
an interrupt, and steps back a little so that the app stays quick on the same cores.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from types import FrameType

NICENESS = 5


def main() -> None:
    """Set the signals and hand over to `fintrader`."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    from fintrader.cli import main as command

    command(sys.argv[1:])


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
