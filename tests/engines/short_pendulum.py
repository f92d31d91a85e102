"""Pendulum with short episodes: `tests.engines.short_pendulum:ShortPendulum-v0`. The test episodes
of a run would take longer than all the rest of it."""

import gymnasium
from gymnasium.envs.classic_control import PendulumEnv

gymnasium.register("ShortPendulum-v0", PendulumEnv, max_episode_steps=20)
