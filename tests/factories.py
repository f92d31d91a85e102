"""Small markets for tests that need no data pipeline, and how often properties are tried."""

from dataclasses import replace

import numpy as np
import torch

from fintrader.market.tensors import Events, MarketTensors, Windows

MINUTE_NS = 60_000_000_000
PAPER_FEATURES = (
    *("macd", "bollinger_upper", "bollinger_lower", "rsi_30", "cci_30", "dx_30", "sma_30"),
    "sma_60",
)
"""The eight features of the FinRL papers."""


def clock(num_bars, session_bars):
    """`session` and `minutes` of so many bars: one a minute from 14:30 UTC, a session a day."""
    bar = torch.arange(num_bars)
    session = bar // session_bars
    first = int(np.datetime64("2020-01-02T14:30", "ns").astype(np.int64))
    return {
        "session": session,
        "minutes": first + MINUTE_NS * (session * 1440 + bar % session_bars),
    }


def market_of(close, session_bars, **given):
    """The market of closes `[T, N]`: every asset is a member, and trades in every bar, which opens
    where it closes. What is `given` stands in the place of what is usual."""
    bars, assets = close.shape
    values = {
        "open": close,
        "close": close,
        "volume": np.full(close.shape, 1e9),
        "features": np.zeros((bars, assets, 1)),
        "context": np.zeros((bars, 1)),
        "tradable": np.ones(close.shape, dtype=bool),
        "member": np.ones(close.shape, dtype=bool),
        "benchmark": close.mean(axis=1),
        "symbols": tuple(f"S{n:03d}" for n in range(assets)),
        **clock(bars, session_bars),
        **given,
    }
    ends = [values["open"], values["close"]]
    values = {"high": np.fmax(*ends), "low": np.fmin(*ends)} | values
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            kind = torch.float32 if value.dtype == float and name != "benchmark" else None
            values[name] = torch.tensor(value, dtype=kind)
    names = {
        "feature_names": tuple(f"f{k}" for k in range(values["features"].shape[2])),
        "context_names": tuple(f"c{k}" for k in range(values["context"].shape[1])),
    }
    return MarketTensors(**(names | values))


def reprice(market, **given):
    """The market with other opens or closes, and highs and lows that hold no more than these."""
    ends = [given.get("open", market.open), given.get("close", market.close)]
    return replace(market, high=torch.fmax(*ends), low=torch.fmin(*ends), **given)


