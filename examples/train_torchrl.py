# needs: torchrl
import torch
from gymnasium.vector import AutoresetMode
from tensordict.nn import TensorDictModule as Module
from torchrl.collectors import Collector
from torchrl.modules import MLP, NormalParamExtractor, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import ClipPPOLoss

import fintrader
from fintrader.envs.adapters.torchrl import TorchRLEnv

market = fintrader.load_market("quickstart").split()
settings = fintrader.EnvSettings(num_envs=16, episode_bars=100)
inner = fintrader.TradingEnv(market.train, settings, seed=1, autoreset_mode=AutoresetMode.DISABLED)
env, width, assets = TorchRLEnv(inner), inner.layout.width, inner.layout.num_assets

net = torch.nn.Sequential(MLP(width, 2 * assets, num_cells=[64]), NormalParamExtractor())
net = Module(net, in_keys=["observation"], out_keys=["loc", "scale"])
keys = {"in_keys": ["loc", "scale"], "return_log_prob": True}
actor = ProbabilisticActor(net, **keys, distribution_class=TanhNormal)
critic = ValueOperator(MLP(width, 1, num_cells=[64]), in_keys=["observation"])
loss = ClipPPOLoss(actor, critic)
adam = torch.optim.Adam(loss.parameters(), lr=3e-4)
for data in Collector(env, actor, frames_per_batch=512, total_frames=2048):
    losses = loss(data)  # with advantages (GAE) of its own
    adam.zero_grad()
    sum(losses[f"loss_{name}"] for name in ("objective", "critic", "entropy")).backward()
    adam.step()
print(fintrader.backtest(lambda obs: torch.tanh(net(obs)[0]), market.test, settings).verdict)
