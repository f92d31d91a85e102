"""Where bars come from. Every source ends in one long schema, `fintrader.bars.bars.Bars`."""
