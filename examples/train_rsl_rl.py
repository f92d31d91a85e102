# needs: rsl_rl
from rsl_rl.runners import OnPolicyRunner

import fintrader
from fintrader import EnvSettings, TradingEnv
from fintrader.envs.adapters.isaac import RslRlEnv

market = fintrader.load_market("quickstart").split()
settings = EnvSettings(num_envs=16, episode_bars=100)
env = RslRlEnv(TradingEnv(market.train, settings, seed=1))

groups = {"actor": ["policy"], "critic": ["policy"]}
noise = {"class_name": "GaussianDistribution", "init_std": 0.5}
actor = {"class_name": "MLPModel", "hidden_dims": [64, 64], "distribution_cfg": noise}
config = {"num_steps_per_env": 32, "save_interval": 100, "obs_groups": groups, "actor": actor}
config["critic"] = {"class_name": "MLPModel", "hidden_dims": [64, 64]}
config["algorithm"] = {"class_name": "PPO", "gamma": 0.99}
runner = OnPolicyRunner(env, config)
env.bootstrap_with(lambda obs: runner.alg.critic(env.pack(obs)), 0.99)
runner.learn(4)

policy = runner.get_inference_policy()
print(fintrader.backtest(lambda obs: policy(env.pack(obs)), market.test, settings).verdict)
