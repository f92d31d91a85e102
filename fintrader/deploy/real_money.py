"""The conditions of `fintrader live`.

Real-money trading is closed until a market-life simulator has passed on this same code: `live`
refuses before it does anything else, and so do the broker and the runner (`refuse_real_money`).

A deployment may trade real money once it has traded a paper account for twenty sessions and is then
inside the band of its backtest. A person then reads its description and its possible losses, and
types the account's number and the amount. This consent is a sealed file that names bundle, account,
amount, endpoint and limits: a change of any asks again. It lapses after thirty days. Keys of the
real account are separate variables, so that no paper deployment can ever use them.
"""

from __future__ import annotations

import datetime as dt
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fintrader.backtesting.limits import LimitSettings
from fintrader.deploy.alerts import tell_supervisor
from fintrader.deploy.broker import refuse_real_money
from fintrader.deploy.bundle import Bundle
from fintrader.deploy.clock import WallClock
from fintrader.deploy.control import BUNDLE, JOURNAL, REPORT
from fintrader.deploy.deployment import describe_alarm, find_deployment, open_broker, report_drift
from fintrader.deploy.drift_report import DriftReport, read_report
from fintrader.deploy.entries import DeploymentStart
from fintrader.deploy.feed import open_live_feed
from fintrader.deploy.journal import Journal
from fintrader.deploy.runner import Connections, Runner
from fintrader.deploy.settings import LiveSettings
from fintrader.errors import DeployError
from fintrader.files import seal, unseal, write_bytes
from fintrader.metrics import drawdowns
from fintrader.records import RecordError, from_json, to_json
from fintrader.storage.lease import hold
from fintrader.storage.objects import ObjectStore

ENDPOINT = "https://api.alpaca.markets"
CONSENT = "consent.json"
DAYS = 30
SESSIONS = 20
Ask = Callable[[str], str]


@dataclass(frozen=True)
class Consent:
    """A person's consent to trade real money, until a day."""

    bundle: str
    account: str
    cap_usd: float
    endpoint: str
    limits: LimitSettings
    given: str
    until: str
    """Times in ISO 8601, UTC."""

    @property
    def end(self) -> dt.datetime:
        return dt.datetime.fromisoformat(self.until)


def run_live(name: str, settings: LiveSettings, *, ask: Ask = input) -> Path:
    """Trade a deployment with real money, as a separate deployment `NAME-live`; return its folder.

    Raises DeployError where real-money trading is closed, the deployment has not proved itself on
    paper, or the keys or a person's consent are missing.
    """
    refuse_real_money(True)
    home = find_deployment(name, settings.deployments_dir)
    bundle = Bundle.open(home / "bundle")
    report = require_proof(home, bundle)
    with Journal(home / JOURNAL, reading=True) as journal:
        started = journal.entries(DeploymentStart)[-1].body
    if not settings.limits.enforced:
        raise DeployError("real money needs limits: set limits.enforced to true")
    broker = open_broker(started.broker, bundle, settings.endpoint, real_money=True)
    settings = settings.model_copy(
        update={"feed": started.feed, "broker": started.broker, "endpoint": broker.endpoint}
    )
    number = broker.account().number
    consent = require_consent(home, bundle, number, settings, report, ask)
    place = find_real_deployment(home, bundle)
    with hold(ObjectStore(place)), Journal(place / JOURNAL) as journal:
        tell_supervisor({"home": str(place.resolve())})
        feed = open_live_feed(started.feed, bundle.data, bundle.symbols)
        runner = Runner(
            bundle,
            settings,
            Connections(WallClock(), feed, broker, journal),
            window=None,
            until=int(consent.end.timestamp() * 1e9),
            cap_usd=consent.cap_usd,
            daily=lambda: describe_alarm(report_drift(place, feed)),
        )
        runner.run()
        lapse = f"the consent of {consent.given} has lapsed"
        runner.report_end(f"{lapse}, and `fintrader live {name}` asks for a new one")
        runner.alerts.finish()
    return place


def find_real_deployment(home: Path, bundle: Bundle) -> Path:
    """Find the folder of the deployment that trades real money, or make it; `halt`, `flatten`,
    `status` and the app find the deployment by its name, like any other.

    Raises DeployError where the folder has another bundle.
    """
    place = home.with_name(f"{home.name}-live")
    if not (place / "bundle" / BUNDLE).is_file():
        shutil.copytree(bundle.folder, place / "bundle", dirs_exist_ok=True)
    if Bundle.open(place / "bundle").id != bundle.id:
        raise DeployError(
            f"{place} trades another bundle; sell its positions at the broker, and move that folder"
            " away"
        )
    return place


