"""Sources of bars: files and vendors. Every source delivers `fintrader.bars.bars.Bars`."""
