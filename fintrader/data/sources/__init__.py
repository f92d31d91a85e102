"""Where bars come from. Every source ends in one long schema, `fintrader.data.bars.Bars`."""
