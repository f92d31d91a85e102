"""Freeze and deploy the policy of a finished run: `fintrader paper --freeze`, `fintrader paper`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from fintrader.bars.calendar import session_date
from fintrader.config import check_file_url
from fintrader.deploy import drift
from fintrader.deploy.alerts import tell_supervisor
from fintrader.deploy.alpaca import AlpacaBroker
from fintrader.deploy.broker import Broker
from fintrader.deploy.bundle import Bundle, freeze
from fintrader.deploy.bundle_record import BundleOrigin
from fintrader.deploy.clock import Clock, ReplayClock, WallClock
from fintrader.deploy.control import BUNDLE, JOURNAL, REPORT, list_aliases
from fintrader.deploy.drift_page import render_drift
from fintrader.deploy.drift_report import DriftReport
from fintrader.deploy.entries import BarDecision, DeploymentEnd, DeploymentStart
from fintrader.deploy.feed import LiveFeed, ReplayFeed, open_live_feed
from fintrader.deploy.journal import Journal
from fintrader.deploy.recorder import Recorder
from fintrader.deploy.runner import Connections, Runner
from fintrader.deploy.settings import PaperSettings
from fintrader.deploy.simulated import SimulatedBroker
from fintrader.deploy.spot import CcxtBroker
from fintrader.errors import DeployError, ReturnsError, RunError
from fintrader.files import write_json, write_text
from fintrader.market.synthetic import SyntheticSettings
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline import evaluation
from fintrader.pipeline.config import RunConfig, load_config_of_run
from fintrader.pipeline.data import make_market
from fintrader.pipeline.session import open_run
from fintrader.records import to_json
from fintrader.results.backtest_files import read_backtest
from fintrader.results.run import Run
from fintrader.runs import Manifest, versions
from fintrader.storage.lease import hold
from fintrader.storage.objects import ObjectStore
from fintrader.terminal_progress import reporter
from fintrader.verdict import claims
from fintrader.verdict.looks import LedgerError

log = logging.getLogger("fintrader.deploy")


def locate_home(name: str, deployments_dir: str) -> Path:
    """Locate a deployment's folder."""
    return Path(check_file_url(deployments_dir)) / name


def find_deployment(name: str, deployments_dir: str) -> Path:
    """Find the folder of a deployment by its name or alias (champion, challenger). Raises
    DeployError."""
    folder = Path(deployments_dir)
    home = locate_home(list_aliases(folder).get(name, name), deployments_dir)
    if not (home / "bundle" / BUNDLE).is_file():
        names = ", ".join(sorted(path.parts[-3] for path in folder.glob(f"*/bundle/{BUNDLE}")))
        known = f"known: {names}" if names else "make one with `fintrader paper RUN`"
        raise DeployError(f"{deployments_dir} holds no deployment {name!r}; {known}")
    return home


def run_paper(where: str, settings: PaperSettings) -> Path:
    """Deploy a run's policy, or resume its deployment; return the deployment's folder.

    Raises RunError, DeployError, BrokerError, DataError.
    """
    bundle, market, cache = freeze_run(where, settings)
    home = locate_home(bundle.name, settings.deployments_dir)
    if settings.broker not in ("simulated", settings.feed):
        raise DeployError(f"a broker's account needs live bars: add --feed {settings.broker}")
    if settings.broker != "simulated" and not settings.limits.enforced:
        raise DeployError("an account at a broker needs limits: set limits.enforced to true")
    source = bundle.data.source
    trained = getattr(source, "exchange", source.kind)
    if settings.feed != "replay" and trained != settings.feed and not settings.other_feed:
        raise DeployError(
            f"the policy was trained on bars of {trained}, not of {settings.feed}, where features"
            " may mean something else; add --other-feed true to trade it anyway"
        )
    with hold(ObjectStore(home)):
        tell_supervisor({"home": str(home.resolve())})
        _run(home, bundle, settings, market, cache)
    return home


def _run(
    home: Path, bundle: Bundle, settings: PaperSettings, market: MarketTensors, cache: Path
) -> None:
    """Run a deployment to its end, and report its drift. The caller holds its lease."""
    replay = settings.feed == "replay"
    window = (int(market.minutes[0]), int(market.minutes[-1])) if replay else None
    with reporter():
        until = session_date(bundle.data.calendar, int(market.minutes[-1]))
        feed = open_live_feed(settings.feed, bundle.data, bundle.symbols, cache=cache, until=until)
    simulated = settings.ordered_at == "simulated"
    with Journal(home / JOURNAL, durable=not (replay and simulated)) as journal:
        _check_terms(journal, settings, home)
        last = journal.last(BarDecision)
        clock: Clock = WallClock()
        if window is not None:
            clock = ReplayClock(last.time if last else window[0], settings.speed)
        broker: Broker
        if simulated:
            broker = SimulatedBroker(market, bundle.env, clock.now, grows=not replay)
        else:
            broker = open_broker(settings.broker, bundle, settings.endpoint)
        runner = Runner(
            bundle,
            settings,
            Connections(clock, feed, broker, journal),
            window=window,
            daily=lambda: describe_alarm(report_drift(home, feed)),
        )
        if journal.last(DeploymentEnd) is None:
            if not replay:
                _register(home, bundle)
                print(
                    f"{home.name}: {feed.kind} bars, {broker.kind} broker; it trades until"
                    " stopped (Ctrl-C); the same command resumes it. In another terminal:"
                    f" `fintrader status {home.name}`; likewise halt, resume and flatten",
                    flush=True,
                )
            runner.run()
    report_drift(home, feed)


