"""Small markets with every irregularity, for tests that need no data pipeline."""

from __future__ import annotations

import numpy as np
import torch

from fintrader.data.tensors import MarketTensors, Windows

MINUTE_NS = 60_000_000_000


def make_market(
    num_bars: int = 60,
    num_assets: int = 3,
    num_features: int = 2,
    *,
    seed: int = 0,
    gaps: bool = True,
    session_bars: int = 20,
    volatility: float = 0.01,
) -> MarketTensors:
    """A random market. With `gaps`: missing bars, a late listing, a delisting and a non-member (if N >= 4)."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(0, volatility, (num_bars, num_assets))
    close = 50 * np.exp(np.cumsum(steps, axis=0)) * np.linspace(0.5, 2.0, num_assets)
    previous = np.vstack([close[:1], close[:-1]])
    open_ = previous * np.exp(rng.normal(0, volatility / 3, close.shape))
    tradable = np.ones_like(close, dtype=bool)
    member = np.ones_like(tradable)
    if gaps:
        missing = rng.random(close.shape) < 0.05
        missing[0] = False
        tradable &= ~missing
        for t in range(1, num_bars):  # a missing minute carries the last past close
            close[t, missing[t]] = close[t - 1, missing[t]]
            open_[t, missing[t]] = close[t - 1, missing[t]]
        if num_assets >= 4:
            late, ended = num_bars // 5, num_bars - num_bars // 5
            close[:late, 1] = open_[:late, 1] = np.nan
            close[ended:, 2] = open_[ended:, 2] = np.nan
            tradable[:late, 1] = tradable[ended:, 2] = False
            tradable[late, 1] = tradable[ended - 1, 2] = True
            member[num_bars // 3 : num_bars // 2, 3] = False
    session = np.arange(num_bars) // session_bars
    minutes = (np.datetime64("2020-01-02T14:30", "ns").astype(np.int64)) + MINUTE_NS * (
        session * 1440 + np.arange(num_bars) % session_bars
    )
    features = rng.normal(size=(num_bars, num_assets, num_features))
    features[np.isnan(close)] = 0.0
    third = num_bars // 3
    return MarketTensors(
        open=torch.tensor(open_, dtype=torch.float32),
        close=torch.tensor(close, dtype=torch.float32),
        features=torch.tensor(features, dtype=torch.float32),
        context=torch.tensor(rng.normal(size=(num_bars, 2)), dtype=torch.float32),
        tradable=torch.tensor(tradable),
        member=torch.tensor(member),
        session=torch.tensor(session, dtype=torch.int64),
        minutes=torch.tensor(minutes, dtype=torch.int64),
        benchmark=torch.tensor(100 * np.exp(np.cumsum(rng.normal(0, volatility, num_bars)))),
        symbols=tuple(f"S{n:03d}" for n in range(num_assets)),
        feature_names=tuple(f"f{f}" for f in range(num_features)),
        context_names=("c0", "c1"),
        windows=Windows((0, third), (third + 1, 2 * third), (2 * third + 1, num_bars)),
    )
