from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load

from fintrader.agents import Budget, load_policy
from fintrader.tournament.fusion import learners as fusion
from fintrader.tournament.fusion.learners import average
from fintrader.tournament.spec import PodSpec
from fintrader.tournament.store import RunStore
from tests.engines.killing import dies_at
from tests.engines.races import first_spec, train_pod


def fused_spec(**changes: Any) -> PodSpec:
    return first_spec(**{"replicas": 2, "fusions": 3, "budget": Budget(env_steps=384), **changes})


def test_variances_are_merged_with_what_lies_between_their_means() -> None:
    torch.manual_seed(0)
    halves = [torch.randn(500, 3, dtype=torch.float64) * (1 + k) + 4 * k for k in range(2)]
    states = [
        {"modules.n.mean": half.mean(0), "modules.n.var": half.var(0, correction=0), "modules.w.var": torch.ones(1) * k}
        for k, half in enumerate(halves)
    ]
    fused = average(states)
    whole = torch.cat(halves)
    torch.testing.assert_close(fused["modules.n.mean"], whole.mean(0))
    torch.testing.assert_close(fused["modules.n.var"], whole.var(0, correction=0))
    assert fused["modules.w.var"].item() == 0.5  # a running variance without a mean of its own


def test_a_damaged_round_is_fused_again(tmp_path: Path) -> None:
    spec = fused_spec()
    whole, context = train_pod(tmp_path, spec)
    path = context.folder / "fused-1.safetensors"
    path.write_bytes(path.read_bytes()[:-7])
    again, _ = train_pod(tmp_path, spec)
    assert again.snapshot == whole.snapshot
    assert fusion.read_round(context.folder, 1) is not None


def test_replicas_learn_apart_and_go_on_from_their_average(tmp_path: Path) -> None:
    spec = fused_spec(halving=0.5, halving_rungs=(0.5,))
    output, context = train_pod(tmp_path, spec)
    assert output.env_steps == 384
    assert set(output.rung_scores) == {"0.5"}
    states = [fusion.read_agent_state(context.folder / "round-2" / f"replica-{k}") for k in range(2)]
    final = load(RunStore(context.run).get(str(output.snapshot)))
    # a matrix of weights: the counts of the normalisers are equal, and a loaded file has no order of its own
    weight = min(name for name in final if name.startswith("modules.policy") and final[name].ndim == 2)
    assert not torch.equal(states[0][weight], states[1][weight])
    torch.testing.assert_close(final[weight], (states[0][weight] + states[1][weight]) / 2)
    stored = load_policy(context.folder / "policy.safetensors").state_dict()
    assert any(torch.equal(tensor, final[weight]) for tensor in stored.values() if tensor.shape == final[weight].shape)


def test_threads_and_turns_agree_and_kills_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = fused_spec()
    whole, _ = train_pod(tmp_path / "a", spec)
    beside, _ = train_pod(tmp_path / "b", spec, device="cpu+cpu")
    assert beside.snapshot == whole.snapshot
    monkeypatch.setattr(fusion, "train", dies_at(4, fusion.train))
    with pytest.raises(KeyboardInterrupt):
        train_pod(tmp_path / "c", spec)
    again, _ = train_pod(tmp_path / "c", spec)
    assert again.snapshot == whole.snapshot
    assert (again.score, again.returns, again.env_steps) == (whole.score, whole.returns, whole.env_steps)
