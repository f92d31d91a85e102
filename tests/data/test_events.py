from __future__ import annotations

from typing import Any

import pytest
import torch

from fintrader.config import validate
from fintrader.data.build import make_market
from fintrader.data.quality import quality_report
from fintrader.data.settings import DataSettings
from fintrader.errors import DataError


def synthetic(*, num_symbols: int = 12, **events: Any) -> DataSettings:
    source = {"kind": "synthetic", "num_symbols": num_symbols, "num_sessions": 24, "seed": 4, "events": events}
    return validate(DataSettings, {"source": source}, "test")


@pytest.mark.parametrize("event", ["splits", "dividends"])
def test_corporate_actions_show_no_profit_or_loss(event: str) -> None:
    plain, _ = make_market(synthetic())
    market, _ = make_market(synthetic(**{event: 3}))
    returns = [torch.log(one.close[1:] / one.close[:-1]) for one in (plain, market)]
    torch.testing.assert_close(returns[0], returns[1], rtol=0, atol=2e-6)
    changed = (market.close[0] / plain.close[0] - 1).abs() > 1e-3
    assert int(changed.sum()) == 3


def test_listings_and_delistings_are_seen() -> None:
    settings = synthetic(delistings=2, late_listings=3)
    report = quality_report(settings)
    assert report["kinds"] == {"ended": 2, "late_listing": 3}
    market, built = make_market(settings)
    assert built["ended"] == sorted(fault["symbol"] for fault in report["faults"] if fault["kind"] == "ended")
    nan = torch.isnan(market.close)
    assert int(nan[0].sum()) == 3
    assert int(nan[-1].sum()) == 2
    assert not built["survivorship"]["survivors_only"]


def test_halts_silence_everybody() -> None:
    settings = synthetic(halts=2, halt_bars=14)
    assert quality_report(settings)["kinds"] == {"market_hole": 2}
    market, _ = make_market(settings)
    assert int((~market.tradable).all(dim=1).sum()) == 28
    assert not torch.isnan(market.close).any()


def test_more_events_than_stocks_are_refused() -> None:
    with pytest.raises(DataError, match="need as many stocks"):
        make_market(synthetic(num_symbols=2, splits=3))
