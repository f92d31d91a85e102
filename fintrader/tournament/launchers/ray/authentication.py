"""Whether a Ray cluster wants a token: `python -P authentication.py HOST:PORT` prints one word.

A process of its own because Ray settles how it authenticates once a process. `open`: it answered without
one; `closed`: it asked for one; `silent`: it did neither.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    os.environ["RAY_AUTH_MODE"] = "disabled"
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        os.environ.pop(name, None)
    from ray._raylet import GcsClient
    from ray.exceptions import AuthenticationError

    answer = "open"
    try:
        GcsClient(address=sys.argv[1]).get_all_node_info(timeout=10)
    except AuthenticationError:
        answer = "closed"
    except Exception:
        answer = "silent"
    print(answer, flush=True)
    os._exit(0)  # without the client's own farewell, which may take long


if __name__ == "__main__":
    main()