def make_market(
    num_bars=60,
    num_assets=3,
    num_features=2,
    *,
    seed=0,
    gaps=True,
    session_bars=20,
    volatility=0.01,
    volume=1e9,
    events=False,
):
    """A random market; `volume` shares trade in a bar on average. With `gaps`: missing bars, a late
    listing, a delisting and a non-member (if N >= 4). With `events`: splits and dividends, some at
    the same bar."""
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
            late = num_bars // 5
            ended = num_bars - num_bars // 5
            close[:late, 1] = open_[:late, 1] = np.nan
            close[ended:, 2] = open_[ended:, 2] = np.nan
            tradable[:late, 1] = tradable[ended:, 2] = False
            tradable[late, 1] = tradable[ended - 1, 2] = True
            member[num_bars // 3 : num_bars // 2, 3] = False
    happened = _events(num_bars, num_assets, seed) if events else []
    for bar, asset, split, dividend in happened:
        before = close[bar - 1, asset]
        for prices in (open_, close):
            prices[bar:, asset] *= (1.0 - (0.0 if np.isnan(before) else dividend / before)) / split
    traded = np.random.default_rng(seed + 1).exponential(size=close.shape)
    features = rng.normal(size=(num_bars, num_assets, num_features))
    features[np.isnan(close)] = 0.0
    third = num_bars // 3
    reach = (
        np.random.default_rng(seed + 3).exponential(volatility / 3, (2, *close.shape)) * tradable
    )
    return market_of(
        close,
        session_bars,
        open=open_,
        high=np.fmax(open_, close) * (1 + reach[0]),
        low=np.fmin(open_, close) * (1 - np.minimum(reach[1], 0.5)),
        volume=np.where(tradable, np.round(volume * traded), 0.0),
        features=features,
        context=rng.normal(size=(num_bars, 2)),
        tradable=tradable,
        member=member,
        benchmark=100 * np.exp(np.cumsum(rng.normal(0, volatility, num_bars))),
        windows=Windows((0, third), (third + 1, 2 * third), (2 * third + 1, num_bars)),
        events=Events.of(happened),
    )


def _events(num_bars, num_assets, seed):
    rng = np.random.default_rng(seed + 2)
    bars = rng.choice(np.arange(1, num_bars), 8)
    which = {(int(bar), int(rng.integers(num_assets))) for bar in bars}
    splits = rng.choice([1.0, 2.0, 1.5, 0.1, 1 / 3], len(which))
    dividends = rng.choice([0.0, 0.37], len(which))
    return [
        (*place, float(s), float(d))
        for place, s, d in zip(sorted(which), splits, dividends, strict=True)
    ]


def planted_market(
    num_bars=4000,
    num_assets=8,
    *,
    drift=2e-4,
    volatility=8e-4,
    regime_bars=200,
    noise_features=2,
    session_bars=390,
    seed=0,
):
    """A market whose drift is shown: each asset's regime (+1 or -1) is a feature, and its drift has
    that sign.

    `drift` and `volatility` per bar; a regime lasts `regime_bars` on average. Row t shows the drift
    of bar t + 1.
    """
    rng = np.random.default_rng(seed)
    flips = rng.random((num_bars + 1, num_assets)) < 1.0 / regime_bars
    start = rng.choice([-1.0, 1.0], size=num_assets)
    regime = start * np.where(np.cumsum(flips, axis=0) % 2 == 0, 1.0, -1.0)
    common = rng.normal(0, 0.6, (num_bars, 1))
    own = rng.normal(0, 0.8, (num_bars, num_assets))
    returns = drift * regime[:-1] + volatility * (common + own)
    close = 100 * np.exp(np.cumsum(returns, axis=0))
    open_ = np.vstack([np.full((1, num_assets), 100.0), close[:-1]])
    features = np.concatenate(
        [regime[1:, :, None], rng.normal(size=(num_bars, num_assets, noise_features))], axis=2
    )
    return market_of(
        close,
        session_bars,
        open=open_,
        features=features,
        feature_names=("signal", *(f"noise{k}" for k in range(noise_features))),
    )


def rising_market():
    """Two assets: the first always falls, the second always rises."""
    market = planted_market(
        600, 2, drift=1e-3, volatility=5e-4, regime_bars=10**9, noise_features=0
    )
    assert market.close[-1, 0] < market.close[0, 0]
    assert market.close[-1, 1] > market.close[0, 1]
    return market


def joined(market, other, cut):
    """`market` up to bar `cut`, with `other`'s bars from there on: what no one may have known
    before."""
    pieces = {
        name: torch.cat([tensor[:cut], getattr(other, name)[cut:]])
        for name, tensor in market.arrays()
        if name not in ("minutes", "session")
    }
    return replace(market, **pieces)


def pick_assets(market, order):
    """The market with these assets, in this order."""
    names = ("open", "high", "low", "close", "volume", "features", "tradable", "member")
    arrays = {name: getattr(market, name)[:, list(order)] for name in names}
    return replace(market, symbols=tuple(market.symbols[n] for n in order), **arrays)


def examples(thorough, quick=None):
    """How many examples to try a property on: so many with hypothesis's profile "thorough", a
    quarter or `quick` with "quick"."""
    from hypothesis import settings

    if quick is not None and settings.default.max_examples < 100:
        return quick
    return max(1, thorough * settings.default.max_examples // 100)
