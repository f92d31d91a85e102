from dataclasses import replace

import pytest
import torch

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.benchmark import benchmark_kind, benchmark_weights
from fintrader.errors import EnvError
from fintrader.results.market_description import MarketSource, Provenance
from tests.factories import make_market

MARKET = make_market(60, 4)


def test_capitalisations_are_prices_times_shares_of_those_that_are_members():
    shares = torch.rand(60, 4, generator=torch.Generator().manual_seed(1)) * 1e6 + 1e5
    weights = benchmark_weights(replace(MARKET, shares_outstanding=shares), "cap_weight")
    last = MARKET.last_bar.tolist()
    for t in range(60):
        worth = [0.0] * 4
        for n in range(4):
            lives = t < last[n] or last[n] == 59
            if lives and MARKET.member[t, n] and not torch.isnan(MARKET.close[t, n]):
                worth[n] = float(MARKET.close[t, n]) * float(shares[t, n])
        assert weights[t].tolist() == pytest.approx([w / sum(worth) for w in worth])
    assert (weights == 0).any()


def test_auto_is_equal_weight_on_real_bars_only():
    assert benchmark_kind(MARKET, "auto") == "cash"
    for source, kind in (("files", "equal_weight"), ("synthetic", "cash")):
        provenance = Provenance(MarketSource(source))
        assert benchmark_kind(replace(MARKET, provenance=provenance), "auto") == kind
    assert benchmark_kind(MARKET, "buy_and_hold") == "buy_and_hold"


def test_what_no_benchmark_can_be_made_of_is_refused_in_a_sentence():
    capital = EnvSettings(benchmark="cap_weight")
    with pytest.raises(
        EnvError, match=r"needs the shares outstanding: name their file in data.universe"
    ):
        TradingEnv(MARKET, capital)
    shares = torch.ones(60, 4)
    shares[7, 3] = torch.nan
    with pytest.raises(EnvError, match="has no number of shares for S003"):
        TradingEnv(replace(MARKET, shares_outstanding=shares), capital)
    empty = replace(MARKET, member=torch.zeros_like(MARKET.member))
    for kind in ("equal_weight", "buy_and_hold"):
        with pytest.raises(
            EnvError, match=f"{kind} needs members with prices, and this window has none"
        ):
            TradingEnv(empty, EnvSettings(benchmark=kind))
    TradingEnv(empty, EnvSettings(benchmark="cash"))
