"""A fintrader backtest's orders, through other engines (`foreign.py`), and how far their accounts
end up apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Literal

import exchange_calendars
import numpy as np
import pandas as pd
import torch

from fintrader.backtesting import BacktestResult
from fintrader.backtesting.account import BacktestAccount
from fintrader.backtesting.simulation import open_account, trade
from fintrader.envs import EnvSettings
from fintrader.market.tensors import MarketTensors
from fintrader.system import wait_for_lock
from tests import ROOT
from tests.bars.tables import REAL_FOLDER
from tests.factories import market_of

REAL_DAILY = REAL_FOLDER / "daily_n100_20151001_20180215.parquet"
REAL_SYMBOLS = ("AAPL", "AMZN", "CSCO", "INTC", "MSFT", "SBUX")
PINS = ("backtesting==0.6.6", "zipline-reloaded==3.2.1")
FILLS = {"backtesting": ("next_open", "close"), "zipline-reloaded": ("next_open", "next_close")}
"""The conventions of `env.fill` that each engine can be set to."""
CENT = 0.01
LOOKBACK = 5

Fill = Literal["next_open", "next_close", "close"]


class CannotInstallError(Exception):
    """The other engines cannot be installed here; the message holds pip's last line."""


def environment() -> Path:
    """The interpreter of `.venv-engines`, which is made and filled first where it is not there yet.

    The engines need an environment of their own: zipline wants a pandas below 3. Raises
    CannotInstallError.
    """
    folder = ROOT / ".venv-engines"
    python = folder / "bin" / "python"
    ready = folder / "pins.txt"
    wanted = "\n".join(PINS)
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        wait_for_lock(lock)  # tests may run in several processes
        if not ready.exists() or ready.read_text() != wanted:
            install = [
                str(python),
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                *PINS,
            ]
            for step in ([sys.executable, "-m", "venv", str(folder)], install):
                done = subprocess.run(step, capture_output=True, text=True)
                if done.returncode != 0:
                    raise CannotInstallError(
                        (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
                    )
            ready.write_text(wanted)
    return python


def synthetic_market(sessions: int = 504, assets: int = 8, seed: int = 0) -> MarketTensors:
    """Daily bars of random walks on NYSE's own sessions from 2018 on, opens apart from the closes
    before them."""
    rng = np.random.default_rng(seed)
    close = np.linspace(15, 400, assets) * np.exp(
        np.cumsum(rng.normal(3e-4, 0.02, (sessions, assets)), axis=0)
    )
    open_ = np.vstack([close[:1], close[:-1]]) * np.exp(rng.normal(0, 0.008, close.shape))
    calendar = exchange_calendars.get_calendar("XNYS", start="2018-01-01")
    dates = calendar.sessions_window(calendar.first_session, sessions)
    return daily_market(
        dates, open_, close, np.full(close.shape, 1e9), tuple(f"S{n}" for n in range(assets))
    )


def real_market() -> tuple[MarketTensors, dict[str, np.ndarray]]:
    """The real daily bars (adjusted for splits), and their opens and closes `[T, N]` in float64, as
    quoted."""
    table = pd.read_parquet(REAL_DAILY)
    table["ticker"] = table["ticker"].astype(str)
    wide = table[table["ticker"].isin(REAL_SYMBOLS)].pivot(index="date", columns="ticker")
    if wide[["open", "close"]].isna().to_numpy().any():
        raise ValueError(
            f"{REAL_DAILY.name} lacks bars of {REAL_SYMBOLS}; this comparison wants symbols with"
            " all of them"
        )
    quoted = {name: wide[name].to_numpy(np.float64).round(4) for name in ("open", "close")}
    volume = wide["volume"].to_numpy(np.float64)
    return (
        daily_market(
            pd.DatetimeIndex(wide.index), *quoted.values(), volume, tuple(wide["close"].columns)
        ),
        quoted,
    )


def daily_market(
    dates: pd.DatetimeIndex,
    open_: np.ndarray,
    close: np.ndarray,
    volume: np.ndarray,
    symbols: tuple[str, ...],
) -> MarketTensors:
    """A market of one bar a session, without features."""
    opens = dates.as_unit("ns").tz_localize(None) + pd.Timedelta(hours=14, minutes=30)
    return market_of(
        close,
        1,
        open=open_,
        volume=volume,
        minutes=torch.tensor(opens.asi8),
        symbols=symbols,
        bar_minutes=390,
    )


def momentum(account: BacktestAccount) -> torch.Tensor | None:
    """`[1, N]`: weights in proportion to what each symbol gained over five bars, nothing in those
    that lost."""
    close = account.market.close.double()
    if account.bar < LOOKBACK:
        return None
    gained = torch.relu(torch.log(close[account.bar] / close[account.bar - LOOKBACK]))
    return (gained / gained.sum().clamp(min=1e-9)).float().unsqueeze(0)


def backtest(market: MarketTensors, fill: Fill) -> tuple[BacktestResult, EnvSettings]:
    """The rule's backtest: whole shares, 20 bps, nothing else."""
    settings = EnvSettings(fill=fill, cost_bps=20.0, initial_cash_usd=1e6)
    return trade(momentum, open_account(market, settings, "momentum"), name="momentum"), settings


def play(
    engine: str,
    market: MarketTensors,
    result: BacktestResult,
    settings: EnvSettings,
    *,
    fill: Fill | None = None,
    cents: bool = False,
    prices: dict[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """`version`, `equity` `[T]`, `fills` (bar, asset, shares, price) and `commission_usd` of the
    engine's account.

    It gets the orders as fintrader filled them, at the bar at whose close they were decided.
    Whoever gives `fill`, `cents` (every commission is rounded to it) or `prices` lets the engine do
    otherwise than fintrader did.
    """
    trades = result.trades
    assets = trades["symbol"].map({name: n for n, name in enumerate(market.symbols)})
    job = {
        "engine": engine,
        "symbols": market.symbols,
        "dates": [str(date)[:10] for date in market.timestamps()],
        **{
            name: (prices or {}).get(name, getattr(market, name).double().numpy()).tolist()
            for name in ("open", "close")
        },
        "orders": [
            [int(bar), int(asset), int(shares)]
            for bar, asset, shares in zip(
                trades["decision_bar"], assets, trades["shares"], strict=True
            )
        ],
        "fee": settings.fee_rate,
        "cash": settings.initial_cash_usd,
        "fill": fill or settings.fill,
        "cents": cents,
    }
    python = environment()
    with tempfile.TemporaryDirectory() as folder:
        job_file = Path(folder) / "job.json"
        result_file = Path(folder) / "result.json"
        job_file.write_text(json.dumps(job))
        variables = {
            key: value for key, value in os.environ.items() if not key.startswith("PYTHON")
        }
        command = [
            str(python),
            "-W",
            "ignore",
            str(Path(__file__).with_name("foreign.py")),
            str(job_file),
            str(result_file),
        ]
        done = subprocess.run(command, env=variables, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{engine} failed:\n{done.stderr[-3000:]}")
        return json.loads(result_file.read_text())


def fills_of(market: MarketTensors, result: BacktestResult) -> list[list[float]]:
    """Bar, asset, shares and price of every fill, in order, as `play` gives them."""
    trades = result.trades
    assets = trades["symbol"].map({name: n for n, name in enumerate(market.symbols)})
    columns = (trades["fill_bar"], assets, trades["shares"], trades["price_usd"])
    return sorted(
        [int(bar), int(n), float(q), float(price)]
        for bar, n, q, price in zip(*columns, strict=True)
    )


def apart(result: BacktestResult, found: dict[str, Any]) -> dict[str, Any]:
    """What an engine's account differs in, its figures less fintrader's: USD, and bps of
    fintrader's equity."""
    gaps = np.array(found["equity"]) - result.equity
    return {
        "fills": len(found["fills"]),
        "largest_equity_difference_usd": float(np.abs(gaps).max()),
        "final_equity_difference_usd": float(gaps[-1]),
        "final_equity_difference_bps": float(1e4 * gaps[-1] / result.equity[-1]),
        "commission_difference_usd": float(found["commission_usd"] - result.costs_usd.sum()),
    }
