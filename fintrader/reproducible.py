"""The setting `reproducible`: a seed gives the same bytes on this machine, or on every x86-64
processor (`across_machines`).

Libraries choose their code by the processor. Vectors of another width sum in another order, and
fused multiply-adds round once instead of twice: the last bits differ, and training amplifies the
difference. `across_machines` pins each library to code that every x86-64 processor has. Most
libraries choose when they are loaded, the C library when the process starts, so a process must
begin with the environment variables `VARIABLES`:

    python -m fintrader.reproducible SCRIPT ...      # python SCRIPT ... with VARIABLES

The commands of `fintrader` set the variables themselves; processes of a run inherit them.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from typing import Literal, NoReturn

from fintrader.errors import ConfigError
from fintrader.system import name_processor, read_starting_environment

Reproducible = Literal["same_machine", "across_machines"]

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
VARIABLES = {
    "ATEN_CPU_CAPABILITY": "default",  # torch's kernels
    "MKL_CBWR": "COMPATIBLE",  # torch's matrix products and vector functions
    # numpy's kernels, under the names of its versions; it ignores unknown ones
    "NPY_DISABLE_CPU_FEATURES": (
        "X86_V3 X86_V4 AVX F16C FMA3 AVX2 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL "
        "AVX512_ICL AVX512_SPR"
    ),
    "OPENBLAS_CORETYPE": "Nehalem",  # matrix products of numpy and scipy
    # part of numba's cache key, so that code for other processors is never loaded
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
    "NUMBA_DISABLE_INTEL_SVML": "1",
    # exp, log, sin, ...
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA,-FMA4,-AVX2_Usable,-FMA_Usable,-FMA4_Usable",
    **ONE_THREAD,  # threads split sums
}
"""Variables with which a process of a run `across_machines` begins."""
_CONTRARY = ("NPY_ENABLE_CPU_FEATURES",)
"""Variables that a library refuses together with `VARIABLES`."""


class RestartNeeded(ConfigError):
    """The process has to begin again with `VARIABLES`."""


def fix_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return `base`, overridden by `VARIABLES`."""
    return {name: value for name, value in base.items() if name not in _CONTRARY} | VARIABLES


def require(setting: Reproducible) -> None:
    """Check that this process computes as `setting` promises.

    Raises ConfigError where the system cannot keep the promise, RestartNeeded when the process
    began without `VARIABLES`.
    """
    if setting == "same_machine":
        return
    if (
        sys.platform != "linux"
        or platform.machine() != "x86_64"
        or platform.libc_ver()[0] != "glibc"
    ):
        raise ConfigError(
            "reproducible: across_machines holds between x86-64 processors under Linux with glibc,"
            f" and this is {platform.machine()} under {platform.system()}; use same_machine"
        )
    began = read_starting_environment()
    if any(name in began for name in _CONTRARY) or not VARIABLES.items() <= began.items():
        raise RestartNeeded(
            "reproducible: across_machines needs a process that begins with fixed code paths; use"
            " the command `fintrader`, or start your own program by `python -m"
            " fintrader.reproducible SCRIPT ...`"
        )
    settle()


def settle() -> None:
    """Set torch, if loaded, to one thread. In a process with `VARIABLES`, also switch oneDNN off,
    whose block sizes depend on the caches. Every process that computes results calls this.
    """
    torch = sys.modules.get("torch")  # never imported here: some processes do without it
    if torch is None:
        return
    torch.set_num_threads(1)
    if is_fixed():
        torch.backends.mkldnn.enabled = False


def is_fixed() -> bool:
    """Check that the environment, which processes started from here inherit, has `VARIABLES`."""
    return VARIABLES.items() <= os.environ.items()


def restart(words: list[str] | None = None) -> NoReturn:
    """Replace this process, under the same process id, by `python words` with `VARIABLES`. By
    default `words` are those of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    arguments = sys.orig_argv[1:] if words is None else words
    os.execve(sys.executable, [sys.executable, *arguments], fix_environment(os.environ))


def code_paths() -> dict[str, str]:
    """Return this processor's name, and the instruction sets that torch and numba use on it."""
    import torch
    from llvmlite.binding import get_host_cpu_name

    return {
        "processor": name_processor(),
        "torch": torch.backends.cpu.get_cpu_capability(),
        "numba": os.environ.get("NUMBA_CPU_NAME") or get_host_cpu_name(),
    }


if __name__ == "__main__":
    restart(sys.argv[1:])
