"""Episodes of a classic environment that score policies, as windows do in a market.

Every pod of a tournament plays the same validation episodes. Seeds of validation and test episodes
are derived from the hash of the run's `environment.json`. Training never uses them: its seeds are
below `LEAST_EVALUATION_SEED`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from torch import Tensor

from fintrader.envs.classic import LEAST_EVALUATION_SEED, WorkerEnv, episode_returns
from fintrader.envs.settings import GymnasiumSettings
from fintrader.progress import Progress

VALIDATION_EPISODES = 20
TEST_EPISODES = 100


def draw_seeds(data_hash: str) -> tuple[range, range]:
    """Derive the seeds of the validation episodes, which choose pods, and of the test episodes,
    which only the chosen policies play."""
    first = LEAST_EVALUATION_SEED + int(data_hash[:7], 16)
    end = first + VALIDATION_EPISODES
    return range(first, end), range(end, end + TEST_EPISODES)


def play_episodes(
    policy: Callable[[Tensor], Tensor],
    seeds: Sequence[int],
    settings: GymnasiumSettings,
    progress: Progress,
) -> tuple[float, ...]:
    """Play an episode for each seed, all in this process, and return their undiscounted
    returns."""
    copies = settings.model_copy(update={"num_envs": len(seeds), "workers": "sync"})
    with (
        contextlib.closing(WorkerEnv.make(copies)) as env,
        progress.task("evaluation", unit="steps") as task,
    ):

        def act(obs: Tensor) -> Tensor:
            task.advance()
            return policy(obs)

        return tuple(episode_returns(env, act, len(seeds), seed=seeds))
