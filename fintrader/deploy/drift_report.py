"""The drift report of a deployment, as `drift.json` stores it. It needs no torch to be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fintrader.deploy.control import REPORT
from fintrader.errors import DeployError, RunError
from fintrader.files import read_json
from fintrader.records import from_json
from fintrader.verdict.track_record import TrackRecord, make_record

ALARM = 20.0
"""Threshold of the e-process: at most one in twenty deployments without drift passes it, however
long they run."""
PSI_NOTABLE = 0.25
"""A population stability index above this is usually called a shift."""


@dataclass(frozen=True)
class EquityDrift:
    """Equity of account and twin over the whole time."""

    first_usd: float
    account_usd: float
    twin_usd: float
    account_return: float
    twin_return: float
    difference_bps: float
    largest_difference_usd: float


@dataclass(frozen=True)
class Band:
    """Quantiles of accounts that draw their days from the backtest's, `[S]`."""

    low_usd: tuple[float, ...]
    middle_usd: tuple[float, ...]
    high_usd: tuple[float, ...]


@dataclass(frozen=True)
class DailyDrift:
    """Account and twin at the end of each session, `[S]`."""

    days: tuple[str, ...]
    account_usd: tuple[float, ...]
    twin_usd: tuple[float, ...]
    account_return: tuple[float, ...]
    twin_return: tuple[float, ...]
    portfolio: str
    """Name of the benchmark portfolio."""
    portfolio_return: tuple[float, ...]
    band: Band | None
    """None where the backtest has too few sessions."""


@dataclass(frozen=True)
class Surprise:
    """The wealth of a bettor who bets that the account's days are worse than its backtest's."""

    path: tuple[float, ...]
    """`[S]`, from 1."""

    @property
    def value(self) -> float:
        return self.path[-1]

    @property
    def is_alarm(self) -> bool:
        return max(self.path) > ALARM


@dataclass(frozen=True)
class Shortfall:
    """Cost of the orders against the prices they were decided at."""

    orders: int
    fills: int
    ordered_usd: float
    usd: Mapping[str, float]
    """Part (a key of `results.figures.shortfall.SHORTFALL`) -> cost."""
    rested: Mapping[str, int] = field(default_factory=dict)
    """Number of limit orders by their end, such as `filled in part`."""

    @property
    def bps(self) -> dict[str, float]:
        """Costs in bps of the ordered amount."""
        ordered = max(self.ordered_usd, 1e-9)
        return {name: 1e4 * cost / ordered for name, cost in self.usd.items()}


@dataclass(frozen=True)
class FeatureDrift:
    """Population stability index of a feature."""

    name: str
    psi: float


@dataclass(frozen=True)
class LimitCuts:
    """Decisions that limits cut, by limit."""

    account: Mapping[str, int]
    twin: Mapping[str, int]
    twin_halt: str
    """Reason of the twin's halt; empty without one."""


@dataclass(frozen=True)
class News:
    """A halt or an alert."""

    time: str
    kind: str
    text: str


@dataclass(frozen=True)
class DriftReport:
    """The drift of a deployment from its backtest."""

    deployment: str
    bundle: str
    run: str
    verdict: str | None
    first_day: str
    last_day: str
    sessions: int
    decisions: int
    held_back: int
    """Decisions that ordered nothing for a reason."""
    equity: EquityDrift
    daily: DailyDrift
    surprise: Surprise | None
    """None where the backtest has too few sessions."""
    shortfall: Shortfall
    features: tuple[FeatureDrift, ...]
    """The largest first."""
    limits: LimitCuts
    halts: tuple[News, ...]
    alerts: tuple[News, ...]
    late_bars: int
    notice: str = ""
    """Banner of a wholly or partly synthetic market."""

    def summarise(self) -> str:
        """Summarise the report in a few sentences."""
        equity = self.equity
        apart = round(equity.difference_bps, 2) + 0.0  # without the sign of a zero
        words = (
            f"{self.decisions} decisions over {self.sessions} sessions, {self.shortfall.fills}"
            f" fills: the account made {equity.account_return:+.2%}, its twin"
            f" {equity.twin_return:+.2%} ({apart:+.2f} bps apart)."
        )
        if self.surprise is not None:
            state = "No evidence of drift"
            if self.surprise.is_alarm:
                state = "Days are worse than the backtest's: stop it"
            words += f" {state} (e-value {self.surprise.value:.2f}, alarm above {ALARM:g})."
        if self.halts:
            words += f" Halted: {self.halts[-1].text}."
        return words


def read_report(path: Path) -> DriftReport | None:
    """Read a stored report; None without one. Raises DeployError for a damaged one."""
    if not path.is_file():
        return None
    try:
        return from_json(DriftReport, read_json(path))
    except RunError as error:
        raise DeployError(
            f"{path} is damaged or of another version ({error}); `fintrader status"
            f" {path.parent.name} --drift` writes it anew"
        ) from None


def read_account(home: Path) -> TrackRecord:
    """Read the daily returns of a deployment's account, and its benchmark portfolio's. Raises
    DeployError without a report, ReturnsError for fewer than two sessions."""
    report = read_report(home / REPORT)
    if report is None:
        raise DeployError(
            f"{home} holds no {REPORT} of a deployment; `fintrader status {home.name} --drift`"
            " writes it"
        )
    daily = report.daily
    benchmark = (daily.days, daily.portfolio_return)
    record = make_record(
        (daily.days, daily.account_return), name=home.name, benchmark=benchmark, kind="returns"
    )
    return replace(record, benchmark_name=daily.portfolio, strategy=report.bundle)
