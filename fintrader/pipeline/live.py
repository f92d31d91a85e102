"""Real money: what `fintrader live` asks for before it trades a deployment, and what it refuses."""

from __future__ import annotations

from fintrader.config import Settings


class LiveSettings(Settings):
    """x"""


def live(name: str, settings: LiveSettings) -> None:
    raise NotImplementedError
