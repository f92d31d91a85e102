"""ONNX files act like the policies they came from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fintrader.agents import EnsemblePolicy, PolicyModule
from fintrader.agents.onnx import export_onnx
from fintrader.errors import CheckpointError
from tests.agents.test_policy import observations, policy

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")


@pytest.mark.parametrize("kind", ["per_asset", "mlp", "ensemble"])
def test_an_exported_policy_acts_alike(tmp_path: Path, kind: str) -> None:
    original: PolicyModule = policy(1, kind=kind) if kind != "ensemble" else EnsemblePolicy([policy(1), policy(2)])
    assert export_onnx(original, tmp_path / "p.onnx") < 1e-5
    session = onnxruntime.InferenceSession(str(tmp_path / "p.onnx"), providers=["CPUExecutionProvider"])
    obs = observations()
    (action,) = session.run(["action"], {"obs": obs.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(action, original(obs).numpy(), atol=1e-5)


def test_a_model_that_differs_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="differs"):
        export_onnx(policy(1), tmp_path / "p.onnx", tolerance=-1.0)
    assert not (tmp_path / "p.onnx").exists()
