"""Sources of bars. Every source delivers the same long table, `fintrader.bars.bars.Bars`."""
