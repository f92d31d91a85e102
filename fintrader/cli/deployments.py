"""The commands of deployments: freeze a run, trade it on, steer what trades, say how far it
drifted."""

from __future__ import annotations

import json
from pathlib import Path

from fintrader.cli.options import with_options
from fintrader.config import Settings
from fintrader.errors import ConfigError


class PlaceOptions(Settings):
    """Which deployment is meant."""

    deployments_dir: str = "deployments"
    """Folder that holds the deployments."""


class OnnxOptions(Settings):
    """Where the model goes."""

    policy: str = "ensemble"
    """`ensemble`, `best`, or a pod's name."""
    out: Path = Path("policy.onnx")
    """File to write."""


def freeze(argv: list[str]) -> None:
    """RUN_DIR [--policy P] [--name NAME]: freeze a run's policy with all it depends on, to be
    traded."""
    from fintrader.deploy import deployment
    from fintrader.deploy.settings import PaperSettings

    run, settings = with_options("freeze", PaperSettings(), argv)
    bundle = deployment.freeze_run(run, settings)
    print(
        f"{bundle.folder}: bundle {bundle.id}, {len(bundle.symbols)} symbols, policy"
        f" {bundle.body['policy']}"
    )
    print(f"  {bundle.body['verdict'] or 'there is no verdict: the run was not backtested'}")


def paper(argv: list[str]) -> None:
    """RUN_DIR [--feed F] [--broker B] [--speed S]: trade a run on, without keys as a replay; then
    say how far it drifted."""
    from fintrader.deploy import deployment
    from fintrader.deploy.settings import PaperSettings

    run, settings = with_options("paper", PaperSettings(), argv)
    deployment.paper(run, settings)


def live(argv: list[str]) -> None:
    """NAME: refused; real money is closed until a market-life simulator has passed on this code."""
    from fintrader.deploy import real_money
    from fintrader.deploy.settings import LiveSettings

    name, settings = with_options("live", LiveSettings(), argv, "NAME")
    real_money.live(name, settings)


def drift(argv: list[str]) -> None:
    """NAME: how far a deployment drifted from its backtest, from its journal; drift.html and
    drift.json."""
    from fintrader.deploy import deployment

    name, place = with_options("drift", PlaceOptions(), argv, "NAME")
    deployment.tell_drift(deployment.find(name, place.deployments_dir))


def show_deployment(argv: list[str]) -> bool:
    """Print the state of the deployment that `fintrader status` names; False where it names none.

    The name is that of a deployment's folder, or of one below `deployments`.
    """
    homes = [Path(argv[0]), Path("deployments") / argv[0]] if argv else []
    deployed = [home for home in homes if (home / "bundle" / "bundle.json").is_file()]
    if not deployed:
        return False
    from fintrader.deploy import status

    state = status.read(deployed[0])
    as_json = json.dumps(status.as_json(state), indent=2, sort_keys=True)
    print(as_json if "--json" in argv else status.describe(state))
    return True


def promote(argv: list[str]) -> None:
    """NAME: make a deployment the champion; what was it before becomes the challenger."""
    from fintrader.deploy import deployment
    from fintrader.deploy.control import promote as appoint

    name, place = with_options("promote", PlaceOptions(), argv, "NAME")
    home = deployment.find(name, place.deployments_dir)
    before = appoint(home)
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
    home = deployment.find(name, place.deployments_dir)
    for request in ("halt", "resume", "flatten"):
        if request == kind:
            control.ask(home, request)
    print(
        f"{home.name}: asked to {kind}; a running deployment does so within two seconds, another"
        " one when it starts"
    )


def export_onnx(argv: list[str]) -> None:
    """RUN_DIR [--policy P] [--out FILE]: a policy for programs without PyTorch, checked against the
    original."""
    from fintrader.agents.policy import export_onnx as export
    from fintrader.pipeline import open_run

    folder, options = with_options("export onnx", OnnxOptions(), argv)
    from fintrader.agents.policy import load_policy
    from fintrader.results.run import Run

    if options.out.is_dir():
        raise ConfigError(f"{options.out} is a folder; --out names the file to write")
    policy = Run(open_run(folder), load_policy=load_policy).policy(options.policy)
    worst = export(policy, options.out)
    print(f"{options.out}: actions differ by at most {worst:.1e} from the policy's")
