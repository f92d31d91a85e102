from __future__ import annotations

import torch

from fintrader import seeding


def test_derived_seeds_are_stable_and_depend_on_every_part():
    assert seeding.derive(0, "pod", 1) == 89610436291909831
    seeds = {seeding.derive(root, name, k) for root in range(20) for name in ("env", "agent") for k in range(20)}
    assert len(seeds) == 20 * 2 * 20


def test_generators_repeat_and_differ():
    def draw(*names: object) -> torch.Tensor:
        return torch.rand(8, generator=seeding.generator(3, *names))

    assert torch.equal(draw("env"), draw("env"))
    assert not torch.equal(draw("env"), draw("agent"))
    assert (seeding.numpy_generator(3, "a").random(4) == seeding.numpy_generator(3, "a").random(4)).all()


def test_seeding_everything_repeats_layer_initialisation():
    def layer() -> torch.Tensor:
        seeding.seed_everything(5)
        return torch.nn.Linear(3, 3).weight.detach().clone()

    assert torch.equal(layer(), layer())
