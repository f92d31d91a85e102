"""The features as pandas one-liners and plain loops, straight from their definitions."""

from __future__ import annotations

import numpy as np
import pandas as pd


def reference_features(bars: pd.DataFrame) -> pd.DataFrame:
    """Columns open, high, low, close, volume -> the features by name, NaN while undefined. Slow and obvious."""
    close, high, low = bars.close, bars.high, bars.low
    out = pd.DataFrame(index=bars.index)
    for window in (1, 5):
        out[f"return_{window}"] = np.log(close / close.shift(window))
    step = np.log(close).diff().fillna(0.0)
    out["volatility_30"] = np.sqrt((step**2).rolling(30).mean())
    out["volume_30"] = np.log((1 + bars.volume) / (1 + bars.volume.rolling(30).mean()))
    change = close.diff().fillna(0.0)
    up = change.clip(lower=0).ewm(alpha=1 / 30, adjust=True).mean()
    down = (-change.clip(upper=0)).ewm(alpha=1 / 30, adjust=True).mean()
    out["rsi_30"] = (100 * up / (up + down)).where(np.arange(len(bars)) >= 30)
    fast, slow = (close.ewm(span=span, adjust=True).mean() for span in (12, 26))
    out["macd"] = ((fast - slow) / close).where(np.arange(len(bars)) >= 25)
    mean, spread = close.rolling(20).mean(), close.rolling(20).std()
    out["bollinger_upper"] = (mean + 2 * spread) / close - 1
    out["bollinger_lower"] = (mean - 2 * spread) / close - 1
    for window in (30, 60):
        out[f"sma_{window}"] = close.rolling(window).mean() / close - 1
    typical = (high + low + close) / 3
    deviation = typical.rolling(30).apply(lambda window: np.abs(window - window.mean()).mean(), raw=True)
    out["cci_30"] = (typical - typical.rolling(30).mean()) / (0.015 * deviation)
    out["dx_30"] = _dx(high.to_numpy(), low.to_numpy(), close.to_numpy(), 30)
    return out


def _dx(high: np.ndarray, low: np.ndarray, close: np.ndarray, window: int) -> np.ndarray:
    """Wilder's directional index with the true range written out, bar by bar."""
    alpha = 1 / window
    plus = minus = span = weight = 0.0
    result = np.full(len(close), np.nan)
    for t in range(len(close)):
        rise, fall = (high[t] - high[t - 1], low[t - 1] - low[t]) if t else (0.0, 0.0)
        true_range = max(high[t] - low[t], abs(high[t] - close[t - 1]), abs(low[t] - close[t - 1])) if t else 1.0
        plus = (1 - alpha) * plus + (rise if rise > fall and rise > 0 else 0.0)
        minus = (1 - alpha) * minus + (fall if fall > rise and fall > 0 else 0.0)
        span = (1 - alpha) * span + true_range
        weight = (1 - alpha) * weight + 1
        plus_di, minus_di = 100 * plus / span, 100 * minus / span
        if t >= window:
            result[t] = 100 * abs(plus_di - minus_di) / (plus_di + minus_di)
    return result
