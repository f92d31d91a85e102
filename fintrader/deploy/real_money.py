"""Real money, which is closed, and what `fintrader live` asks for once it is open.

Real-money trading is closed until a market-life simulator has passed on this same code: `live`
refuses before it does anything else, and so do the broker and the runner (`refuse_real_money`).

A deployment may trade real money once it has traded a paper account for twenty sessions inside the
band of its backtest. A person then reads what it is, what it may lose, and types the account's
number and the amount; that consent stands in a sealed file, names bundle, account and amount, and
lapses after thirty days. Keys of the real account are variables of their own, so that no paper
deployment can ever use them.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fintrader.deploy.alpaca import AlpacaBroker
from fintrader.deploy.broker import refuse_real_money
from fintrader.deploy.bundle import BUNDLE, Bundle
from fintrader.deploy.clock import WallClock
from fintrader.deploy.deployment import REPORT, find, tell_drift
from fintrader.deploy.feed import open_live_feed
from fintrader.deploy.journal import Journal
from fintrader.deploy.runner import JOURNAL, Runner
from fintrader.deploy.settings import LiveSettings
from fintrader.errors import DeployError
from fintrader.files import read_json, seal, unseal, write_bytes
from fintrader.storage.lease import hold
from fintrader.storage.objects import ObjectStore

ENDPOINT = "https://api.alpaca.markets"
VARIABLES = ("APCA_LIVE_API_KEY_ID", "APCA_LIVE_API_SECRET_KEY")
CONSENT = "consent.json"
DAYS = 30
SESSIONS = 20
Ask = Callable[[str], str]


def run_live(name: str, settings: LiveSettings, *, ask: Ask = input) -> Path:
    """Trade a deployment with real money, as a deployment of its own, `NAME-live`; returns its
    folder.

    Raises DeployError: real-money trading is closed. Once it is open, where the deployment has not
    proved itself on paper, the keys are missing, or nobody consents.
    """
    refuse_real_money(True)
    home = find(name, settings.deployments_dir)
    bundle = Bundle.open(home / "bundle")
    report = require_proof(home, bundle)
    if missing := [variable for variable in VARIABLES if not os.environ.get(variable)]:
        raise DeployError(
            f"real money needs keys of its own; set {' and '.join(missing)} in the environment"
        )
    if not settings.limits.enforced:
        raise DeployError("limits may only be left out of a replay")
    endpoint = settings.endpoint or ENDPOINT
    broker = AlpacaBroker(
        endpoint, real_money=True, fractional=bundle.env.fractional, variables=VARIABLES
    )
    number = broker.account().number
    consent = require_consent(home, bundle, number, settings, report, ask)
    place = find_real_deployment(home, bundle)
    chosen = settings.model_copy(update={"feed": "alpaca", "broker": "alpaca"})
    with hold(ObjectStore(place)), Journal(place / JOURNAL) as journal:
        feed = open_live_feed("alpaca", bundle.data, bundle.symbols)
        until = int(dt.datetime.fromisoformat(consent["until"]).timestamp() * 1e9)
        Runner(
            place,
            bundle,
            chosen,
            clock=WallClock(),
            feed=feed,
            broker=broker,
            journal=journal,
            window=None,
            until=until,
            cap_usd=float(consent["cap_usd"]),
            daily=lambda: tell_drift(place, feed),
        ).run()
    print(
        f"the consent of {consent['given']} has lapsed; `fintrader live {name}` asks for a new one"
    )
    return place


def find_real_deployment(home: Path, bundle: Bundle) -> Path:
    """The folder of the deployment that trades real money: one like any other, so that whatever
    asks or steers one (`halt`, `flatten`, `status`, the app) finds it by its name.

    Raises DeployError where another bundle stands there.
    """
    place = home.with_name(f"{home.name}-live")
    if not (place / "bundle" / BUNDLE).is_file():
        shutil.copytree(bundle.folder, place / "bundle", dirs_exist_ok=True)
    if Bundle.open(place / "bundle").id != bundle.id:
        raise DeployError(f"{place} trades another bundle; flatten it, and move that folder away")
    return place


def require_proof(home: Path, bundle: Bundle) -> Mapping[str, Any]:
    """The drift report of a deployment that may trade real money. Raises DeployError for any
    other."""
    with Journal(home / JOURNAL, reading=True) as journal:
        started = journal.last("start")
    if started is None or started.body["broker"] != "alpaca":
        raise DeployError(
            f"{home.name} has not traded a paper account; run `fintrader paper RUN --feed alpaca"
            " --broker alpaca` first"
        )
    report: Mapping[str, Any] = (
        tell_drift(home) if not (home / REPORT).is_file() else read_json(home / REPORT)
    )
    daily = report["daily"]
    sessions = int(report["sessions"])
    if report["bundle"] != bundle.id:
        raise DeployError(
            f"{home / REPORT} is of another bundle; run `fintrader status {home.name}"
            " --drift` again"
        )
    if sessions < SESSIONS:
        raise DeployError(f"{home.name} has {sessions} paper sessions; real money needs {SESSIONS}")
    if report["surprise"]["alarm"]:
        raise DeployError(
            f"{home.name} earns less on paper than its backtest did; real money would, too"
        )
    if "low_usd" not in daily:
        raise DeployError(
            f"{home.name} comes from a run without a backtest; there is no band that it could be"
            " inside"
        )
    low = daily["low_usd"][-1]
    high = daily["high_usd"][-1]
    if not low <= daily["account_usd"][-1] <= high:
        raise DeployError(
            f"the paper account stands at {daily['account_usd'][-1]:,.0f} USD, outside the"
            f" backtest's band of {low:,.0f} to {high:,.0f}; wait until it is inside, or find"
            " out why"
        )
    return report


def require_consent(
    home: Path,
    bundle: Bundle,
    number: str,
    settings: LiveSettings,
    report: Mapping[str, Any],
    ask: Ask,
) -> Mapping[str, Any]:
    """The consent that stands, or a new one that is typed now. Raises DeployError where there is
    none."""
    path = home / CONSENT
    now = dt.datetime.now(dt.UTC)
    if path.is_file():
        stands = unseal(
            path.read_bytes(), DeployError(f"{path} was changed; remove it, and consent again")
        )
        same = (
            stands["bundle"] == bundle.id
            and stands["account"] == number
            and stands["cap_usd"] == settings.cap_usd
        )
        if same and now < dt.datetime.fromisoformat(stands["until"]):
            return stands
    if settings.cap_usd <= 0:
        raise DeployError("say how much it may hold: --cap-usd AMOUNT")
    if ask is input and not sys.stdin.isatty():
        raise DeployError("consent is typed by a person: run this in a terminal")
    returns = np.array(report["daily"]["account_return"])
    expected = np.array(bundle.body["daily_returns"])
    print(f"{home.name}, bundle {bundle.id}, of the run {bundle.body['run']}")
    print(f"  verdict: {bundle.body['verdict']}")
    print(
        f"  paper: {report['sessions']} sessions, {report['equity']['return']:+.2%}; worst day"
        f" {returns.min():+.2%}"
    )
    print(
        f"  backtest: worst day {expected.min():+.2%},"
        f" deepest loss {_measure_drawdown(expected):.2%} of its peak"
    )
    print(
        f"  limits: it halts after {settings.limits.day_loss:.1%} a day,"
        f" {settings.limits.drawdown:.1%} from its peak"
    )
    if ask(f"Type the number of the account that will trade ({number}): ").strip() != number:
        raise DeployError("that is not the account's number; nothing was begun")
    if (
        ask(f"Type the amount it may hold in USD ({settings.cap_usd:.0f}): ").strip()
        != f"{settings.cap_usd:.0f}"
    ):
        raise DeployError("that is not the amount; nothing was begun")
    until = now + dt.timedelta(days=DAYS)
    body = {
        "bundle": bundle.id,
        "account": number,
        "cap_usd": settings.cap_usd,
        "given": now.isoformat(timespec="seconds"),
        "until": until.isoformat(timespec="seconds"),
    }
    write_bytes(path, seal(body, indent=2))
    return body


def _measure_drawdown(returns: np.ndarray[Any, np.dtype[Any]]) -> float:
    """The largest loss from a peak, as a share of it."""
    worth = np.concatenate([[1.0], np.cumprod(1 + returns)])
    return float((1 - worth / np.maximum.accumulate(worth)).max())
