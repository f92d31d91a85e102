"""The environment's fast engines: `envs.account` compiled for the CPU (numba), under the same
names, and for CUDA (Triton)."""
