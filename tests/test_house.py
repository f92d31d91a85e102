from __future__ import annotations

from tools import house


def test_ppo_is_read_in_seven_files() -> None:
    """From `act` to the gradient step; more means that an algorithm no longer reads like one."""
    figures = house.walk_ppo()
    assert figures["ppo_walk_files"] == 7
    assert 1000 < figures["ppo_walk_lines"] <= 1500
