import pytest
import torch

from fintrader.agents.normalisation import ObservationNormaliser, RewardScaler
from fintrader.envs import ObservationLayout
from fintrader.envs.observation import FlatLayout, MarketTable, statistic_groups
from fintrader.errors import ConfigError

LAYOUT = ObservationLayout(5, 3, 2)


def test_observation_statistics_pool_assets_and_match_numpy():
    groups = statistic_groups(LAYOUT)
    slices = LAYOUT.slices
    assert groups[slices["features"]].reshape(5, 3).unique(dim=0).shape[0] == 1
    assert groups[slices["holdings"]].unique().numel() == 1
    obs = torch.randn(40, LAYOUT.width, dtype=torch.float32) * 2 + 100
    normaliser = ObservationNormaliser(LAYOUT)
    for part in obs.split([1, 9, 30]):
        normaliser.update(part)
    assert bool((normaliser.count == 40).all())
    second = obs[:, slices["features"]].reshape(-1, 3)[:, 1].double()
    column = int(groups[slices["features"]][1])
    assert normaliser.mean[column].item() == pytest.approx(second.mean().item(), abs=1e-5)
    assert normaliser.var[column].item() == pytest.approx(second.var(correction=0).item(), rel=1e-4)
    seen = normaliser.normalise(obs)
    scaled = torch.cat([seen.private, seen.rows], dim=1)[:, slices["features"]].reshape(-1, 3)[:, 1]
    assert scaled.mean().item() == pytest.approx(0, abs=1e-3)
    assert scaled.std(correction=0).item() == pytest.approx(1, abs=1e-3)
    copy = ObservationNormaliser(LAYOUT)
    copy.load_state_dict(normaliser.state_dict())
    assert all(
        torch.equal(one, other)
        for one, other in zip(copy.normalise(obs)[:2], seen[:2], strict=True)
    )


@pytest.mark.parametrize("lookback", [1, 4])
def test_a_table_is_known_from_the_start(lookback):
    """5,000 bars, which go into the statistics in two pieces."""
    layout = ObservationLayout(5, 3, 2, lookback=lookback)
    normaliser = ObservationNormaliser(layout)
    bars = 5_000
    rows = torch.randn(bars, layout.row_width, generator=torch.Generator().manual_seed(0)) * 3 + 7
    table = MarketTable((rows,), lookback=lookback)
    normaliser.update(
        torch.ones(6, layout.private_width + 1)
    )  # clocked: says nothing of the market
    assert not normaliser.has_market_statistics
    normaliser.update_market(table)
    assert normaliser.has_market_statistics
    features, tradable, context = rows.double().split([15, 5, 2], dim=1)
    by_hand = [*features.reshape(-1, 3).unbind(1), tradable.flatten(), *context.unbind(1)]
    mean, var = (normaliser.state_dict()[name] for name in ("mean", "var"))
    private = layout.account_width + 1  # the holdings have one statistic
    torch.testing.assert_close(
        mean[private:], torch.stack([column.mean() for column in by_hand]), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        var[private:],
        torch.stack([column.var(correction=0) for column in by_hand]),
        atol=1e-5,
        rtol=1e-5,
    )
    assert normaliser.count.tolist() == [6] * private + [bars] * len(by_hand)


def test_what_is_private_goes_on_merging_and_the_market_stays():
    flat = ObservationNormaliser(LAYOUT)
    clocked = ObservationNormaliser(LAYOUT)
    clocked.update_market(MarketTable((torch.randn(30, LAYOUT.market_width),)))
    before = clocked.state_dict()["mean"].clone()
    private = LAYOUT.account_width + 1
    for seed, count in enumerate((1, 9, 30)):
        obs = torch.randn(count, LAYOUT.width, generator=torch.Generator().manual_seed(seed)) + seed
        flat.update(obs)
        clocked.update(
            torch.cat([obs[:, : LAYOUT.private_width], torch.full((count, 1), 29.0)], dim=1)
        )
    for name in ("mean", "var", "count"):
        mine = clocked.state_dict()[name]
        theirs = flat.state_dict()[name]
        torch.testing.assert_close(mine[:private], theirs[:private])
    assert torch.equal(clocked.mean[private:], before[private:])
    assert ObservationNormaliser(FlatLayout(3, 1)).has_market_statistics  # there is none


def test_rewards_are_divided_by_the_deviation_of_their_return():
    scaler = RewardScaler(0.5)
    rewards = torch.tensor([[1.0], [2.0], [4.0]])
    scaler.update(rewards[:2], torch.tensor([[False], [True]]))
    scaler.update(rewards[2:], torch.tensor([[False]]))
    # returns: 1, 2 + 0.5·1 = 2.5, then a new episode: 4
    deviation = torch.tensor([1.0, 2.5, 4.0]).std(correction=0)
    torch.testing.assert_close(scaler(rewards), rewards / deviation)


def test_clocks_without_a_market_are_refused():
    with pytest.raises(
        ConfigError,
        match=r"observations are 10 wide, the layout's 31; .* agent\.prepare_env\(env\)",
    ):
        ObservationNormaliser(LAYOUT).normalise(torch.zeros(2, LAYOUT.private_width + 1))
