"""The commands of deployments: trade a run on, and steer it while it trades."""

from __future__ import annotations

import json
from pathlib import Path

from fintrader.cli.options import take_options, with_options
from fintrader.config import Settings


class PlaceOptions(Settings):
    """Which deployment is meant."""

    deployments_dir: str = "deployments"
    """Folder that holds the deployments."""


class PaperOptions(Settings):
    """The parts of trading a run on that can be asked for alone."""

    freeze: bool = False
    """Seal the policy with all it depends on in a folder, and trade nothing yet."""


def paper(argv: list[str]) -> None:
    """RUN [--freeze] [--feed F] [--broker B] [--speed S]: trade a run on, without keys as a replay;
    then report how far it drifted from its backtest."""
    from fintrader.deploy import deployment
    from fintrader.deploy.settings import PaperSettings

    options, words = take_options(PaperOptions(), argv, "paper")
    run, settings = with_options("paper", PaperSettings(), words)
    if not options.freeze:
        deployment.run_paper(run, settings)
        return
    bundle = deployment.freeze_run(run, settings)
    print(
        f"{bundle.folder}: bundle {bundle.id}, {len(bundle.symbols)} symbols, policy"
        f" {bundle.record.policy}"
    )
    print(f"  {bundle.record.verdict or 'there is no verdict: the run was not backtested'}")


def live(argv: list[str]) -> None:
    """NAME: refused; real money is closed until a market-life simulator has passed on this code."""
    from fintrader.deploy import real_money
    from fintrader.deploy.settings import LiveSettings

    name, settings = with_options("live", LiveSettings(), argv, "NAME")
    real_money.run_live(name, settings)


def show_deployment(name: str, deployments_dir: str, *, as_json: bool) -> bool:
    """Print the state of the deployment of this name, or in this folder; False where there is
    none."""
    homes = (Path(name), Path(deployments_dir) / name)
    deployed = [home for home in homes if (home / "bundle" / "bundle.json").is_file()]
    if not deployed:
        return False
    from fintrader.deploy import status

    state = status.read_status(deployed[0])
    text = json.dumps(status.as_json(state), indent=2, sort_keys=True)
    print(text if as_json else status.describe(state))
    return True


def report_drift(name: str, deployments_dir: str) -> None:
    """Write drift.html and drift.json of a deployment anew, from its journal alone."""
    from fintrader.deploy import deployment

    deployment.report_drift(deployment.find_deployment(name, deployments_dir))


def promote(name: str, deployments_dir: str) -> None:
    """Make a deployment the champion; the champion before it becomes the challenger."""
    from fintrader.deploy import control, deployment

    home = deployment.find_deployment(name, deployments_dir)
    before = control.promote(home)
    print(f"{home.name} is the champion" + (f", {before} the challenger" if before else ""))


def halt(argv: list[str]) -> None:
    """NAME: order nothing more, at once; what is held stays."""
    _request("halt", argv)


def resume(argv: list[str]) -> None:
    """NAME: let a halted deployment go on, but not before a flatten has ended."""
    _request("resume", argv)


def flatten(argv: list[str]) -> None:
    """NAME: halt, cancel its orders and sell everything; again and again until nothing is held."""
    _request("flatten", argv)


def _request(kind: str, argv: list[str]) -> None:
    from fintrader.deploy import control, deployment

    name, place = with_options(kind, PlaceOptions(), argv, "NAME")
    home = deployment.find_deployment(name, place.deployments_dir)
    for request in ("halt", "resume", "flatten"):
        if request == kind:
            control.ask(home, request)
    print(
        f"{home.name}: asked to {kind}; a running deployment does so within two seconds, another"
        " one when it starts"
    )