def open_broker(
    kind: str, bundle: Bundle, endpoint: str | None, *, real_money: bool = False
) -> AlpacaBroker | CcxtBroker:
    """Open an account at a broker, on paper unless for `real_money`. Raises DeployError."""
    if kind == "alpaca":
        return AlpacaBroker(endpoint, fractional=bundle.env.fractional, real_money=real_money)
    return CcxtBroker(kind, bundle.symbols, endpoint, real_money=real_money)


def _register(home: Path, bundle: Bundle) -> None:
    """Register the claim that the bundle beats its benchmark from the next day on, unless another
    deployment of the bundle has registered it."""
    first = claims.find_first_day()
    claim = claims.Claim(bundle.name, bundle.id, None, bundle.benchmark, first, None)
    try:
        known = [one for one in claims.list_registrations() if one.claim.content == bundle.id]
        registration = known[0] if known else claims.register(claim)
    except (LedgerError, ReturnsError) as error:  # a deployment with positions has to go on
        log.warning(
            "the claim could not be registered, so no later verdict counts as registered in"
            " advance: %s",
            error,
        )
        return
    digest = registration.digest[: claims.SHOWN]
    line = f"Claim {digest}: {registration.claim.describe()}"
    print(f"{line}; `fintrader judge {home} --claim {digest}` judges it", flush=True)


def _check_terms(journal: Journal, settings: PaperSettings, home: Path) -> None:
    """Raise DeployError if the deployment began with another feed, broker or limits: its account
    and its twin depend on them."""
    started = journal.last(DeploymentStart)
    if started is None:
        return
    asked = {"feed": settings.feed, "broker": settings.ordered_at, "limits": settings.limits}
    for term, value in asked.items():
        before = getattr(started.body, term)
        if before != value:
            raise DeployError(
                f"{home.name} began with another {term} ({before}); choose another --name, or the"
                " terms with which it began"
            )


def describe_alarm(report: DriftReport) -> str | None:
    """Describe the alarm of a drift report; None without one."""
    if report.surprise is None or not report.surprise.is_alarm:
        return None
    return (
        f"drift: after {report.sessions} sessions the account's days are worse than its backtest's;"
        f" `fintrader status {report.deployment} --drift` shows it"
    )


def report_drift(home: Path, feed: LiveFeed | None = None) -> DriftReport:
    """Measure the drift of a deployment from its journal, print it, write `drift.json` and
    `drift.html`."""
    bundle = Bundle.open(home / "bundle")
    if feed is None and isinstance(bundle.data.source, SyntheticSettings):  # has an index
        feed = open_live_feed("replay", bundle.data, bundle.symbols)
    with Journal(home / JOURNAL, reading=True) as journal:
        started = journal.last(DeploymentStart)
        if started is None:
            raise DeployError(f"{home} has not begun; run `fintrader paper` first")
        level = (lambda grid: None) if feed is None else feed.level
        reach = started.body.warm_up_sessions
        recorder = Recorder(bundle, journal, level=level, warm_up_sessions=reach)
        recorded = recorder.build_market()
        report = drift.measure(journal, bundle, recorded, started.body.limits)
    write_json(home / REPORT, to_json(report))
    page = home / "drift.html"
    write_text(page, render_drift(report))
    print(*filter(None, [report.notice]), report.summarise(), f"  {page}", sep="\n")
    return report


def freeze_run(where: str, settings: PaperSettings) -> tuple[Bundle, MarketTensors, Path]:
    """Make the bundle of a run's policy unless it exists; return it, its policy's test window, and
    the run's cache. Raises RunError for a run that has not finished."""
    run = Run(open_run(where))
    folder = run.folder
    config = load_config_of_run(run.folder.root)
    config = config.model_copy(
        update={"name": folder.root.resolve().name, "runs_dir": folder.root.resolve().parent}
    )
    manifest = Manifest.load(folder.manifest)
    folds = evaluation.list_folds(folder)
    if not manifest.done("tournament") and not folds:
        raise RunError(f"{where}: its tournament has not finished; run it to its end first")
    if folds:  # a walk-forward is deployed by its newest policy, tested on the newest window
        market = MarketTensors.load(folds[-1].root / "market.safetensors").split().test
    else:
        with reporter():
            market = MarketTensors.load(make_market(config, manifest)).split().test
    policy = run.policy_path(settings.policy, folds[-1] if folds else None)
    name = settings.name or f"{config.name}{settings.suffix}"
    last = session_date(config.data.calendar, int(market.minutes[-1]))
    companies = ReplayFeed(
        config.data.effective(), market.symbols, cache=config.cache, until=last
    ).companies
    bundle = freeze(
        locate_home(name, settings.deployments_dir) / "bundle",
        name=name,
        policy=policy,
        data=config.data,
        env=config.trading,
        market=market,
        origin=_describe_run(run, config, manifest, settings.policy, companies),
    )
    return bundle, market, config.cache


def _describe_run(
    run: Run, config: RunConfig, manifest: Manifest, policy: str, companies: Mapping[str, str]
) -> BundleOrigin:
    """Describe the origin of a bundle, with verdict and daily returns if the run has a
    backtest."""
    verdict = None
    returns: tuple[float, ...] = ()
    if (run.folder.backtest / "metrics.json").is_file():
        stored = read_backtest(run.folder.backtest)
        strategy = policy if policy in stored.strategies else "ensemble"
        verdict = None if stored.verdict is None else stored.verdict.text
        returns = tuple(stored.daily_returns()[strategy].tolist())
    return BundleOrigin(
        run=config.name,
        policy=policy,
        config_hash=manifest.values["config_hash"],
        versions=versions(),
        trials=int(manifest.values["trials"]),
        verdict=verdict,
        daily_returns=returns,
        companies=companies,
    )
