"""Policies on the factored observation: the same numbers as on the flat one, for less work."""

import pytest
import torch
from torch import nn

from fintrader.envs import FactoredLinear
from fintrader.errors import EnvError

BARS = 50
WIDTH = 17
HIDDEN = 6


def make_layer(rows=BARS):
    """Random rows of 9 columns under 8 private ones."""
    torch.manual_seed(1)
    return FactoredLinear(nn.Linear(WIDTH, HIDDEN), torch.randn(rows, 9))


def samples(count, bars, seed=0):
    """`count` observations at `bars` different bars."""
    generator = torch.Generator().manual_seed(seed)
    clock = torch.arange(count) % bars
    return {
        "private": torch.randn(count, 8, generator=generator),
        "clock": clock[torch.randperm(count)],
    }


def flat_of(layer, obs):
    return torch.cat((obs["private"], layer.rows[obs["clock"]].to(obs["private"].dtype)), dim=-1)


@pytest.fixture
def projected(monkeypatch):
    """How many rows each projection saw."""
    sizes = []
    project = FactoredLinear._project

    def spy(layer, rows):
        sizes.append(len(rows))
        return project(layer, rows)

    monkeypatch.setattr(FactoredLinear, "_project", spy)
    return sizes


@pytest.mark.parametrize(
    ("count", "bars", "rows"), [(200, 50, 50), (40, 35, 35), (40, 36, 40), (40, 40, 40), (1, 1, 1)]
)
def test_result_and_gradients_are_the_flat_layers(count, bars, rows, projected):
    """Whichever way the rows are projected: `rows` is how many are."""
    layer = make_layer()
    obs = samples(count, bars)
    obs["private"].requires_grad_()
    twin = nn.Linear(WIDTH, HIDDEN)
    twin.load_state_dict(layer.flat.state_dict())
    flat = flat_of(layer, obs).detach().requires_grad_()
    weigh = torch.randn(count, HIDDEN)
    (layer(obs) * weigh).sum().backward()
    (twin(flat) * weigh).sum().backward()
    torch.testing.assert_close(layer(obs), twin(flat))
    for ours, theirs in zip(layer.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(obs["private"].grad, flat.grad[:, :8])
    assert projected == [rows, rows]
    assert "rows" not in layer.state_dict()


def test_in_eval_mode_all_rows_are_projected_once(projected):
    layer = make_layer().eval()
    obs = samples(20, 20)
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.1, fused=True)

    def agrees():
        """Rows that were projected for the answer."""
        projected.clear()
        with torch.no_grad():
            torch.testing.assert_close(layer(obs), layer.flat(flat_of(layer, obs)))
        return sum(projected)

    # 20 samples of 50 rows, then 40, then as many as there are rows.
    assert [agrees() for _ in range(5)] == [20, 20, BARS, 0, 0]
    with torch.inference_mode():
        torch.testing.assert_close(layer(obs), layer.flat(flat_of(layer, obs)))
    layer(obs).sum().backward()  # as a training loop that never says train()
    optimiser.step()
    assert [agrees() for _ in range(4)] == [20, 20, BARS, 0]
    layer.train()
    assert [agrees() for _ in range(4)] == [20] * 4
    layer.flat.load_state_dict(make_layer().flat.state_dict())
    layer.eval()
    assert [agrees() for _ in range(4)] == [20, 20, BARS, 0]
    layer.flat.weight.data.mul_(2.0)
    layer.eval()
    assert agrees() == 20
    assert not layer.requires_grad_(False)(obs).requires_grad


def test_a_layer_that_is_too_narrow_is_refused():
    with pytest.raises(EnvError, match="flat observation"):
        FactoredLinear(nn.Linear(9, 3), torch.zeros(5, 9))
