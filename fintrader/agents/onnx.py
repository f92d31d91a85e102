"""Policies as ONNX files, for programs without PyTorch (extra `onnx`)."""

from __future__ import annotations

import io
import logging
import warnings
from pathlib import Path

import numpy as np
import torch

from fintrader.agents.policy import PolicyModule
from fintrader.errors import CheckpointError, ConfigError
from fintrader.files import write_bytes

OPSET = 18


def export_onnx(policy: PolicyModule, path: Path | str, *, tolerance: float = 1e-5, seed: int = 0) -> float:
    """Write `policy` as an ONNX model: input `obs [B, D]` float32, output `action [B, N]`, B free.

    Before the file is written, the model is run in onnxruntime on random observations and compared; returns the
    largest difference. Raises ConfigError when onnx and onnxruntime are not installed, CheckpointError when the
    difference exceeds `tolerance`.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # type: ignore[import-untyped,unused-ignore]
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"ONNX export needs {error.name}: pip install 'fintrader[onnx]'") from None
    draw = torch.Generator().manual_seed(seed)
    obs = torch.randn(7, policy.layout.width, generator=draw)
    policy = policy.cpu().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(
            policy,
            (obs,),
            dynamo=True,
            input_names=["obs"],
            output_names=["action"],
            opset_version=OPSET,
            dynamic_shapes={"obs": {0: torch.export.Dim("accounts")}},
            verbose=False,
        )
    assert program is not None
    buffer = io.BytesIO(program.model_proto.SerializeToString())
    session = onnxruntime.InferenceSession(buffer.getvalue(), providers=["CPUExecutionProvider"])
    worst = 0.0
    for rows in (1, 7, 64):
        obs = torch.randn(rows, policy.layout.width, generator=draw)
        with torch.no_grad():
            expected = policy(obs).numpy()
        (action,) = session.run(["action"], {"obs": obs.numpy()})
        worst = max(worst, float(np.abs(np.asarray(action) - expected).max()))
    if not worst <= tolerance:
        raise CheckpointError(f"the ONNX model differs from the policy by {worst:.2e}, more than {tolerance:.0e}")
    write_bytes(Path(path), buffer.getvalue())
    return worst
