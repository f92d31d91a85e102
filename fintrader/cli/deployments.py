"""The commands of deployments: trade a run on, and steer it while it trades."""

from __future__ import annotations

import functools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fintrader.cli.options import parse_argument, take_options
from fintrader.config import Settings
from fintrader.errors import ConfigError, DeployError

if TYPE_CHECKING:
    from fintrader.deploy.control import Request
    from fintrader.deploy.settings import PaperSettings


class PlaceOptions(Settings):
    """Place of a deployment."""

    deployments_dir: str = "deployments"
    """Folder that holds the deployments."""


class FlattenOptions(PlaceOptions):
    """Deployments to flatten."""

    all: bool = False
    """Every deployment of the folder."""


class ServiceOptions(Settings):
    """Another way to start a deployment."""

    install: bool = False
    """Write a systemd unit and a Kubernetes manifest of this command, and trade nothing yet."""


class PaperOptions(ServiceOptions):
    """Options that prepare a deployment without trading."""

    freeze: bool = False
    """Seal the policy with all it depends on in a folder, and trade nothing yet."""


def paper(argv: list[str]) -> None:
    """Trade a run on, or freeze its policy."""
    from fintrader.deploy.settings import PaperSettings

    options, words = take_options(PaperOptions(), argv, "paper")
    run, settings = parse_argument("paper", PaperSettings(), words)
    if options.install:
        name = settings.name or f"{Path(run).name}{settings.suffix}"
        _install(name, run, ["paper", *words], settings)
        return
    if not options.freeze:
        _watch("paper", argv, run, settings)
    from fintrader.deploy import deployment

    if (Path(run) / "environment.json").is_file():
        raise DeployError(f"{run}: its environment is no market, so there is nothing to trade")
    if not options.freeze:
        deployment.run_paper(run, settings)
        return
    bundle, *_ = deployment.freeze_run(run, settings)
    print(
        f"{bundle.folder}: bundle {bundle.id}, {len(bundle.symbols)} symbols, policy"
        f" {bundle.record.policy}"
    )
    print(f"  {bundle.record.verdict or 'there is no verdict: the run was not backtested'}")


def live(argv: list[str]) -> None:
    """Trade a deployment with real money, if every condition is met."""
    from fintrader.deploy.broker import refuse_real_money
    from fintrader.deploy.settings import LiveSettings

    options, words = take_options(ServiceOptions(), argv, "live")
    name, settings = parse_argument("live", LiveSettings(), words, "NAME")
    refuse_real_money(True)
    if options.install:
        _install(f"{name}-live", name, ["live", *words], settings)
        return
    _watch("live", argv, name, settings)
    from fintrader.deploy import real_money

    real_money.run_live(name, settings)


def _install(name: str, run: str, words: list[str], settings: PaperSettings) -> None:
    """Write the files of a service, and print the steps that are left."""
    if settings.feed == "replay" and words[0] == "paper":
        raise ConfigError("a replay is no service; add --feed alpaca or an exchange")
    from fintrader.deploy.service import write_service

    print(write_service(name, run, words, settings))


def _watch(command: str, argv: list[str], name: str, settings: PaperSettings) -> None:
    """Supervise this command in a child process, and exit with its status.

    Returns at once in the child, and where there is nothing to supervise, such as a replay.
    """
    from fintrader.deploy.alerts import is_supervised
    from fintrader.deploy.supervisor import supervise

    is_live = command == "live" or settings.feed != "replay"
    if is_live and not is_supervised() and sys.argv[1:] == [command, *argv]:
        status = supervise([sys.executable, *sys.orig_argv[1:]], settings.alerts, name)
        sys.exit(status if status >= 0 else 128 - status)


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


def flatten(argv: list[str]) -> None:
    """Ask a deployment, or all of them, to sell everything."""
    options, words = take_options(FlattenOptions(), argv, "flatten")
    if not options.all:
        _request("flatten", argv)
        return
    if words:
        raise ConfigError(f"`fintrader flatten --all` takes no name, got {words[0]!r}")
    from fintrader.deploy import control, status

    folder = Path(options.deployments_dir)
    names = status.list_names(folder)
    if not names:
        raise DeployError(f"{folder} holds no deployment; see --deployments-dir")
    asked, faults = control.ask_all([folder / name for name in names], "flatten")
    for name in asked:
        _confirm(name, "flatten")
    if faults:
        raise DeployError("; ".join(faults))


def _request(kind: Request, argv: list[str]) -> None:
    from fintrader.deploy import control, deployment

    name, place = parse_argument(kind, PlaceOptions(), argv, "NAME")
    home = deployment.find_deployment(name, place.deployments_dir)
    control.ask(home, kind)
    _confirm(home.name, kind)


def _confirm(name: str, kind: Request) -> None:
    print(
        f"{name}: asked to {kind}; a running deployment does so within two seconds, a stopped"
        " one when it starts"
    )


halt = functools.partial(_request, "halt")
"""Ask a deployment to order nothing more."""
resume = functools.partial(_request, "resume")
"""Ask a halted deployment to go on."""
accept = functools.partial(_request, "accept")
"""Ask a deployment to take over the differences of its account that it has named."""
