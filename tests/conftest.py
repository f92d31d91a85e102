"""What every test stands on: Ctrl-C as in a terminal, and how many examples hypothesis draws.

`make test` runs what is not marked `slow`, with the profile "quick"; `make test-all` runs everything, with
`--hypothesis-profile=thorough`. Neither has a deadline: no test may depend on how fast the machine is.
"""

from __future__ import annotations

import signal

from hypothesis import settings

settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("thorough", max_examples=100, deadline=None)
settings.load_profile("quick")

# Whoever starts the tests in the background of a shell without job control has SIGINT ignored, and so have all
# processes that tests start: Ctrl-C could not be tried.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
