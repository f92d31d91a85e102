"""Two environments that must be one to the last bit, whatever engine each steps with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from gymnasium.vector import AutoresetMode
from torch import Tensor

from fintrader.envs import TradingEnv
from tests.engines.strategies import endowment


def rows_of(obs: Any, rows: Tensor) -> list[Tensor]:
    """The chosen accounts' observations, flat or factored, as tensors."""
    return [value[rows] for value in obs.values()] if isinstance(obs, dict) else [obs[rows]]


def assert_bit_equal(
    slow: TradingEnv,
    fast: TradingEnv,
    actions: Iterable[Tensor],
    *,
    endowed: bool,
    equal: Callable[[Tensor, Tensor], bool] = torch.equal,
) -> None:
    """Step both with the same actions `[B, N]`, resets included: every output and the whole state
    must agree.

    `equal` compares observations.
    """
    mode = slow.autoreset_mode
    everyone = torch.ones(slow.num_envs, dtype=torch.bool, device=slow.device)
    for env in (slow, fast):
        env.reset(options=endowment(slow.num_envs, slow.market.num_assets, endowed))
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
        state = fast.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in slow.state_dict().items())
        finished = slow.account.finished.clone()
        if mode is AutoresetMode.DISABLED and bool(finished.any()):
            for env in (slow, fast):
                env.reset(options={"reset_mask": finished})
