"""Look-ahead check: change a market's future, and compare everything before it.

The bars of a market are cut off, or scrambled, from some bar on. The market is built again from
them in a fresh process. Everything before that bar must be equal to the last bit: prices, flags,
features, context, index, and the observations, fills and equity of a policy that reacts to every
column. Each difference is a leak, reported by name. Inputs that are not made of bars cannot be
proved in this way: they are listed, and columns that order the returns after them implausibly well
raise an alarm.
"""

from fintrader.backtesting.lookahead.alarms import Alarm, implausible
from fintrader.backtesting.lookahead.differences import Leak, compare, draw_policy
from fintrader.backtesting.lookahead.prover import lookahead
from fintrader.backtesting.lookahead.report import LookaheadReport
