import pytest
import torch

from fintrader.agents import (
    APG,
    PPO,
    SAC,
    Budget,
    NetworkSettings,
    make_agent,
    read_agent_state,
    train,
)
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.joined import JoinedEnv, shares_of
from fintrader.errors import EnvError
from fintrader.seeding import derive
from tests.engines.twins import assert_same
from tests.factories import make_market

MARKET = make_market(90, 3, session_bars=10)
PIECES = (MARKET.window(0, 30), MARKET.window(50, 90))


@pytest.mark.parametrize("observation", ["flat", "factored"])
def test_every_piece_is_the_environment_it_would_be_alone(observation):
    """What accounts see and earn, bit for bit; a clock counts the bars of the pieces, one after
    another."""
    settings = EnvSettings(num_envs=7, episode_bars=12, observation=observation)
    joined = JoinedEnv(PIECES, settings, seed=3)
    alone = [
        TradingEnv(piece, settings, num_envs=count, seed=derive(3, "piece", number))
        for number, (piece, count) in enumerate(zip(PIECES, (3, 4), strict=True))
    ]
    rows = torch.cat([env.market_rows for env in alone])
    assert torch.equal(joined.market_rows, rows)

    def flat(shown):
        if observation == "flat":
            return shown
        return torch.cat([shown["private"], rows[shown["clock"]]], dim=-1)

    def joint(shown):
        if observation == "factored":
            shown[1] = {**shown[1], "clock": shown[1]["clock"] + 30}
        return torch.cat([flat(one) for one in shown])

    seen, _ = joined.reset()
    assert torch.equal(flat(seen), joint([env.reset()[0] for env in alone]))
    generator = torch.Generator().manual_seed(0)
    ended = 0
    for _ in range(40):
        action = torch.rand((7, 3), generator=generator)
        seen, reward, _, truncated, info = joined.step(action)
        steps = [env.step(part) for env, part in zip(alone, action.split([3, 4]), strict=True)]
        assert torch.equal(flat(seen), joint([step[0] for step in steps]))
        assert torch.equal(reward, torch.cat([step[1] for step in steps]))
        assert torch.equal(truncated, torch.cat([step[3] for step in steps]))
        done = info["_final_obs"]
        ended += int(done.sum())
        final = joint([step[4]["final_obs"] for step in steps])
        assert torch.equal(flat(info["final_obs"])[done], final[done])
    assert ended > 7  # episodes have begun anew, each in its own piece


@pytest.mark.usefixtures("frequent_reports")
@pytest.mark.parametrize(
    "agent",
    [
        PPO(network=NetworkSettings(), num_steps=8, num_minibatches=1),
        SAC(
            network=NetworkSettings(),
            learning_starts=16,
            batch_size=8,
            buffer_size=500,
        ),
        APG(network=NetworkSettings(), num_steps=4),
    ],
    ids=lambda agent: agent.algo,
)
def test_agents_learn_in_it_and_resume_bit_exactly(agent, tmp_path):
    def learn(folder, *shares):
        for share in shares:
            env = JoinedEnv(PIECES, EnvSettings(num_envs=4), seed=1)
            made = make_agent(agent, env.layout, seed=2)
            train(made, env, Budget(env_steps=128), folder=tmp_path / folder, share=share)
        return read_agent_state(tmp_path / folder)

    assert_same(learn("whole", 1.0), learn("parts", 0.25, 0.5, 1.0))


def test_accounts_are_shared_out_by_length():
    assert shares_of(EnvSettings(num_envs=10), [100, 300]) == [3, 7]
    assert shares_of(EnvSettings(num_envs=10), [1, 100_000]) == [1, 9]
    assert shares_of(EnvSettings(num_envs=256, start_groups=4), [100, 300]) == [64, 192]
    assert shares_of(EnvSettings(num_envs=6), [50]) == [6]
    with pytest.raises(EnvError, match="1 accounts in 1 group"):
        shares_of(EnvSettings(num_envs=1), [50, 50])
