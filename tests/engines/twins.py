"""Two environments that must be one to the last bit, whatever engine each steps with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from fintrader.envs import TradingEnv
from fintrader.errors import EnvError, FintraderError
from tests.engines.strategies import endowment


def assert_same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """The same names, and tensors that are equal to the last bit."""
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        assert torch.equal(tensor, other[name]), name


@contextmanager
def refused(
    env: TradingEnv, message: str, error: type[FintraderError] = EnvError
) -> Iterator[None]:
    """An error that leaves the state of `env` alone."""
    before = env.state_dict()
    with pytest.raises(error, match=message):
        yield
    assert_same(before, env.state_dict())


def rows_of(obs: Any, rows: Tensor) -> list[Tensor]:
    """The chosen accounts' observations, flat or factored, as tensors."""
    return [value[rows] for value in obs.values()] if isinstance(obs, dict) else [obs[rows]]


def assert_bit_equal(
    slow: TradingEnv,
    fast: TradingEnv,
    actions: Iterable[Tensor],
    *,
    endowed: bool,
    cash: float = 2e6,
    equal: Callable[[Tensor, Tensor], bool] = torch.equal,
) -> None:
    """Step both with the same actions `[B, N]`, resets included: every output and the whole state
    must agree.

    `equal` compares observations.
    """
    mode = slow.autoreset_mode
    everyone = torch.ones(slow.num_envs, dtype=torch.bool, device=slow.device)
    for env in (slow, fast):
        env.reset(options=endowment(slow.num_envs, slow.market.num_assets, endowed, cash))
    for action in actions:
        a = slow.step(action)
        b = fast.step(action)
        assert all(map(equal, rows_of(a[0], everyone), rows_of(b[0], everyone)))
        assert all(torch.equal(a[place], b[place]) for place in (1, 2, 3))
        assert set(a[4]) == set(b[4])
        if mode is AutoresetMode.SAME_STEP:
            done = a[4]["_final_obs"]
            assert torch.equal(done, b[4]["_final_obs"])
            assert all(
                map(equal, rows_of(a[4]["final_obs"], done), rows_of(b[4]["final_obs"], done))
            )
        assert_same(slow.state_dict(), fast.state_dict())
        finished = slow.account.finished.clone()
        if mode is AutoresetMode.DISABLED and bool(finished.any()):
            for env in (slow, fast):
                env.reset(options={"reset_mask": finished})
