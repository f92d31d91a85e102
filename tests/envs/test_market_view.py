"""Views of a market: what environments share, and that the size of blocks changes nothing."""

from dataclasses import replace

import pytest
import torch

from fintrader.envs import EnvSettings, TradingEnv, benchmark, market_view
from fintrader.envs.market_view import build_market_view
from tests.factories import make_market


def test_environments_share_prices_and_the_market_keeps_its_features():
    market = make_market(60, 3)
    one = TradingEnv(market, EnvSettings(observation="factored"))
    dear = TradingEnv(market, EnvSettings(cost_bps=50.0, half_spread_bps=2.0))
    assert dear.view.quotes is one.view.quotes
    assert dear.view.spread.tolist() != one.view.spread.tolist()
    assert one.table.parts[0].data_ptr() == market.features.data_ptr()
    later = TradingEnv(market, EnvSettings(fill="next_close")).view.quotes
    assert not torch.equal(later, one.view.quotes)
    other = replace(market, volume=market.volume * 2)
    assert not torch.equal(TradingEnv(other).view.order_limit, one.view.order_limit)


@pytest.mark.parametrize("kind", ["cash", "equal_weight", "cap_weight", "buy_and_hold"])
def test_the_size_of_blocks_changes_nothing(kind, monkeypatch):
    market = make_market(60, 4, session_bars=10)
    shares = torch.rand(60, 4, generator=torch.Generator().manual_seed(1)) + 1.0
    market = replace(market, shares_outstanding=shares)
    settings = EnvSettings(benchmark=kind)
    whole = build_market_view(market, settings)
    for module in (benchmark, market_view):
        monkeypatch.setattr(module, "CELLS_AT_ONCE", 50)
    assert len(benchmark.split_sessions(market)) == 6  # the first two sessions are one block
    blocks = build_market_view(replace(market), settings)
    assert blocks.quotes is not whole.quotes
    for name in ("quotes", "inverse_root_volume", "rows", "benchmark"):
        assert torch.equal(getattr(blocks, name), getattr(whole, name)), name
    known = torch.zeros(4)
    for close, mark in zip(market.close, blocks.mark, strict=True):
        known = torch.where(close.isnan(), known, close)
        assert torch.equal(mark, known)
    assert bool(market.close.isnan().any())


def test_a_view_is_built_again_after_a_write_to_its_market():
    market = make_market(40, 3)
    settings = EnvSettings()
    before = build_market_view(market, settings).mark
    again = build_market_view(market, settings)
    assert again.quotes is build_market_view(market, settings).quotes
    market.close[10:] *= 2.0
    after = build_market_view(market, settings).mark
    torch.testing.assert_close(after[10:], 2.0 * before[10:])
    torch.testing.assert_close(after[:10], before[:10])


def test_a_market_made_in_inference_mode_has_a_view():
    with torch.inference_mode():
        view = build_market_view(make_market(40, 3), EnvSettings())
    torch.testing.assert_close(view.mark, build_market_view(make_market(40, 3), EnvSettings()).mark)


class Raced(dict):
    """Another thread stores its own result after each of ours."""

    def __setitem__(self, build, found):
        super().__setitem__(build, ("theirs", "theirs"))


def test_a_result_belongs_to_its_own_rules_when_threads_build():
    market = make_market(40, 3)
    market_view._RESULTS[market] = Raced()
    assert market_view.build_once(lambda market, rule: rule, market, "ours") == "ours"
