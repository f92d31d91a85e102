# needs: skrl
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.memories.torch import RandomMemory
from skrl.trainers.torch import SequentialTrainer
from skrl.utils.model_instantiators.torch import deterministic_model, gaussian_model

import fintrader
from fintrader import EnvSettings, TradingEnv
from fintrader.envs.adapters.skrl import SkrlEnv

market = fintrader.load_market("quickstart").split()
settings = EnvSettings(num_envs=16, episode_bars=100)
env = SkrlEnv(TradingEnv(market.train, settings, seed=1))

spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
layers = [{"name": "net", "input": "OBSERVATIONS", "layers": [64, 64], "activations": "elu"}]
actor = gaussian_model(**spaces, network=layers, output="ACTIONS")
models = {"policy": actor, "value": deterministic_model(**spaces, network=layers, output="ONE")}
memory = RandomMemory(memory_size=32, num_envs=16)
agent = PPO(models=models, memory=memory, cfg=PPO_CFG(rollouts=32), **spaces)
env.bootstrap_with(agent)
SequentialTrainer(env=env, agents=agent, cfg={"timesteps": 128}).train()

policy = lambda obs: actor.act({"observations": obs})[1]["mean_actions"]
print(fintrader.backtest(policy, market.test, settings, name="skrl").verdict)
