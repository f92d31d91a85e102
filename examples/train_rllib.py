# needs: ray.rllib
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

import fintrader
from fintrader import EnvSettings
from fintrader.envs.adapters.rllib import rllib_env

market = fintrader.load_market("quickstart").split()
settings = EnvSettings(episode_bars=100)
ray.init(address="local", include_dashboard=False)
register_env("fintrader", rllib_env)
world = {"market": market.train, "settings": settings}
runners = {"num_env_runners": 0, "num_envs_per_env_runner": 16}
sizes = {"train_batch_size_per_learner": 512, "minibatch_size": 128, "num_epochs": 2}
config = PPOConfig().environment("fintrader", env_config=world).training(**sizes)
config = config.env_runners(**runners, gym_env_vectorize_mode="vector_entry_point")
algorithm = config.build_algo()
for _ in range(2):
    algorithm.train()
module = algorithm.get_module()
mean = lambda obs: module.forward_inference({"obs": obs})["action_dist_inputs"].chunk(2, -1)[0]
print(fintrader.backtest(mean, market.test, settings, name="rllib").verdict)
