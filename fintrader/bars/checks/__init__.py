"""Faults of bars: their kinds, and functions that find them and change no bar."""

from fintrader.bars.checks.gates import find_faults
from fintrader.bars.checks.kinds import DOUBTFUL, KINDS, STOPPING
from fintrader.results.market_description import Fault

__all__ = ["DOUBTFUL", "KINDS", "STOPPING", "Fault", "find_faults"]
