"""Settings of a walk-forward and of the look-ahead check."""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveInt

from fintrader.config import Settings


class WalkForwardSettings(Settings):
    """Windows of a walk-forward."""

    sessions: tuple[PositiveInt, PositiveInt, PositiveInt] = (120, 40, 40)
    """Lengths of each training, validation and test window. With `anchored` the first length is
    that of the shortest training window. Each fold starts one test length after the previous one,
    so that every session is tested at most once."""
    anchored: bool = False
    """Train every fold from the market's first session on, instead of over a moving window."""
    warm_start: bool = False
    """Start each fold's first pods from the previous fold's leaderboard instead of from new
    weights. Refused with `tournament.validation_folds`, whose learners must not have seen the
    blocks they are judged on."""


class LookaheadSettings(Settings):
    """Time for the look-ahead check."""

    budget_minutes: NonNegativeFloat = 2.0
    """Minutes for the second stage, which tries bar after bar; the first stage (the whole market
    with other futures) always finishes. 0: first stage only. The same command continues the second
    stage."""
