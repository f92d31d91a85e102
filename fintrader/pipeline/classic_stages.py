"""Stages of a run in a classic environment, which has test episodes instead of a market and a
backtest."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path

from fintrader.agents import AgentSettings, load_policy, make_agent
from fintrader.envs.classic import WorkerEnv
from fintrader.envs.settings import GymnasiumSettings
from fintrader.files import hash_file, write_json, write_text
from fintrader.market.tensors import MarketTensors
from fintrader.records import to_json
from fintrader.report.page import Page
from fintrader.results.episode_scores import FILE, FOLDER, EpisodeScores, present_episodes
from fintrader.results.folders import Folder
from fintrader.runs import Manifest, RunFolder
from fintrader.terminal_progress import reporter
from fintrader.tournament.episodes import draw_seeds, play_episodes

ENVIRONMENT = "environment.json"
STAGES = ("data", "tournament", "evaluation")


def write_environment(
    folder: RunFolder,
    settings: GymnasiumSettings,
    agents: Sequence[AgentSettings],
    manifest: Manifest,
) -> Path:
    """Write `environment.json`; its hash determines the seeds of the evaluation.

    Raises ConfigError, before any pod begins, if the environment cannot be made or an agent cannot
    learn in it.
    """
    single = settings.model_copy(update={"num_envs": 1, "workers": "sync"})
    with contextlib.closing(WorkerEnv.make(single)) as env:
        for agent in agents:
            make_agent(agent, env.layout).prepare_env(env)
    path = folder.root / ENVIRONMENT
    write_json(path, {"id": settings.id, "seed": manifest.values["seed"]})
    manifest.update(market=str(path), data_hash=hash_file(path))
    return path


def hash_market(path: Path) -> str:
    """Read a market file's content hash, or hash a classic environment's file."""
    return hash_file(path) if path.name == ENVIRONMENT else MarketTensors.stored_hash(path)


def run_evaluation(folder: RunFolder, settings: GymnasiumSettings, manifest: Manifest) -> Path:
    """Play the test episodes with the ensemble and the best pod, unless that is done; print the
    scores, and return the run's folder."""
    home = folder.root / FOLDER
    if not manifest.done("evaluation"):
        best = manifest.values["best"]
        _, seeds = draw_seeds(manifest.values["data_hash"])
        places = {"ensemble": folder.ensemble, "best": folder.pod(best)}
        with manifest.stage("evaluation"), reporter() as progress:
            returns = {
                policy: play_episodes(
                    load_policy(place / "policy.safetensors"), seeds, settings, progress
                )
                for policy, place in places.items()
            }
            scores = EpisodeScores(settings.id, best, manifest.values["trials"], returns)
            write_json(home / FILE, to_json(scores))
            page = Page(folder.label)
            page.add_header(folder.label, present_episodes(scores))
            write_text(home / "report.html", page.render())
    manifest.finish()
    print(present_episodes(Folder.locate(home).record(EpisodeScores, FILE)))
    print(f"  {home / 'report.html'}")
    return folder.root
