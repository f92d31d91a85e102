"""Settings of small tournaments: of stub pods, and of real PPO pods on a random market."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fintrader.agents import PPO, Budget, NetworkSettings
from fintrader.envs import EnvSettings
from fintrader.runs import RunFolder
from fintrader.tournament.run import TournamentResult, run_tournament
from fintrader.tournament.search_space import Range
from fintrader.tournament.settings import TournamentSettings
from tests.factories import make_market

ORDER = TournamentSettings().order
SEARCH = {"learning_rate": Range(low=1e-5, high=1e-1, log=True), "width": Range(choices=(4, 8, 16), structural=True)}


def settings(**changes: Any) -> TournamentSettings:
    """Small, and the same on every run; tests of the default order ask for it (`order=ORDER`)."""
    values: dict[str, Any] = {"pods": 8, "search": SEARCH, "devices": ("cpu",), "founders": 2, "order": "submission"}
    return TournamentSettings(**{**values, **changes})


# --- real pods -------------------------------------------------------------------------------------------------

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


def real_race(folder: Path, name: str, market: Path) -> TournamentResult:
    """Four real pods in spawned processes."""
    return run_tournament(SETTINGS, folder=RunFolder(folder / name), market=market, env=ENV, agent=AGENT, seed=3)
