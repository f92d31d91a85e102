"""Self-contained pages: a stored backtest, its tear sheet, and a comparison of runs."""
