"""Several traders in one market: shared impact, rewards, ruin, and games that end together."""

import pytest
import torch

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.multi_agent import MultiTraderEnv
from fintrader.envs.settings import TraderSettings
from fintrader.envs.state import check_finite
from fintrader.errors import EnvError
from tests.engines.strategies import random_actions
from tests.factories import make_market, reprice


def flat_market(prices):
    market = make_market(20, 1, gaps=False).window(0, len(prices))
    close = torch.tensor(prices).unsqueeze(1)
    return reprice(market, open=close, close=close.clone())


def test_without_impact_each_trader_is_a_plain_account():
    market = make_market(60, 3)
    settings = EnvSettings(episode_bars=6)
    game = MultiTraderEnv(
        market,
        settings,
        TraderSettings(teams=(1, 1, 1), impact_bps_per_million_usd=0.0),
        num_games=4,
        seed=5,
    )
    plain = TradingEnv(market, settings, num_envs=12, engine="torch")
    obs, _ = game.reset()
    starts = game.account.bar
    assert torch.equal(starts.view(4, 3)[:, 0], starts.view(4, 3)[:, 2])
    assert len(starts.unique()) > 1
    expected, _ = plain.reset(options={"start": starts})
    assert torch.equal(obs.flatten(0, 1), expected)
    for action in random_actions(3, 5, 12, 3):
        obs, reward, *_ = game.step(action.view(4, 3, 3))
        expected, expected_reward, *_ = plain.step(action)
        torch.testing.assert_close(obs.flatten(0, 1), expected)
        torch.testing.assert_close(reward.flatten(), expected_reward)


def test_the_crowd_pays_and_the_contrarian_is_paid():
    market = flat_market([100.0] * 4)
    settings = EnvSettings(
        action="trade", max_shares=1000.0, cost_bps=0.0, start="first", reward="profit"
    )
    traders = TraderSettings(teams=(1, 1, 1), impact_bps_per_million_usd=100.0)
    game = MultiTraderEnv(market, settings, traders)
    game.reset(seed=0)
    game.step(
        torch.tensor([[[0.0], [0.0], [1.0]]])
    )  # the third buys 100,000 USD: price moves 10 bp, he pays 100 USD
    assert game.account.equity.tolist() == pytest.approx([1e6, 1e6, 1e6 - 100])
    game.step(torch.tensor([[[1.0], [1.0], [-1.0]]]))  # net 100,000 USD: bought and sold at 100.10
    assert game.account.equity.tolist() == pytest.approx([1e6 - 100, 1e6 - 100, 1e6])


@pytest.mark.parametrize("cooperation", [1.0, 0.25, 0.0, -0.5, -1.0])
def test_rewards_are_shared_as_asked(cooperation):
    market = make_market(60, 3)
    settings = EnvSettings(start="first", cost_bps=0.0)
    games = [
        MultiTraderEnv(
            market, settings, TraderSettings(teams=(1, 1, 1), cooperation=c), num_games=2
        )
        for c in (0.0, cooperation)
    ]
    for game in games:
        game.reset(seed=0)
    for action in random_actions(1, 5, 6, 3):
        (_, own, *_), (_, shared, *_) = (game.step(action.view(2, 3, 3)) for game in games)
        for g in range(2):
            for k in range(3):
                others = (own[g].sum() - own[g, k]) / 2
                mean = own[g].mean()
                expected = (
                    (1 - cooperation) * own[g, k] + cooperation * mean
                    if cooperation > 0
                    else own[g, k] + cooperation * others
                )
                assert float(shared[g, k]) == pytest.approx(float(expected), abs=1e-6)
        if cooperation == -1.0:
            assert shared.sum(1).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)


def test_ruined_traders_are_out_and_games_end_together():
    market = flat_market([100.0, 100.0, 30.0, 30.0, 60.0])
    settings = EnvSettings(ruin_fraction=0.5, cost_bps=0.0, start="first", reward="profit")
    game = MultiTraderEnv(
        market, settings, TraderSettings(teams=(1, 1), impact_bps_per_million_usd=0.0)
    )
    game.reset(seed=0)
    action = torch.tensor([[[1.0], [0.0]]])
    game.step(action)
    _, reward, terminated, truncated, _ = game.step(action)
    assert terminated.tolist() == [[True, False]]
    assert reward[0].tolist() == pytest.approx([-0.7, 0.0])
    equity = game.account.equity[0]
    _, reward, terminated, truncated, info = game.step(action)
    assert reward.tolist() == [[0.0, 0.0]]
    assert not bool((terminated | truncated).any())
    assert game.account.equity[0] == equity
    _, _, terminated, truncated, info = game.step(action)
    assert terminated.tolist() == [[False, False]]
    assert truncated.tolist() == [[False, True]]
    assert info["_final_obs"].tolist() == [True]
    assert game.account.bar.tolist() == [0, 0]
    assert game.account.equity.tolist() == [1e6, 1e6]


def test_a_nan_counts_as_zero_where_nobody_looks():
    """As on CUDA: what a NaN would do to the books must not depend on the device."""

    class Elsewhere(torch.Tensor):
        device = torch.device("cuda")

    action = torch.tensor([0.5, float("nan"), float("inf"), -float("inf")])
    seen = check_finite(action.as_subclass(Elsewhere)).clamp(-1.0, 1.0)
    assert seen.tolist() == [0.5, 0.0, 1.0, -1.0]


def test_errors():
    game = MultiTraderEnv(make_market(60, 3), num_games=2)
    with pytest.raises(EnvError, match="reset"):
        game.step(torch.zeros(2, 2, 3))
    game.reset(seed=0)
    for bad in (
        torch.zeros(2, 3),
        torch.full((2, 2, 3), float("nan")),
        torch.zeros(2, 2, 3, dtype=torch.int32),
    ):
        with pytest.raises(EnvError):
            game.step(bad)
    with pytest.raises(EnvError, match="num_games"):
        MultiTraderEnv(make_market(60, 3), num_games=0)
