"""The same orders through backtesting.py and zipline-reloaded: their accounts must be fintrader's
to the cent."""

import numpy as np
import pytest

from tests.engines import cross_engine
from tests.engines.cross_engine import CENT, FILLS, REAL_DAILY, apart, backtest, fills_of, play

pytestmark = pytest.mark.slow
CASES = [(engine, fill) for engine, fills in FILLS.items() for fill in fills]
REAL = pytest.param(
    "real",
    marks=[
        pytest.mark.real_data(REAL_DAILY),
    ],
)


@pytest.fixture(scope="module", autouse=True)
def _installed():
    try:
        cross_engine.environment()
    except cross_engine.CannotInstallError as error:
        pytest.skip(f"{', '.join(cross_engine.PINS)} cannot be installed: {error}")


def market_of(source):
    return (
        cross_engine.synthetic_market() if source == "synthetic" else cross_engine.real_market()[0]
    )


@pytest.mark.parametrize(("engine", "fill"), CASES)
@pytest.mark.parametrize("source", ["synthetic", REAL])
def test_other_engines_come_to_the_same_cent(source, engine, fill):
    market = market_of(source)
    result, settings = backtest(market, fill)
    found = play(engine, market, result, settings)
    assert len(result.trades) > 2000
    assert found["fills"] == fills_of(market, result)
    gaps = apart(result, found)
    assert gaps["largest_equity_difference_usd"] < CENT / 2, gaps
    assert abs(gaps["commission_difference_usd"]) < CENT / 2, gaps


def test_commissions_in_whole_cents_are_seen():
    """The comparison is sharp enough: half a cent a fill at most, and it shows."""
    market = cross_engine.synthetic_market(sessions=120)
    result, settings = backtest(market, "next_open")
    gaps = apart(result, play("zipline-reloaded", market, result, settings, cents=True))
    assert CENT < gaps["largest_equity_difference_usd"] <= CENT / 2 * gaps["fills"]
    assert np.isclose(
        gaps["final_equity_difference_usd"], -gaps["commission_difference_usd"], atol=1e-4
    )
