"""Small deployments: a frozen policy that nobody trained, bars with faults, and a clock that needs
no waiting."""

from __future__ import annotations

import contextlib
import copy
import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fintrader.agents import ActionHeadSettings, NetworkSettings
from fintrader.agents.policy import ActorPolicy, save_policy
from fintrader.backtesting.limits import LimitSettings
from fintrader.bars.bars import Bars
from fintrader.deploy import journal as journals
from fintrader.deploy.broker import Broker
from fintrader.deploy.bundle import Bundle, freeze
from fintrader.deploy.bundle_record import BundleOrigin
from fintrader.deploy.clock import ReplayClock
from fintrader.deploy.control import JOURNAL
from fintrader.deploy.entries import Alert, BarDecision
from fintrader.deploy.feed import ReplayFeed
from fintrader.deploy.journal import Journal
from fintrader.deploy.runner import Connections, Runner
from fintrader.deploy.settings import PaperSettings
from fintrader.deploy.simulated import SimulatedBroker
from fintrader.envs import EnvSettings
from fintrader.envs.benchmark import lay_out
from fintrader.market.build import make_market
from fintrader.market.settings import DataSettings, read_settings
from fintrader.market.tensors import MarketTensors

MINUTE = 60_000_000_000
FREE = LimitSettings(enforced=False)


def settings(**changes: Any) -> DataSettings:
    """Made-up bars of a quarter of an hour, 26 a session, with features that look back a few
    sessions."""
    values = {
        "bar_minutes": 15,
        "source": {
            "kind": "synthetic",
            "seed": 3,
            "num_symbols": 5,
            "num_sessions": 60,
            "volatility_bps": 40.0,
        },
        "features": {
            "names": ["return_1", "return_30", "volatility_26", "rsi_2", "gap", "sma_26"],
            "context": [],
        },
        "windows": {"fractions": [0.5, 0.2, 0.3], "embargo_sessions": 1},
    }
    for key, value in changes.items():
        values[key] = values.get(key, {}) | value if isinstance(value, dict) else value
    return read_settings(values)


_FROZEN: dict[str, tuple[dict[Path, bytes], MarketTensors]] = {}
"""What was frozen from made-up bars, which always gives the same: its files and its window."""


def frozen(
    folder: Path, data: DataSettings | None = None, *, unchanged: bool = False, **how: Any
) -> tuple[Bundle, MarketTensors]:
    """A bundle in `folder/bundle` whose policy holds weights that nobody trained, and the window it
    trades. Frozen once in a process where no file is read, or files that stay `unchanged`."""
    data = data or settings()
    made_up = data.source.kind == "synthetic" and not _reads_files(data)
    made_up |= unchanged
    key = repr((data, sorted(how.items())))
    if not made_up or (folder / "bundle").exists():
        return _freeze(folder, data, **how)
    if key not in _FROZEN:
        bundle, market = _freeze(folder, data, **how)
        made = [folder / "policy.safetensors", *bundle.folder.rglob("*")]
        files = {one.relative_to(folder): one.read_bytes() for one in made if one.is_file()}
        _FROZEN[key] = files, copy.deepcopy(market)
        return bundle, market
    files, market = _FROZEN[key]
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return Bundle.open(folder / "bundle"), copy.deepcopy(market)


def _reads_files(data: DataSettings) -> bool:
    named = (data.universe.membership, data.universe.shares_outstanding, data.actions)
    return any(named) or bool(data.features.daily) or data.benchmark is not None


def _freeze(
    folder: Path,
    data: DataSettings,
    *,
    seed: int = 0,
    private: Sequence[str] = (),
    daily_returns: Sequence[float] = (),
    **env: Any,
) -> tuple[Bundle, MarketTensors]:
    whole = make_market(data)
    market = whole.split().test
    chosen = EnvSettings(**{"num_envs": 1, "decision_interval": 5, "trade_rate": 0.5, **env})
    layout = lay_out(market, chosen)
    torch.manual_seed(seed)
    policy = ActorPolicy(
        layout, NetworkSettings(private=private), ActionHeadSettings(cash_logit=-3.0)
    )
    for weights in policy.parameters():
        torch.nn.init.normal_(weights, 0.0, 0.25)
    path = folder / "policy.safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    save_policy(policy, path, market=whole)
    bundle = freeze(
        folder / "bundle",
        name="test",
        policy=path,
        data=data,
        env=chosen,
        market=market,
        onnx=False,
        origin=BundleOrigin(
            run="none",
            policy="untrained",
            config_hash="",
            versions={},
            trials=1,
            verdict=None,
            daily_returns=tuple(daily_returns),
            companies={},
        ),
    )
    return bundle, market


class LiveClock(ReplayClock):
    """A clock whose moments pass by themselves, as a machine's do, without anybody waiting for
    them."""

    live = True

    def __init__(self, start: int) -> None:
        super().__init__(start)
        self.jumps: list[tuple[int, int]] = []
        """Moments at which the machine sleeps, and for how long (ns)."""

    def sleep_until(self, moment: int, look: Callable[[], bool]) -> None:
        super().sleep_until(moment, look)
        for jump in [one for one in self.jumps if one[0] <= self._now]:
            self.jumps.remove(jump)
            self._now += jump[1]


