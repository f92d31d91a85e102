"""What every test stands on."""

from __future__ import annotations

import signal

# Whoever starts the tests in the background of a shell without job control has SIGINT ignored, and so have all
# processes that tests start: Ctrl-C could not be tried.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
