"""Settings of a walk-forward and of the look-ahead check."""

from __future__ import annotations

from pydantic import Field, PositiveInt

from fintrader.config import Settings


class WalkForwardSettings(Settings):
    """Windows of a walk-forward."""

    sessions: tuple[PositiveInt, PositiveInt, PositiveInt] = (120, 40, 40)
    """Lengths of each training, validation and test window. With `anchored` the first one is the
    least length. The third one is the step from fold to fold, too: every session is tested at most
    once."""
    anchored: bool = False
    """Train every fold from the market's first session on, instead of over a moving window."""
    warm_start: bool = False
    """Start each fold's first pods from the leaderboard of the fold before it, instead of from new
    weights. Refused with `tournament.validation_folds`, whose learners must not have seen the
    blocks they are judged on."""


class LookaheadSettings(Settings):
    """Numbers of views of the market that the look-ahead check compares."""

    cuts: int = Field(3, ge=1)
    """Random bars after the training window at which the whole market's future is cut off, and
    scrambled."""
    prefixes: int = Field(200, ge=0)
    """Random bars, spread over all sessions, at which all symbols are cut off or scrambled, within
    a piece of the market around the bar."""
    run: int = Field(100, ge=0)
    """Number of consecutive bars to cut at, too, so that a look-ahead which recurs within that many
    bars is found."""
    exhaustive: bool = False
    """Cut off and scramble at every bar from the second session on. Takes hours."""
