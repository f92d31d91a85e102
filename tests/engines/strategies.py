"""Hypothesis strategies for environment settings and actions."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import strategies as st

from fintrader.envs import EnvSettings
from fintrader.envs.settings import REWARDS

OPTIONS = (
    None,
    None,
    {"bars": 5, "volatility_bps": 300.0},
    {"kind": "put", "symbol": "S002", "strike": 0.97, "bars": 25, "volatility_bps": 120.0},
    {"kind": "straddle", "weight": 0.4, "strike": 1.02, "bars": 40, "volatility_bps": 390.0},
)
"""Options that accounts sell; without interest in markets of three symbols or more."""


TRADERS = (
    None,
    None,
    {"teams": [1], "impact_bps_per_million_usd": 300.0},
    {"teams": [1], "impact_bps_per_million_usd": 1e6},
)
"""A trader alone, with prices that hardly or always move by as much as they may."""


@st.composite
def env_settings(
    draw: st.DrawFn,
    *,
    short: bool | None = None,
    fractional: bool | None = None,
    limit: bool = False,
) -> EnvSettings:
    """Any combination of options that is allowed, with orders at the market or, with `limit`,
    orders that rest."""
    shorts = draw(st.booleans()) if short is None else short
    traders = draw(st.sampled_from(TRADERS))
    values = {
        "action": draw(st.sampled_from(["limit", "quote"] if limit else ["target", "trade"])),
        "fill": "next_open"
        if limit
        else draw(st.sampled_from(["next_open", "next_close", "close"])),
        "fractional": draw(st.booleans()) if fractional is None else fractional,
        "max_shares": draw(st.sampled_from([3.0, 57.5, 1000.0])),
        "quote_weight": draw(st.sampled_from([0.02, 0.3, 1.7])),
        "limit_offset_bps": draw(st.sampled_from([50.0, 400.0, 5000.0])),
        "stop_offset_bps": draw(st.sampled_from([None, 60.0, 1500.0])) if limit else None,
        "limit_margin_bps": draw(st.sampled_from([0.0, 0.0, 60.0])),
        "time_in_force": draw(st.sampled_from([None, 1, 3])),
        "dead_band": draw(st.sampled_from([None, 0.0, 0.02, 0.1])),
        "trade_rate": draw(st.sampled_from([1.0, 0.2])),
        "decision_interval": draw(st.sampled_from([1, 1, 2, 5])),
        "cost_bps": draw(st.sampled_from([0.0, 20.0, 150.0])),
        "half_spread_bps": draw(
            st.sampled_from([0.0, 3.0, {"S001": 70.0, "S002": 0.0}, {"S001": 70.0, "others": 3.0}])
        ),
        "impact_bps": draw(st.sampled_from([0.0, 40.0, 9000.0])),
        "participation": draw(st.sampled_from([None, 0.1, 1.0])),
        "min_commission_usd": draw(st.sampled_from([0.0, 1.0, 300.0])),
        "initial_cash_usd": draw(st.sampled_from([900.0, 50_000.0, 1_000_000.0])),
        "close_at_end": draw(st.booleans()),
        "option": draw(st.sampled_from(OPTIONS)) if traders is None else None,
        "traders": traders,
        "ruin_fraction": draw(st.sampled_from([0.0, 0.5, 0.9])),
        "short": shorts,
        "max_leverage": draw(st.sampled_from([1.0, 2.5])) if shorts else 1.0,
        "borrow_bps_per_year": draw(st.sampled_from([0.0, 5000.0])),
        "maintenance_margin": draw(st.sampled_from([0.0, 0.37])) if shorts else 0.0,
        "turbulence": draw(
            st.dictionaries(st.sampled_from(["c0", "c1"]), st.sampled_from([-0.5, 1.0, 3.0]))
        ),
        "reward": draw(st.sampled_from(REWARDS)),
        "risk_aversion": draw(st.sampled_from([0.0, 1.0, 40.0])),
        "reward_scale": draw(st.sampled_from([1.0, 100.0])),
        "episode_bars": draw(st.sampled_from([None, 7, 30])),
        "start": draw(st.sampled_from(["bar", "session", "first"])),
        "clock": draw(st.sampled_from(["episode", "session", "none"])),
    }
    return EnvSettings(**values)


def random_actions(seed: int, steps: int, num_envs: int, num_assets: int) -> torch.Tensor:
    """`[steps, B, N]` float32: a mix of dense, sparse, saturated and out-of-range actions."""
    rng = np.random.default_rng(seed)
    shape = (steps, num_envs, num_assets)
    action = rng.uniform(-1.3, 1.3, shape)
    action *= rng.random(shape) < rng.choice([0.2, 1.0], (steps, num_envs, 1))
    action = np.where(rng.random((steps, num_envs, 1)) < 0.1, np.sign(action), action)
    return torch.tensor(action, dtype=torch.float32)


def endowment(
    count: int, num_assets: int, shares: bool, most: float = 2e6
) -> dict[str, torch.Tensor]:
    """Cash up to `most`, and on request shares of all symbols: not all of them are listed where
    later episodes begin."""
    options = {"cash_usd": torch.linspace(2e3, most, count, dtype=torch.float64)}
    if shares:
        options |= {
            "start": torch.full((count,), 25),
            "shares": torch.arange(1.0, num_assets + 1.0),
        }
    return options
