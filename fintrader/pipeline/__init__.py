"""The whole pipeline: bars → market → tournament → backtest, from one configuration."""
