# needs: jax
import jax
import jax.numpy as jnp

import fintrader
from fintrader import EnvSettings, TradingEnv
from fintrader.envs.adapters.dlpack import DlpackEnv

market = fintrader.load_market("quickstart").split()
settings = EnvSettings(num_envs=64, episode_bars=100)
env = DlpackEnv(TradingEnv(market.train, settings, seed=1), jax.dlpack.from_dlpack)
obs, _ = env.reset()
weights = jnp.zeros((obs.shape[1], market.train.num_assets))
act = jax.jit(lambda weights, obs: jnp.tanh(obs @ weights))


def log_prob(weights, obs, action):  # of a normal distribution with deviation 0.3
    return -((action - act(weights, obs)) ** 2).sum(1) / 0.18


gradient = jax.jit(jax.grad(lambda *args: (log_prob(*args[:3]) * args[3]).mean()))
for key in jax.random.split(jax.random.key(0), 64):
    action = act(weights, obs) + 0.3 * jax.random.normal(key, (64, market.train.num_assets))
    after, reward, *_ = env.step(action.clip(-1, 1))
    weights += 0.1 * gradient(weights, obs, action, (reward - reward.mean()) / reward.std())
    obs = after
policy = lambda obs: act(weights, jnp.asarray(obs))
print(fintrader.backtest(policy, market.test, settings, name="jax").verdict)
