"""Settings of small tournaments: of stub pods, and of real PPO pods on a random market."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fintrader.agents import PPO, Budget, NetworkSettings
from fintrader.config import Settings
from fintrader.envs import EnvSettings
from fintrader.market.tensors import MarketTensors
from fintrader.results.leaderboard_reader import read_leaderboard
from fintrader.runs import RunFolder
from fintrader.tournament.generator import Generator
from fintrader.tournament.leaderboard import Leaderboard
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.pod_training import train_and_evaluate
from fintrader.tournament.run_tournament import run_tournament
from fintrader.tournament.settings import OperationsSettings, Range, TournamentSettings
from fintrader.tournament.spec import PodResult, PodSpec
from tests.engines import stubs
from tests.factories import make_market

ORDER = TournamentSettings().order
SEARCH = {
    "network.width": (4, 8, 16),
    "learning_rate": Range(low=1e-5, high=1e-1, log=True),
}
"""Not in the alphabet's order, in which stored files have it."""

OPERATIONS = OperationsSettings(takeover=False)
"""No test leaves pods at work, but those about them."""
STUBBORN = OPERATIONS.model_copy(update={"retries": 50})
"""Of tests that end pods over and over."""


def settings(**changes: Any) -> TournamentSettings:
    """Small, and the same on every run; tests of the default order ask for it (`order=ORDER`)."""
    values = {
        "pods": 8,
        "search": SEARCH,
        "devices": ("cpu",),
        "founders": 2,
        "order": "submission",
    }
    values["fresh"] = 0.25
    return TournamentSettings(**{**values, **changes})


def stub_race(run: RunFolder, wanted: TournamentSettings, **how: Any) -> SimpleNamespace:
    """A tournament of stub pods; their market lies beside the run."""
    usual = {
        "operations": OPERATIONS,
        "data_hash": "data",
        "env": Settings(),
        "agents": (stubs.StubAgent(),),
        "seed": 5,
        "ensemble": stubs.ensemble,
    }
    market = stubs.market(how.pop("beside", run.root.parent))
    return raced(run, wanted, market, **{**usual, **how})


def raced(run: RunFolder, wanted: TournamentSettings, market: Path, **how: Any) -> SimpleNamespace:
    """A tournament's end, and where it lies."""
    end = run_tournament(wanted, folder=run, market=market, **how)
    policy = run.ensemble / "policy.safetensors"
    board = tuple(read_leaderboard(run.leaderboard))
    return SimpleNamespace(folder=run, ensemble_policy=policy, leaderboard=board, **vars(end))


# --- real pods ------------------------------------------------------------------------------------

AGENT = PPO(network=NetworkSettings(), num_steps=8, update_epochs=1, num_minibatches=1)
ENV = EnvSettings(num_envs=4)
SETTINGS = TournamentSettings(
    pods=4,
    budget=Budget(env_steps=128),
    devices=("cpu",),
    workers=2,
    order="submission",
    founders=1,
    fresh=0.0,
    ensemble_size=2,
    leaderboard_size=4,
    search={"learning_rate": Range(low=1e-4, high=1e-2, log=True)},
)


def market_file(folder: Path) -> Path:
    """The market of the real pods, made in `folder` if it is not there."""
    path = folder / "market.safetensors"
    if not path.exists():
        make_market(240, 3, session_bars=10).save(path)
    return path


def real_race(run: RunFolder, wanted: TournamentSettings = SETTINGS, **how: Any) -> SimpleNamespace:
    """A tournament of real pods, in spawned processes unless `how` says otherwise; their market
    lies beside the run."""
    market = market_file(run.root.parent)
    usual = {"env": ENV, "agents": (AGENT,), "seed": 3, "operations": OPERATIONS}
    usual["data_hash"] = MarketTensors.stored_hash(market)
    return raced(run, wanted, market, **{**usual, **how})


def first_spec(agent: Any = AGENT, **changes: Any) -> PodSpec:
    """The first pod of a tournament of real pods with other settings."""
    wanted = SETTINGS.model_copy(update=changes)
    return Generator(
        wanted, (agent,), ENV.model_dump(mode="json"), seed=5, data_hash=""
    ).draw_fresh(0, Leaderboard(4))


def train_pod(folder: Path, spec: PodSpec, **how: Any) -> tuple[PodResult, PodContext]:
    """Train and evaluate one real pod in the run at `folder`, in this process."""
    context = PodContext(RunFolder(folder), market_file(folder), **how)
    context.folder = context.run.pod(spec.pod)
    context.folder.mkdir(parents=True, exist_ok=True)
    return train_and_evaluate(spec, context), context
