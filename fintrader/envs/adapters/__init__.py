"""Adapters of `TradingEnv` to other libraries; each imports its library only when it is used.

| module | for | autoreset mode it needs |
|---|---|---|
| `gymnasium` | `gymnasium.make`: one account, numpy; `NumpyVectorEnv`: many | DISABLED; any |
| `sb3` | Stable-Baselines3 `VecEnv` | SAME_STEP |
| `torchrl` | torchrl `EnvBase` | DISABLED (it resets by mask) |
| `skrl` | skrl, tensors without a copy | SAME_STEP, bootstrapped by the wrapper |
| `isaac` | rsl_rl, rl_games, ElegantRL: Isaac Gym's contract | SAME_STEP, bootstrapped by the wrapper |
| `rllib` | RLlib's new API stack | NEXT_STEP |
| `pettingzoo` | several traders in one market | none: episodes end together |
| `dlpack` | JAX, CuPy, numpy through DLPack | any |
"""
