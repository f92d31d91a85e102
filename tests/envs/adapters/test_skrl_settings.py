"""What the skrl wrapper refuses; a stand-in for skrl is enough to tell."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from fintrader.envs import TradingEnv
from fintrader.errors import EnvError
from tests.factories import make_market

ADAPTER = "fintrader.envs.adapters.skrl"


class Wrapper:
    """skrl's keeps the environment so."""

    def __init__(self, env: Any) -> None:
        self._env = env


@pytest.fixture
def adapter(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module, imported beside a stand-in and forgotten afterwards."""
    for name in ("skrl", "skrl.envs", "skrl.envs.wrappers", "skrl.envs.wrappers.torch"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["skrl.envs.wrappers.torch"].Wrapper = Wrapper  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, ADAPTER, raising=False)
    yield importlib.import_module(ADAPTER)
    sys.modules.pop(ADAPTER, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards_shaper": lambda reward, *_: 0.01 * reward}, "rewards_shaper"),
        ({"time_limit_bootstrap": True}, "time"),
    ],
)
def test_what_would_change_the_bootstrapped_value_is_refused(
    adapter: ModuleType, changes: dict[str, Any], message: str
) -> None:
    env = adapter.SkrlEnv(TradingEnv(make_market(60, 3), num_envs=2))
    cfg = {"time_limit_bootstrap": False, "rewards_shaper": None}
    env.bootstrap_with(SimpleNamespace(cfg=SimpleNamespace(**cfg)))
    with pytest.raises(EnvError, match=message):
        env.bootstrap_with(SimpleNamespace(cfg=SimpleNamespace(**cfg | changes)))
