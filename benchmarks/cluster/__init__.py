"""Parts of `benchmarks/scaling.py`: measured constants, the curve they predict, its picture, a
simulated cluster."""
