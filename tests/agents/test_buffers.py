from __future__ import annotations

import pytest
import torch

from fintrader.agents.buffers import ReplayBuffer, RolloutBuffer, Transition
from fintrader.errors import CheckpointError


def step(t: int, envs: int = 2) -> Transition:
    """A transition whose numbers say `100 t + account`."""
    name = 100.0 * t + torch.arange(envs)
    return Transition(
        obs=name.unsqueeze(1).repeat(1, 3),
        action=name.unsqueeze(1),
        reward=name,
        terminated=torch.tensor([t % 3 == 0] * envs),
        truncated=torch.tensor([t % 4 == 0] * envs),
        next_obs=name.unsqueeze(1).repeat(1, 3) + 0.5,
    )


def buffer_after(steps: int, size: int = 5) -> ReplayBuffer:
    buffer = ReplayBuffer(size, 2, 3, 1, torch.device("cpu"))
    for t in range(steps):
        transition = step(t)
        buffer.add(transition, transition.action)
    return buffer


@pytest.mark.parametrize("steps", [3, 5, 13])
@pytest.mark.parametrize("n", [1, 3])
def test_samples_are_consecutive_steps_of_one_account_among_the_newest(steps: int, n: int) -> None:
    batch = buffer_after(steps).sample(400, n, torch.Generator().manual_seed(0))
    first, account = (batch.reward[0] / 100).floor(), batch.reward[0] % 100
    for k in range(n):
        torch.testing.assert_close(batch.reward[k], 100 * (first + k) + account)
        torch.testing.assert_close(batch.next_obs[k, :, 0], batch.reward[k] + 0.5)
        assert torch.equal(batch.terminated[k], (first + k) % 3 == 0)
        assert torch.equal(batch.truncated[k], (first + k) % 4 == 0)
    torch.testing.assert_close(batch.obs[:, 2], batch.reward[0])
    torch.testing.assert_close(batch.latent[:, 0], batch.reward[0])
    oldest = max(steps - 5, 0)
    assert set(first.tolist()) == set(range(oldest, steps - n + 1))
    assert set(account.tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("steps", [3, 13])
def test_a_stored_buffer_samples_and_continues_alike(steps: int) -> None:
    buffer, copy = buffer_after(steps), buffer_after(0)
    for name in ("obs", "next_obs", "latent"):  # what is large is stored from where it lies
        assert buffer.state_dict()[name].data_ptr() == getattr(buffer, name).data_ptr()
    copy.load_state_dict({name: tensor.clone() for name, tensor in buffer.state_dict().items()})
    for t in range(steps, steps + 4):
        for each in (buffer, copy):
            each.add(step(t), step(t).action)
        a, b = (each.sample(50, 2, torch.Generator().manual_seed(t)) for each in (buffer, copy))
        for name, tensor in a._asdict().items():
            assert torch.equal(tensor, getattr(b, name)), name


def test_a_buffer_of_another_shape_is_refused() -> None:
    with pytest.raises(CheckpointError, match="replay buffer"):
        buffer_after(0, size=3).load_state_dict(buffer_after(5).state_dict())


def test_a_rollout_keeps_time_first() -> None:
    buffer = RolloutBuffer(2, 2, 3, 1, torch.device("cpu"))
    buffer.add(step(0), step(0).action, None)
    assert not buffer.full
    buffer.add(step(1), step(1).action, torch.tensor([7.0, 8.0]))
    assert buffer.full
    assert buffer.reward.tolist() == [[0, 1], [100, 101]]
    assert buffer.obs[1, :, 2].tolist() == [100, 101]
    assert buffer.final_value.tolist() == [[0, 0], [7, 8]]
    assert buffer.terminated.tolist() == [[True, True], [False, False]]
    buffer.clear()
    assert not buffer.full
