# needs: rl_games
from pathlib import Path

import rl_games
import yaml
from rl_games.common import env_configurations, ivecenv, vecenv
from rl_games.torch_runner import Runner

import fintrader
from fintrader import EnvSettings, TradingEnv
from fintrader.envs.adapters.isaac import IsaacVecEnv

market = fintrader.load_market("quickstart").split()
settings = EnvSettings(num_envs=16, episode_bars=100)
env = type("Env", (IsaacVecEnv, ivecenv.IVecEnv), {})(TradingEnv(market.train, settings, seed=1))
vecenv.register("trading", lambda *names, **options: env)
env_configurations.register("fintrader", {"vecenv_type": "trading"})
config = yaml.safe_load((Path(rl_games.__path__[0]) / "configs/ppo_continuous.yaml").read_text())
config["params"]["config"] |= {"env_name": "fintrader", "horizon_length": 32, "max_epochs": 4}
config["params"]["config"] |= {"minibatch_size": 128, "device": "cpu", "env_config": {}}
runner = Runner()
runner.load(config)
agent = runner.algo_factory.create(runner.algo_name, base_name="run", params=runner.params)
# Its file multiplies rewards by 0.1.
env.bootstrap_with(lambda obs: agent.get_values({"obs": obs}) / 0.1, agent.gamma)
agent.train()
policy = lambda obs: agent.get_action_values({"obs": obs})["mus"].clamp(-1, 1)
print(fintrader.backtest(policy, market.test, settings, name="rl_games").verdict)
