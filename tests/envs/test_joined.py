import pytest
import torch

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.joined import JoinedEnv, share_accounts
from fintrader.errors import EnvError
from fintrader.seeding import derive
from tests.factories import make_market

MARKET = make_market(90, 3, session_bars=10)
PIECES = (MARKET.window(0, 30), MARKET.window(50, 90))


@pytest.mark.parametrize("lookback", [1, 3])
@pytest.mark.parametrize("observation", ["flat", "factored"])
def test_every_piece_is_the_environment_it_would_be_alone(observation, lookback):
    """What accounts see and earn, bit for bit; a clock counts the bars of the pieces, one after
    another."""
    settings = EnvSettings(num_envs=7, episode_bars=12, observation=observation, lookback=lookback)
    joined = JoinedEnv(PIECES, settings, seed=3)
    alone = [
        TradingEnv(piece, settings, num_envs=count, seed=derive(3, "piece", number))
        for number, (piece, count) in enumerate(zip(PIECES, (3, 4), strict=True))
    ]
    rows = torch.cat([env.market_rows for env in alone])
    assert torch.equal(joined.table.whole, rows)
    assert torch.equal(joined.table[torch.arange(70)], rows)

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


def test_accounts_are_shared_out_by_length():
    assert share_accounts(EnvSettings(num_envs=10), [100, 300]) == [3, 7]
    assert share_accounts(EnvSettings(num_envs=10), [1, 100_000]) == [1, 9]
    assert share_accounts(EnvSettings(num_envs=256, start_groups=4), [100, 300]) == [64, 192]
    assert share_accounts(EnvSettings(num_envs=6), [50]) == [6]
    with pytest.raises(EnvError, match="1 group of 1 accounts"):
        share_accounts(EnvSettings(num_envs=1), [50, 50])
