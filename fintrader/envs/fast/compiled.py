"""Options of compiled functions, which all of them share.

`error_model="numpy"` divides as numpy does, without a check for zero; `_nrt=False` counts no
references to arrays, which costs atomic operations for each row: only functions that allocate or
return arrays need it.

A wrapper, which takes a caller's tuples of arrays apart, takes as long to compile as its function:
none has one for C, and only those of `njit_entry` have one for Python. A call of the others from
Python ends the process.
"""

from functools import partial

from numba import njit

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
