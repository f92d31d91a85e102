"""Libraries whose training loops `borrowed.py` measures, as docs/own-loop.md lists them."""

from __future__ import annotations

from typing import NamedTuple

PENDULUM = "Pendulum-v1"


class Library(NamedTuple):
    """A library, its script in `examples/`, and the two environments of its loop."""

    title: str
    package: str
    """Its distribution; empty for a loop of one's own."""
    environment: str
    """Folder `.venv-...` of `make test-adapters`."""
    script: str
    through: str
    limitation: str
    loop: str
    reference: str


PLAIN = "gymnasium's Pendulum"
LIBRARIES = {
    "stable_baselines3": Library(
        "Stable-Baselines3",
        "stable_baselines3",
        "adapters",
        "train_stable_baselines3",
        "`Sb3VecEnv`",
        "every array is copied",
        "`PPO.learn`",
        f"{PLAIN} in its `DummyVecEnv`",
    ),
    "sb3_contrib": Library(
        "sb3-contrib",
        "sb3-contrib",
        "sb3-contrib",
        "train_sb3_contrib",
        "`Sb3VecEnv`",
        "as above",
        "`RecurrentPPO.learn`",
        f"{PLAIN} in `DummyVecEnv`",
    ),
    "cleanrl_style": Library(
        "CleanRL-style loop",
        "",
        "adapters",
        "train_cleanrl_style",
        "`TradingEnv`",
        "nothing",
        "the script's, an update a step",
        f"{PLAIN} in `SyncVectorEnv`",
    ),
    "tianshou": Library(
        "tianshou",
        "tianshou",
        "tianshou",
        "train_tianshou",
        "`gymnasium.make`",
        "speed: it steps accounts one by one, in Python",
        "`PPO.run_training`",
        f"{PLAIN} in its `DummyVectorEnv`",
    ),
    "torchrl": Library(
        "TorchRL",
        "torchrl",
        "adapters",
        "train_torchrl",
        "`TorchRLEnv`",
        "resets cost a step of their own, by mask",
        "`Collector` and `ClipPPOLoss`",
        f"{PLAIN} in its `SerialEnv`",
    ),
    "skrl": Library(
        "skrl",
        "skrl",
        "adapters",
        "train_skrl",
        "`SkrlEnv`",
        "`rewards_shaper`",
        "`SequentialTrainer.train`",
        f"{PLAIN} in `SyncVectorEnv`",
    ),
    "rsl_rl": Library(
        "rsl_rl",
        "rsl-rl-lib",
        "rsl-rl-lib",
        "train_rsl_rl",
        "`RslRlEnv`",
        "`init_at_random_ep_len`: accounts begin at random bars anyway",
        "`OnPolicyRunner.learn`",
        f"{PLAIN} behind its contract",
    ),
    "rl_games": Library(
        "rl_games",
        "rl-games",
        "rl-games",
        "train_rl_games",
        "`IsaacVecEnv`",
        "without `bootstrap_with` it values a time limit by the state before, wrong by γ(V(s) −"
        " V(final)); its `reward_shaper` also multiplies what the wrapper adds: divide V by it",
        "`train_epoch`",
        f"{PLAIN} behind its contract",
    ),
    "elegantrl": Library(
        "ElegantRL",
        "elegantrl",
        "elegantrl",
        "train_elegantrl",
        "`IsaacVecEnv`",
        "installed without its dependencies; without `bootstrap_with` a time limit is an end, wrong by γV(final); `train_agent`, which"
        " also evaluates and writes files: the script calls its agent",
        "`explore_env` and `update_net`",
        "its `PointChasingVecEnv`",
    ),
    "rllib": Library(
        "RLlib",
        "ray",
        "rllib",
        "train_rllib",
        "`rllib_env`",
        "arrays in numpy; one step in each episode only resets",
        "`PPO.train`, in one process",
        f"{PLAIN}, vectorised by RLlib",
    ),
    "agilerl": Library(
        "AgileRL",
        "agilerl",
        "agilerl",
        "train_agilerl",
        "`NumpyVectorEnv`, `NEXT_STEP`",
        "it stores the step that only resets as a transition, as with its own environments: wrong"
        " by γV(first) − V(final)",
        "`train_off_policy` of TD3",
        f"{PLAIN} in its `make_vect_envs`",
    ),
    "jax": Library(
        "JAX",
        "jax",
        "adapters",
        "train_jax",
        "`DlpackEnv`",
        "the step itself cannot be compiled by `jax.jit`",
        "the script's, two hidden layers",
        "gymnasium's Pendulum in JAX, compiled",
    ),
}