@dataclass
class OddFeed:
    """A replay whose bars come late, twice, in no order, corrected, or not at all."""

    inner: ReplayFeed
    delay: dict[tuple[str, int], int] = field(default_factory=dict)
    """(symbol, start of the bar) -> ns by which it is late."""
    dropped: set[tuple[str, int]] = field(default_factory=set)
    corrected: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)
    """(symbol, start) -> moment from which on it comes with other prices, and the factor."""
    doubled: bool = False
    shuffled: bool = False
    kind: str = "replay"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def history(self, first: int, stop: int) -> Bars:
        return self.inner.history(first, stop)

    def poll(self, since: int, now: int) -> Bars:
        bars = self.inner.poll(min([since, *(ts for _, ts in (*self.delay, *self.corrected))]), now)
        names = [bars.symbols[code] for code in bars.symbol.tolist()]
        keys = list(zip(names, bars.ts.tolist(), strict=True))
        there = [
            key not in self.dropped
            and key[1] + self.length + self.delay.get(key, 0) <= now
            and (key[1] >= since or key in self.delay or key in self.corrected)
            for key in keys
        ]
        wrong = [self.corrected.get(key, (now + 1, 1.0)) for key in keys]
        factor = np.array([by if moment <= now else 1.0 for moment, by in wrong])
        prices = {name: getattr(bars, name) * factor for name in ("open", "high", "low", "close")}
        bars = replace(bars, **prices).take(np.array(there, bool))
        if self.doubled:
            bars = bars.take(np.concatenate([np.arange(len(bars))] * 2))
        if self.shuffled:
            bars = bars.take(np.random.default_rng(0).permutation(len(bars)))
        return bars

    @property
    def length(self) -> int:
        return self.inner.bar_ns


def replayed(
    home: Path,
    bundle: Bundle,
    market: MarketTensors,
    limits: LimitSettings = FREE,
    journal: Journal | None = None,
) -> Journal:
    """Replay the window to its end, from wherever the journal is."""
    journal = journal or Journal(home / JOURNAL, durable=False)
    last = journal.last(BarDecision)
    clock = ReplayClock(last.time if last else int(market.minutes[0]))
    feed = ReplayFeed(bundle.data, bundle.symbols)
    runner = Runner(
        bundle,
        PaperSettings(limits=limits),
        Connections(clock, feed, SimulatedBroker(market, bundle.env, clock.now), journal),
        window=(int(market.minutes[0]), int(market.minutes[-1])),
    )
    runner.run()
    return journal


def live_runner(
    bundle: Bundle,
    market: MarketTensors,
    bars: int,
    clock: ReplayClock,
    broker: Broker,
    journal: Journal,
    *,
    daily: Callable[[], object] = lambda: None,
    cap_usd: float | None = None,
    **chosen: Any,
) -> Runner:
    """A life of the deployment up to a bar of the window, not begun yet, on a feed that may turn
    odd."""
    inner = ReplayFeed(bundle.data, bundle.symbols)
    return Runner(
        bundle,
        PaperSettings(**chosen),
        Connections(clock, OddFeed(inner), broker, journal),
        window=None,
        daily=daily,
        cap_usd=cap_usd,
        until=int(market.minutes[bars]) + inner.bar_ns,
    )


def run_live(
    home: Path,
    bundle: Bundle,
    market: MarketTensors,
    *,
    bars: int = 80,
    change: Callable[[OddFeed, LiveClock], None] = lambda feed, clock: None,
    limits: LimitSettings = FREE,
    journal: Journal | None = None,
    daily: Callable[[], object] = lambda: None,
) -> Journal:
    """The live loop over so many bars from the window's first, with a clock that passes by
    itself."""
    journal = journal or Journal(home / JOURNAL, durable=False)
    last = journal.last(BarDecision)
    clock = LiveClock(last.time if last else int(market.minutes[0]))
    broker = SimulatedBroker(market.window(90, 120), bundle.env, clock.now, grows=True)
    runner = live_runner(bundle, market, bars, clock, broker, journal, limits=limits, daily=daily)
    change(runner.feed, clock)
    runner.run()
    return journal


LATER = {
    "start": ("sender",),
    "decision": ("outside_usd", "resting"),
    "order": ("limit_usd", "stop_usd"),
    "checkpoint": ("owed", "traded_usd", "open_usd"),
    "adjust": ("due_usd",),
    "adopted": ("cash_usd", "shares"),
}
"""Kind of an entry -> fields that the first version of a journal's format did not have."""


def make_older(path: Path) -> None:
    """Rewrite a journal as the first version of its format had it: without counts and curve, and
    without the fields that came later."""
    with contextlib.closing(sqlite3.connect(path)) as base:
        rows = base.execute("SELECT * FROM entries").fetchall()
        bars = base.execute("SELECT * FROM bars").fetchall()
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()
    old = []
    for seq, time, kind, key, text in rows:
        body = json.loads(text)
        for name in LATER.get(kind, ()):
            body.pop(name)
        old.append((seq, time, kind, key, json.dumps(body, sort_keys=True)))
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.executescript(f"{journals._SCHEMA} PRAGMA user_version = 1;")
        base.executemany("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", old)
        base.executemany("INSERT INTO bars VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", bars)
        base.commit()


def equities(journal: Journal) -> dict[int, float]:
    """Start of the bar -> equity that was decided with."""
    return {int(entry.body.bar): float(entry.body.equity) for entry in journal.entries(BarDecision)}


def alerts(journal: Journal) -> Sequence[str]:
    """Kinds of news, in order."""
    return [entry.key for entry in journal.entries(Alert)]
