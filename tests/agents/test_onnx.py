from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from fintrader.agents import PPO, EnsemblePolicy, NetworkSettings, PolicyModule, make_agent
from fintrader.agents.policy import export_onnx
from fintrader.envs import ObservationLayout
from fintrader.errors import CheckpointError
from tests.agents.test_policy import policy

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


def encoding(encoder: str) -> PolicyModule:
    """An untrained policy that reads the last bars too."""
    network = NetworkSettings.model_validate({"hidden": (8,), "encoder": encoder, "encoder_width": 6})
    agent = make_agent(PPO(network=network), ObservationLayout(5, 3, 2, lookback=4), seed=1)
    for parameter in agent.policy.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return agent.policy


POLICIES: dict[str, Callable[[], PolicyModule]] = {
    "ensemble": lambda: EnsemblePolicy([policy(1), policy(2)]),
    "mlp": lambda: policy(1, kind="mlp"),
    "gru": lambda: encoding("gru"),
    "attention": lambda: encoding("attention"),
}


@pytest.mark.parametrize(
    "kind", ["ensemble", *(pytest.param(kind, marks=pytest.mark.slow) for kind in list(POLICIES)[1:])]
)
def test_an_exported_policy_acts_alike(tmp_path: Path, kind: str) -> None:
    original = POLICIES[kind]()
    assert export_onnx(original, tmp_path / "p.onnx") < 1e-5
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"), providers=["CPUExecutionProvider"])
    obs = torch.rand(6, session.get_inputs()[0].shape[1])
    (action,) = session.run(["action"], {"obs": obs.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(action, original(obs).numpy(), atol=1e-5)


@pytest.mark.slow
def test_a_model_that_differs_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="differs"):
        export_onnx(policy(1), tmp_path / "p.onnx", tolerance=-1.0)
    assert not (tmp_path / "p.onnx").exists()
