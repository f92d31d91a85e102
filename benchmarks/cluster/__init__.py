"""Parts of `benchmarks/scaling.py`: measured constants, the curve they predict, its picture, and a simulated cluster."""
