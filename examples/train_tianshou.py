# needs: tianshou
import gymnasium
from tianshou.algorithm.modelfree.ppo import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy as Policy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams as Params
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic, ContinuousCritic
from torch.distributions import Independent, Normal

import fintrader

market = fintrader.load_market("quickstart").split()
options = {"market": market.train, "settings": fintrader.EnvSettings(episode_bars=100)}
envs = DummyVectorEnv([lambda: gymnasium.make("fintrader/Trading-v0", **options)] * 8)
shape, space = envs.observation_space[0].shape, envs.action_space[0]
nets = [Net(state_shape=shape, hidden_sizes=[64, 64]) for _ in range(2)]
actor = ContinuousActorProbabilistic(preprocess_net=nets[0], action_shape=space.shape)
spread = lambda parts: Independent(Normal(*parts), 1)
policy = Policy(actor=actor, dist_fn=spread, action_space=space, deterministic_eval=True)
critic = ContinuousCritic(preprocess_net=nets[1])
algorithm = PPO(policy=policy, critic=critic, optim=AdamOptimizerFactory(lr=3e-4))
collector = Collector(algorithm, envs, VectorReplayBuffer(4096, 8))
algorithm.run_training(Params(training_collector=collector, max_epochs=1, epoch_num_steps=2048))
act = lambda obs: policy.eval().compute_action(obs[0])
print(fintrader.backtest(act, market.test, options["settings"], name="tianshou").verdict)
