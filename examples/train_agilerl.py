# needs: agilerl
from agilerl.algorithms import TD3
from agilerl.components import ReplayBuffer
from agilerl.training.train_off_policy import train_off_policy
from gymnasium.vector import AutoresetMode

import fintrader
from fintrader import EnvSettings, TradingEnv
from fintrader.envs.adapters.gymnasium import NumpyVectorEnv

market = fintrader.load_market("quickstart").split()
settings = EnvSettings(num_envs=16, episode_bars=100)
inner = TradingEnv(market.train, settings, seed=1, autoreset_mode=AutoresetMode.NEXT_STEP)
env = NumpyVectorEnv(inner)

spaces = (env.single_observation_space, env.single_action_space)
population = [TD3(*spaces, index=number, vect_noise_dim=16) for number in range(2)]
memory = ReplayBuffer(max_size=10_000)
limits = {"max_steps": 4096, "evo_steps": 1024, "eval_steps": 100, "verbose": False}
population, fitness = train_off_policy(env, "fintrader", "TD3", population, memory, **limits)
policy = lambda obs: population[0].get_action(obs, training=False)
print(fintrader.backtest(policy, market.test, settings, name="agilerl").verdict)
