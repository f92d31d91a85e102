"""What must agree between a stored training and the call that continues it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from fintrader.agents.agent import Agent
from fintrader.agents.layout import layout_to_json
from fintrader.agents.policy import market_identity
from fintrader.config import Settings

if TYPE_CHECKING:
    from fintrader.data.tensors import MarketTensors

_ASIDE = {"num_envs", "workers", "evaluation_episodes"}
"""Settings of environments that say how a problem is played, not which; the number of accounts stands by itself."""
_hashes: WeakKeyDictionary[MarketTensors, str] = WeakKeyDictionary()


def identity_of(agent: Agent, env: Any) -> dict[str, Any]:
    """Plain JSON: the agent's settings, its layout, the accounts, and the market (every bar of it) and its rules."""
    market, settings = getattr(env, "market", None), getattr(env, "settings", None)
    return {
        "agent": agent.settings.model_dump(mode="json"),
        "layout": layout_to_json(agent.layout),
        "num_envs": env.num_envs,
        "market": None if market is None else _market(market),
        "env": settings.model_dump(mode="json", exclude=_ASIDE) if isinstance(settings, Settings) else None,
    }


def differences(stored: Any, own: Any, name: str = "") -> Iterator[str]:
    """Dotted names of what differs. What an older version did not store is not compared."""
    if isinstance(stored, dict) and isinstance(own, dict):
        for key in stored.keys() & own.keys():
            yield from differences(stored[key], own[key], f"{name}.{key}" if name else key)
    elif stored != own:
        yield name


def _market(market: MarketTensors) -> dict[str, Any]:
    # Replicas and rounds of one pod share a market: its bytes are read once.
    if market not in _hashes:
        _hashes[market] = market.content_hash()
    return {**market_identity(market), "num_bars": market.num_bars, "content_hash": _hashes[market]}
