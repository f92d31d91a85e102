# needs: elegantrl
import torch
from elegantrl.agents.AgentPPO import AgentPPO
from elegantrl.train.config import Config

import fintrader
from fintrader import EnvSettings, TradingEnv
from fintrader.envs.adapters.isaac import IsaacVecEnv

market = fintrader.load_market("quickstart").split()
settings = EnvSettings(num_envs=16, episode_bars=100)
env = IsaacVecEnv(TradingEnv(market.train, settings, seed=1))

names = ("env_name", "num_envs", "max_step", "state_dim", "action_dim", "if_discrete")
config = Config(AgentPPO, None, {name: getattr(env, name) for name in names})
agent = AgentPPO([64, 64], env.state_dim, env.action_dim, gpu_id=-1, args=config)
env.bootstrap_with(agent.cri, config.gamma)
agent.last_state = env.reset()
for _ in range(4):
    with torch.no_grad():
        steps = agent.explore_env(env, 32)
    agent.update_net(steps)

print(fintrader.backtest(agent.act, market.test, settings, name="elegantrl").verdict)
