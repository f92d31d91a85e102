"""The profit of a backtest, recomputed from its list of trades."""


def trade_list_profit(result):
    """Recompute the profit from the trade list: cash flows, costs, interest, dividends and the
    holdings at the end."""
    flows = (
        result.income_usd.sum()
        - (result.trades["shares"] * result.trades["price_usd"]).sum()
        - result.trades["cost_usd"].sum()
    )
    interest = result.costs_usd.sum() - result.trades["cost_usd"].sum()
    held = result.trades.groupby("symbol")["shares"].sum()
    last = dict(zip(result.symbols, result.mark[-1], strict=True))
    return float(
        flows - interest + sum(shares * last[str(symbol)] for symbol, shares in held.items())
    )
