# needs: stable_baselines3
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecNormalize

import fintrader
from fintrader import EnvSettings, TradingEnv
from fintrader.envs.adapters.sb3 import Sb3VecEnv

market = fintrader.load_market("quickstart").split()
settings = EnvSettings(num_envs=16, episode_bars=100)
env = VecNormalize(Sb3VecEnv(TradingEnv(market.train, settings, seed=1)))

model = PPO("MlpPolicy", env, n_steps=32, batch_size=128, seed=1, device="cpu")
model.learn(2048)

print(fintrader.backtest(model, market.test, settings, name="sb3").verdict)
