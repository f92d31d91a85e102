"""Options that all compiled functions share.

`error_model="numpy"` divides as numpy does, without a check for zero; `_nrt=False` counts no
references to arrays, which costs atomic operations for each row: only functions that allocate or
return arrays need it.

A wrapper unpacks a caller's tuples of arrays, and takes as long to compile as its function. No
function has a wrapper for C, and only those of `njit_entry` have one for Python: calling others
from Python ends the process.
"""

import contextlib
import os
from functools import partial
from pathlib import Path

from numba import njit


def drop_old_code(package: Path) -> None:
    """Remove compiled functions that numba keeps below `package` if any source has changed since.

    numba checks only a function's own file, not the files of functions and constants inlined into
    it: after an update it would keep using the old ones.
    """
    folders = [package / "envs" / "fast", package / "agents" / "fast"]
    sources = [path for folder in (package / "envs", *folders) for path in folder.glob("*.py")]
    stats = ((path.name, path.stat()) for path in sorted(sources))
    stamp = "\n".join(f"{name} {stat.st_mtime_ns} {stat.st_size}" for name, stat in stats)
    record = folders[0] / "__pycache__" / "sources.txt"
    with contextlib.suppress(OSError):  # without rights here, numba keeps its code elsewhere
        if record.is_file() and record.read_text() == stamp:
            return
        for folder in folders:
            for index in (folder / "__pycache__").glob("*.nbi"):
                index.unlink(missing_ok=True)
        record.parent.mkdir(exist_ok=True)
        fresh = record.with_suffix(f".{os.getpid()}")
        fresh.write_text(stamp)
        fresh.replace(record)


drop_old_code(Path(__file__).parents[2])

njit_entry = partial(njit, error_model="numpy", cache=True, no_cfunc_wrapper=True, nogil=True)
"""Functions that Python calls; they run without the GIL."""
njit_inner = partial(njit_entry, no_cpython_wrapper=True)
"""Functions that only compiled ones call."""
njit_arrays = njit_inner(forceinline=True)
"""Inner functions that return arrays."""
njit_inline = njit_inner(forceinline=True, _nrt=False)
"""Inner functions that become part of their caller, so that its loops are vectorised over them."""
njit_call = njit_inner(_nrt=False)
"""Inner functions for rare events, which would only make their caller longer."""
