"""The observation: layout, scale-free account features, factored and bfloat16 forms."""

import pytest
import torch

from fintrader.envs import EnvSettings, ObservationLayout, TradingEnv
from fintrader.envs.observation import layout_from_json, layout_to_json
from fintrader.errors import CheckpointError
from tests.engines.strategies import random_actions
from tests.factories import make_market


def test_layout_round_trip_and_parts():
    layout = ObservationLayout(num_assets=3, num_features=2, num_context=5)
    assert layout.width == 4 + 3 + 6 + 3 + 5
    assert layout_from_json(layout_to_json(layout)) == layout
    parts = layout.split(torch.arange(2 * layout.width).reshape(2, -1))
    assert {name: tuple(part.shape) for name, part in parts.items()} == {
        "account": (2, 4),
        "holdings": (2, 3),
        "features": (2, 3, 2),
        "tradable": (2, 3),
        "context": (2, 5),
    }
    assert parts["features"][0].tolist() == [[7, 8], [9, 10], [11, 12]]
    with pytest.raises(CheckpointError, match="num_features"):
        layout_from_json({"kind": "market", "layout": {"num_assets": 3}})


def test_every_part_holds_what_it_says():
    market = make_market(60, 4, gaps=True)
    env = TradingEnv(market, EnvSettings(episode_bars=30, start="first"), num_envs=2)
    env.reset(seed=0)
    actions = random_actions(1, 12, 2, 4)
    equities = [env.equity]
    for action in actions:
        obs, *_ = env.step(action)
        equities.append(env.equity)
    parts = env.layout.split(obs.double())
    account = env.account
    bar = int(account.bar[0])
    peak = torch.stack(equities).amax(0)
    expected = torch.stack(
        (
            account.cash / env.equity,
            env.equity / 1e6 - 1,
            env.equity / peak - 1,
            torch.full((2,), 18 / 30),
        ),
        1,
    )
    torch.testing.assert_close(parts["account"], expected, rtol=0, atol=1e-7)
    weights = torch.nan_to_num(account.shares * market.close[bar].double()) / env.equity.unsqueeze(
        1
    )
    torch.testing.assert_close(parts["holdings"], weights, rtol=0, atol=1e-7)
    torch.testing.assert_close(
        parts["account"][:, 0] + parts["holdings"].sum(1), torch.ones(2).double()
    )
    for i in range(2):
        assert torch.equal(parts["features"][i].float(), market.features[bar])
        assert torch.equal(parts["tradable"][i].bool(), market.tradable[bar])
        assert torch.equal(parts["context"][i].float(), market.context[bar])


def test_account_features_do_not_depend_on_the_account_size():
    market = make_market(60, 4)
    settings = EnvSettings(fractional=True, start="first")
    small, large = (TradingEnv(market, settings, num_envs=2) for _ in range(2))
    small.reset(options={"cash_usd": 1e3})
    large.reset(options={"cash_usd": 1e8})
    for action in random_actions(2, 20, 2, 4):
        torch.testing.assert_close(
            small.step(action)[0], large.step(action)[0], rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(("dtype", "lookback"), [("float32", 1), ("bfloat16", 1), ("float32", 3)])
def test_factored_observation_assembles_to_the_flat_one(dtype, lookback):
    market = make_market(60, 4)
    settings = EnvSettings(episode_bars=7, observation_dtype=dtype, lookback=lookback)
    flat = TradingEnv(market, settings, num_envs=3)
    factored = TradingEnv(
        market, settings.model_copy(update={"observation": "factored"}), num_envs=3
    )
    a, _ = flat.reset(seed=0)
    b, _ = factored.reset(seed=0)
    for action in random_actions(0, 20, 3, 4):
        assert a.dtype == {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
        assert torch.equal(
            a, factored.layout.assemble(b["private"], factored.market_rows[b["clock"]])
        )
        a, *_, flat_info = flat.step(action)
        b, *_, factored_info = factored.step(action)
        shown = factored.table[b["clock"]]
        assert torch.equal(shown, factored.market_rows[b["clock"]])
        final = factored_info["final_obs"]
        whole = factored.layout.assemble(final["private"], factored.market_rows[final["clock"]])
        assert torch.equal(flat_info["final_obs"], whole)


def test_private_part_of_a_ruined_account_is_finite():
    env = TradingEnv(make_market(60, 2), num_envs=1)
    env.reset(seed=0)
    ruined = env.account._replace(cash=-env.account.cash, equity=-env.account.equity)
    assert bool(env.observe_accounts(ruined).isfinite().all())


def test_clocks_of_a_session_and_none():
    market = make_market(23, 2, session_bars=5)
    lengths = [5, 5, 5, 5, 3]
    slow = [(length - 1 - bar) / length for length in lengths for bar in range(length)]
    for clock, expected in (("session", slow), ("none", [0.0] * 23)):
        env = TradingEnv(market, EnvSettings(num_envs=1, start="first", clock=clock))
        obs, _ = env.reset(seed=0)
        for bar in range(22):
            assert float(obs[0, 3]) == pytest.approx(expected[bar], abs=1e-7)
            obs = env.step(torch.zeros(1, 2))[0]
