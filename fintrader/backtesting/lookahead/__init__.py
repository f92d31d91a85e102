"""Does anything up to bar t depend on what comes after it? Change the future and compare.

The bars behind a market are cut off, or scrambled, from a bar on; the market is built again from
them, in a process that never saw more, and everything before that bar must be equal to the last
bit: prices, flags, features, context, index, and the observations, fills and equity of a policy
that reacts to every column. What differs is a leak, and has a name. What is not made of bars cannot
be proved so: it is listed, and columns that order the returns after them implausibly well raise an
alarm.
"""

from fintrader.backtesting.lookahead.alarms import Alarm, implausible
from fintrader.backtesting.lookahead.differences import Leak, compare, reacting_policy
from fintrader.backtesting.lookahead.prover import lookahead
from fintrader.backtesting.lookahead.report import LookaheadReport
