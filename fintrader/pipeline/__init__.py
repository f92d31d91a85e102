"""The whole way in one place: bars → market → tournament → backtest, from one configuration."""
