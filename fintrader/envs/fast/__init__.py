"""The fast path of the environment: the same ledger, compiled for the CPU (numba) and for CUDA
(Triton)."""
