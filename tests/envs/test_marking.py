"""Marking a whole interval at once; bar by bar the fused kernel does it, which must agree to the
last bit."""

import torch

from fintrader.envs import EnvSettings, account
from fintrader.envs.account import Fills, mark_to_market
from fintrader.envs.episodes import begin
from fintrader.envs.market_view import build_market_view
from tests.factories import make_market

COUNT = 24
ASSETS = 6


def make_books(config):
    """A market, accounts at random bars of it, the bars of their fills, and random holdings."""
    bars = 40 + 2 * config.decision_interval
    market = make_market(bars, ASSETS, events=True, volatility=0.03)
    view = build_market_view(market, config)
    draws = torch.Generator().manual_seed(3)
    key = torch.randint(1 << 40, (COUNT,), generator=draws)
    cash = torch.rand(COUNT, generator=draws, dtype=torch.float64) * 5e4
    nothing = torch.zeros(COUNT, ASSETS, dtype=torch.float64)
    length = torch.randint(1, bars, (COUNT,), generator=draws)  # many end inside the interval
    books = begin(view, key, torch.zeros_like(key), cash, nothing, length, config)
    shares = torch.randint(400, (COUNT, ASSETS), generator=draws)
    fill_bar = torch.minimum(books.bar + 1, books.end_bar)
    zero = torch.zeros_like(cash)
    fills = Fills(cash, shares.to(torch.float64), nothing, nothing, zero, zero)
    return view, books, fill_bar, fills


def test_parts_of_an_interval_add_nothing(monkeypatch):
    config = EnvSettings(decision_interval=30)
    market = make_books(config)
    whole = mark_to_market(*market, config, 30)
    monkeypatch.setattr(account, "MARKS_AT_ONCE", 7 * COUNT * ASSETS)
    parts = mark_to_market(*market, config, 30)
    assert torch.equal(whole.closes, parts.closes)


def test_the_last_and_the_highest_close_have_slopes():
    config = EnvSettings(decision_interval=9, fractional=True)
    view, books, fill_bar, fills = make_books(config)

    def mark(cash, shares):
        marks = mark_to_market(
            view, books, fill_bar, fills._replace(cash=cash, shares=shares), config, 9
        )
        return marks.equity, marks.highest

    inputs = fills.cash.clone().requires_grad_(), fills.shares.clone().requires_grad_()
    plain = mark(fills.cash, fills.shares)
    for got, right in zip(mark(*inputs), plain, strict=True):
        torch.testing.assert_close(got.detach(), right, rtol=0, atol=1e-4)
    assert not torch.equal(*plain)
    assert torch.autograd.gradcheck(mark, inputs, eps=1e-4, atol=1e-3, rtol=1e-5)


def test_changes_are_counted_where_they_can_happen():
    """An order every bar leaves only ends of symbols, since events come before the fill."""
    market = make_market(60, ASSETS, events=True)
    calm = make_market(60, ASSETS, gaps=False)
    assert build_market_view(calm, EnvSettings(decision_interval=9)).max_changes == 0
    assert build_market_view(market, EnvSettings()).max_changes == 1
    wide = build_market_view(market, EnvSettings(decision_interval=200))
    happens = wide.ends | (wide.event_row > 0)
    assert int(happens[2:].sum()) <= wide.max_changes <= int(happens[1:].sum())
    owing = EnvSettings(decision_interval=9, short=True, borrow_bps_per_year=1.0)
    assert build_market_view(calm, owing).max_changes == 9
