"""Functions of the Python API that train or open something: `fintrader.train`, `run`,
`run_tournament`, `open_run`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fintrader.agents import training
from fintrader.agents.agent import Agent, choose_agent, make_agent
from fintrader.agents.policy import load_policy
from fintrader.agents.settings import Budget
from fintrader.agents.training import TrainResult
from fintrader.config import Settings, validate
from fintrader.errors import ConfigError, RunError, check_keywords
from fintrader.market.tensors import MarketTensors, Split
from fintrader.progress import shorten_list

if TYPE_CHECKING:
    from fintrader.pipeline.config import RunConfig
    from fintrader.results.run import Run


@check_keywords
def train(
    agent: Agent | Settings | str | type[Settings],
    env: Any,
    *,
    env_steps: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    folder: Path | str | None = None,
) -> TrainResult:
    """Train `agent` (`fintrader.agents.PPO()`, `"ppo"` for the same, or an agent of your own) in
    `env`; the result's `.policy` is the trained policy.

    The budget is either `env_steps`, summed over all accounts, or `seconds`. `seed` draws the
    weights, the exploration and the episodes of an agent that is made here; an agent of your own
    has its seed already. With `folder` the training's state and metrics are stored there, and the
    same call resumes the training.

    Raises ConfigError for any other agent or environment, and for none or both of the budgets;
    TrainingError when a number is no longer finite; CheckpointError when `folder` holds a training
    of another seed or of other settings (the budget may differ).
    """
    chosen = choose_agent(agent)
    if isinstance(chosen, type) or not (
        isinstance(chosen, Settings) or callable(getattr(chosen, "act", None))
    ):
        raise ConfigError(
            "the first argument is the agent, such as fintrader.agents.PPO(); got "
            f"{type(agent).__name__}; call train(agent, env, env_steps=...)"
        )
    _check_environment(env)
    if not hasattr(seed, "__index__"):
        raise ConfigError(f"train: seed: expected a whole number, got {seed!r}")
    budget = validate(Budget, {"env_steps": env_steps, "seconds": seconds}, "train")
    if isinstance(chosen, Settings):
        if not hasattr(env, "layout"):
            raise ConfigError(
                f"{type(env).__name__} does not say what its observations hold (layout); give it"
                " one, such as fintrader.agents.FlatLayout(width, num_actions), or make the agent:"
                " fintrader.agents.make_agent"
            )
        chosen = make_agent(chosen, env.layout, device=getattr(env, "device", "cpu"), seed=seed)
    return training.train(chosen, env, budget, folder=None if folder is None else Path(folder))


def _check_environment(env: object) -> None:
    if isinstance(env, MarketTensors | Split):
        window = "market.split().train" if isinstance(env, Split) else "market"
        raise ConfigError(
            "agents train in an environment, not in a market: "
            f"make one, fintrader.TradingEnv({window}, num_envs=1024), and pass that"
        )
    count = getattr(env, "num_envs", None)
    if not isinstance(count, int) or not all(
        hasattr(env, name) for name in ("reset", "step", "state_dict")
    ):
        raise ConfigError(
            f"{type(env).__name__} is no vector environment of torch tensors (num_envs, reset,"
            " step, state_dict); make a fintrader.TradingEnv(market, num_envs=1024), or wrap a"
            " gymnasium one in fintrader.envs.classic.WorkerEnv"
        )


@check_keywords
def run(config: RunConfig | Mapping[str, Any] | Path | str, **overrides: Any) -> Run:
    """Run the whole pipeline: bars, market, tournament, null model, backtest.

    `config`: a configuration's name (`"quickstart"`), the path of a YAML file, settings, or plain
    values; `overrides` replace parts of it: `run("quickstart", name="mine", env={"cost_bps": 5})`.
    A killed run is resumed, a finished one opened. Raises ConfigError naming the setting,
    DataError, RunError when the folder is in use or was made with other settings.
    """
    from fintrader.pipeline import run_stages  # `train` begins without the pipeline's imports
    from fintrader.pipeline.config import configure

    return open_run(run_stages.run(configure(config, overrides)))


@check_keywords
def run_tournament(config: RunConfig | Mapping[str, Any] | Path | str, **overrides: Any) -> Run:
    """Build the market and run the tournament, without a look at the test window."""
    from fintrader.pipeline import run_stages
    from fintrader.pipeline.config import configure

    return open_run(run_stages.run_tournament(configure(config, overrides)))


@check_keywords
def open_run(where: Path | str) -> Run:
    """Open a stored run by its folder or its URL in a store (which is copied here).

    Raises RunError when no run is there, StorageError when the store cannot be read.
    """
    from fintrader.pipeline import session
    from fintrader.results.run import Run
    from fintrader.runs import RunFolder

    home = session.open_run(str(where))
    if not RunFolder(home).config.is_file():
        below = sorted(path.parent.name for path in home.glob("*/config.yaml"))
        hint = (
            f"runs below it: {shorten_list(below)}" if below else "fintrader.run(CONFIG) makes one"
        )
        raise RunError(f"{where}: there is no run here (no config.yaml); {hint}")
    return Run(home, load_policy=load_policy)
