# needs: torch
import torch
from torch import nn
from torch.distributions import Normal

import fintrader

market = fintrader.load_market("quickstart").split()
settings = fintrader.EnvSettings(num_envs=64, episode_bars=100)
env = fintrader.TradingEnv(market.train, settings, seed=1)
net = lambda outputs: nn.Sequential(nn.LazyLinear(64), nn.Tanh(), nn.LazyLinear(outputs))
actor, critic = nn.Sequential(net(market.train.num_assets), nn.Tanh()), net(1)
obs, _ = env.reset()
value = lambda obs: critic(obs).squeeze(-1)
actor(obs), value(obs)  # the first call makes the layers
adam = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
for _ in range(64):
    choice = Normal(actor(obs), 0.3)
    action = choice.sample()
    after, reward, terminated, truncated, info = env.step(action)
    led_to = torch.where((terminated | truncated)[:, None], info["final_obs"], after)
    advantage = reward + 0.99 * value(led_to).detach() * ~terminated - value(obs)
    loss = advantage.square().mean() - (choice.log_prob(action).sum(1) * advantage.detach()).mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
    obs = after
print(fintrader.backtest(actor, market.test, settings, name="loop").verdict)