def require_proof(home: Path, bundle: Bundle) -> DriftReport:
    """Return the drift report of a deployment that may trade real money. Raises DeployError for a
    deployment that may not."""
    with Journal(home / JOURNAL, reading=True) as journal:
        started = journal.last(DeploymentStart)
    if started is None or started.body.broker == "simulated":
        raise DeployError(
            f"{home.name} has not traded a paper account; run `fintrader paper RUN --feed alpaca"
            " --broker alpaca` first"
        )
    report = read_report(home / REPORT) or report_drift(home)
    daily = report.daily
    if report.bundle != bundle.id:
        raise DeployError(
            f"{home / REPORT} is of another bundle; run `fintrader status {home.name}"
            " --drift` again"
        )
    if report.sessions < SESSIONS:
        raise DeployError(
            f"{home.name} has {report.sessions} paper sessions; real money needs {SESSIONS}"
        )
    if report.surprise is not None and report.surprise.is_alarm:
        raise DeployError(
            f"the days of {home.name} are worse on paper than in its backtest; they would be"
            " with real money, too"
        )
    if daily.band is None:
        raise DeployError(
            f"{home.name} comes from a run without a backtest, or with one of too few sessions for"
            " a band; backtest the run on a longer window, and freeze it again"
        )
    low = daily.band.low_usd[-1]
    high = daily.band.high_usd[-1]
    if not low <= daily.account_usd[-1] <= high:
        raise DeployError(
            f"the paper account is at {daily.account_usd[-1]:,.0f} USD, outside the"
            f" backtest's band of {low:,.0f} to {high:,.0f}; wait until it is inside, or find"
            " the cause"
        )
    return report


def require_consent(
    home: Path,
    bundle: Bundle,
    number: str,
    settings: LiveSettings,
    report: DriftReport,
    ask: Ask,
) -> Consent:
    """Return the stored consent if it is still valid, or a new one that is typed now. A consent
    that has ended still counts while orders or a flatten are open, so that a restart ends these.
    Raises DeployError for a refusal."""
    path = home / CONSENT
    now = dt.datetime.now(dt.UTC)
    until = now + dt.timedelta(days=DAYS)
    consent = Consent(
        bundle=bundle.id,
        account=number,
        cap_usd=settings.cap_usd,
        endpoint=settings.endpoint or ENDPOINT,
        limits=settings.limits,
        given=now.isoformat(timespec="seconds"),
        until=until.isoformat(timespec="seconds"),
    )
    if path.is_file():
        stored = _read_consent(path)
        same_times = replace(consent, given=stored.given, until=stored.until)
        place = home.with_name(f"{home.name}-live")
        if stored == same_times and (now < stored.end or _is_unfinished(place)):
            return stored
    if settings.cap_usd <= 0:
        raise DeployError("real money needs a limit on the amount: --cap-usd AMOUNT")
    if ask is input and not sys.stdin.isatty():
        raise DeployError("consent is typed by a person: run this in a terminal")
    returns = np.array(report.daily.account_return)
    expected = np.array(bundle.record.daily_returns)
    print(f"{home.name}, bundle {bundle.id}, of the run {bundle.record.run}")
    print(f"  verdict: {bundle.record.verdict}")
    print(
        f"  paper: {report.sessions} sessions, {report.equity.account_return:+.2%}; worst day"
        f" {returns.min():+.2%}"
    )
    print(
        f"  backtest: worst day {expected.min():+.2%},"
        f" deepest loss {abs(drawdowns(expected).min()):.2%} of its peak"
    )
    limits = settings.limits.model_dump().items()
    print(
        "  limits:", ", ".join(f"{name} {limit:g}" for name, limit in limits if name != "enforced")
    )
    print(f"  it trades at {consent.endpoint}")
    cap = f"{settings.cap_usd:.15g}"
    if ask(f"Type the number of the account that will trade ({number}): ").strip() != number:
        raise DeployError("that is not the account's number; nothing was begun")
    if ask(f"Type the amount it may hold in USD ({cap}): ").strip() != cap:
        raise DeployError("that is not the amount; nothing was begun")
    write_bytes(path, seal(to_json(consent), indent=2))
    return consent


def _is_unfinished(place: Path) -> bool:
    """Report whether a deployment has a flatten that has not ended, or open orders, except for
    stops at the venue."""
    if not (place / JOURNAL).is_file():
        return False
    with Journal(place / JOURNAL, reading=True) as journal:
        reports = journal.orders().values()
        is_open = any(not (one.is_over or one.is_standing_stop) for one in reports)
        return is_open or journal.is_flattening()


def _read_consent(path: Path) -> Consent:
    damaged = DeployError(
        f"{path} was changed, or is of another version; remove it, and consent again"
    )
    try:
        return from_json(Consent, unseal(path.read_bytes(), damaged))
    except RecordError:
        raise damaged from None
