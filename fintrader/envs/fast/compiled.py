"""Options of compiled functions, which all of them share.

`error_model="numpy"` divides as numpy does, without a check for zero; `_nrt=False` counts no
references to arrays, which costs atomic operations for each row: only functions that allocate or
return arrays need it.
"""

from numba import njit

njit_entry = njit(nogil=True, error_model="numpy", cache=True)
"""Functions that Python calls; they run without the GIL."""
njit_arrays = njit(error_model="numpy", forceinline=True, cache=True)
"""Functions that return arrays."""
njit_inline = njit(error_model="numpy", forceinline=True, cache=True, _nrt=False)
"""Functions that become part of their caller, so that its loops are vectorised over them."""
njit_call = njit(error_model="numpy", cache=True, _nrt=False)
"""Functions for rare events, which would only make their caller longer."""
