"""A market whose drift is shown: each asset's regime (+1 or -1) is a feature, and its drift has that sign."""

from __future__ import annotations

import numpy as np
import torch

from fintrader.data.tensors import MarketTensors

MINUTE_NS = 60_000_000_000


def planted_market(
    num_bars: int = 4000,
    num_assets: int = 8,
    *,
    drift: float = 2e-4,
    volatility: float = 8e-4,
    regime_bars: int = 200,
    noise_features: int = 2,
    session_bars: int = 390,
    seed: int = 0,
) -> MarketTensors:
    """`drift` and `volatility` per bar; a regime lasts `regime_bars` on average. Row t shows the drift of bar t + 1."""
    rng = np.random.default_rng(seed)
    flips = rng.random((num_bars + 1, num_assets)) < 1.0 / regime_bars
    start = rng.choice([-1.0, 1.0], size=num_assets)
    regime = start * np.where(np.cumsum(flips, axis=0) % 2 == 0, 1.0, -1.0)
    common = rng.normal(0, 0.6, (num_bars, 1))
    own = rng.normal(0, 0.8, (num_bars, num_assets))
    returns = drift * regime[:-1] + volatility * (common + own)
    close = 100 * np.exp(np.cumsum(returns, axis=0))
    open_ = np.vstack([np.full((1, num_assets), 100.0), close[:-1]])
    features = np.concatenate([regime[1:, :, None], rng.normal(size=(num_bars, num_assets, noise_features))], axis=2)
    session = np.arange(num_bars) // session_bars
    minutes = np.datetime64("2020-01-02T14:30", "ns").astype(np.int64) + MINUTE_NS * (
        session * 1440 + np.arange(num_bars) % session_bars
    )
    return MarketTensors(
        open=torch.tensor(open_, dtype=torch.float32),
        close=torch.tensor(close, dtype=torch.float32),
        features=torch.tensor(features, dtype=torch.float32),
        context=torch.zeros(num_bars, 1),
        tradable=torch.ones(num_bars, num_assets, dtype=torch.bool),
        member=torch.ones(num_bars, num_assets, dtype=torch.bool),
        session=torch.tensor(session),
        minutes=torch.tensor(minutes),
        benchmark=torch.tensor(close.mean(axis=1)),
        symbols=tuple(f"P{n}" for n in range(num_assets)),
        feature_names=("signal", *(f"noise{k}" for k in range(noise_features))),
        context_names=("zero",),
    )
