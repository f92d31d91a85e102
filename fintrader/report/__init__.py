"""One self-contained page of a stored backtest, the tear sheet, and several runs beside each
other."""
