"""Traders that share a market as accounts of one environment: their clocks, their rewards, and the
equilibrium of a game whose closed form is known."""

import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

import fintrader
from fintrader.agents import A2C, PPO, Budget, make_agent, train
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.games import share_rewards
from fintrader.envs.joined import JoinedEnv
from fintrader.envs.rivals import RivalsEnv
from fintrader.envs.settings import TraderSettings
from fintrader.errors import ConfigError, EnvError
from tests.engines.strategies import random_actions
from tests.engines.twins import assert_same
from tests.factories import make_market, market_of
from tests.oracles.cournot_oracle import find_equilibrium, profits, share

RETURN = 0.01
KAPPA = 1e-8
"""Move of the price per USD: 100 basis points a million."""
CAPITAL = 1e6


def known_return(bars=12):
    """Every bar opens at 100 USD and closes 1 % higher."""
    close = np.full((bars, 1), 100.0 * (1.0 + RETURN))
    return market_of(close, 4, open=np.full((bars, 1), 100.0))


def cournot(teams, cooperation=0.0, *, num_games, **changes):
    """Each episode is one purchase; an action of 1 buys for CAPITAL USD."""
    return TradingEnv(
        known_return(),
        num_envs=num_games * sum(teams),
        seed=0,
        **{
            "action": "trade",
            "max_shares": CAPITAL / 100.0,
            "dead_band": 0.0,
            "cost_bps": 0.0,
            "fractional": True,
            "participation": None,
            "episode_bars": 1,
            "reward": "profit",
            "short": True,
            "max_leverage": 3.0,
            "traders": {
                "teams": teams,
                "cooperation": cooperation,
                "impact_bps_per_million_usd": KAPPA * 1e10,
            },
            **changes,
        },
    )


def closed_form(teams, cooperation):
    """USD that a trader buys, from the first-order condition of T equal teams of m traders:

    c >= 0: w = (1 - c) + c / T on its team's profit, v = c / T on each other one's
    c < 0:  w = 1,                                     v = c / (T - 1)
    w (mu - kappa X) - kappa (w + v (T - 1)) X / T = 0,  X all teams' purchases
    """
    count = len(teams)
    own = 1.0 if cooperation < 0.0 else 1.0 - cooperation + cooperation / count
    other = cooperation / (count - 1 if cooperation < 0.0 else count)
    total = RETURN / KAPPA * own * count / (own * (count + 1) + other * (count - 1))
    return total / sum(teams)


GAMES = [
    ((1, 1), 0.0),
    ((1, 1), 1.0),
    ((1, 1), -1.0),
    ((1, 1, 1), 0.5),
    ((1, 1, 1), -0.5),
    ((2, 2), 0.0),
    ((2, 2, 2), -1.0),
    ((3,), 0.0),
]


def test_the_closed_form_has_the_three_known_cases():
    """Cartel mu / 2 kappa, Nash K / (K + 1) mu / kappa, and competition mu / kappa, in all."""
    competitive = RETURN / KAPPA
    assert 3 * closed_form((1, 1, 1), 1.0) == pytest.approx(competitive / 2)
    assert 3 * closed_form((3,), 0.0) == pytest.approx(competitive / 2)
    assert 3 * closed_form((1, 1, 1), 0.0) == pytest.approx(competitive * 3 / 4)
    assert 3 * closed_form((1, 1, 1), -1.0) == pytest.approx(competitive)
    assert 40 * closed_form((1,) * 40, 0.0) == pytest.approx(competitive * 40 / 41)


@pytest.mark.parametrize(("teams", "cooperation"), GAMES)
def test_best_responses_lead_to_the_closed_form(teams, cooperation):
    found = find_equilibrium(list(teams), cooperation, RETURN, KAPPA)
    best = closed_form(teams, cooperation)
    assert sum(found) == pytest.approx(best * sum(teams), rel=1e-4)
    if cooperation < 1.0:  # a cartel may leave all to one of its traders
        assert found == pytest.approx([best] * sum(teams), rel=1e-3)


@pytest.mark.parametrize(("teams", "cooperation"), [*GAMES, ((1, 3), 0.4), ((3, 1, 2), -0.7)])
def test_rewards_are_those_of_plain_python(teams, cooperation):
    games = 16
    env = cournot(teams, cooperation, num_games=games)
    env.reset(seed=0)
    action = random_actions(4, 1, env.num_envs, 1)[0].clamp(-1, 1)
    _, reward, terminated, truncated, _ = env.step(action)
    assert truncated.all()
    assert not terminated.any()
    bought = (CAPITAL * action.double()).view(games, -1).tolist()
    for game, one in zip(reward.view(games, -1).tolist(), bought, strict=True):
        expected = share(profits(one, RETURN, KAPPA), list(teams), cooperation)
        assert game == pytest.approx([usd / CAPITAL for usd in expected], abs=1e-8)


@pytest.mark.parametrize(("teams", "cooperation"), GAMES)
def test_no_team_gains_by_leaving_the_closed_form(teams, cooperation):
    """In the environment itself: in every game the first team buys another amount."""
    best = closed_form(teams, cooperation) / CAPITAL
    factors = torch.linspace(0.8, 1.2, 41)
    env = cournot(teams, cooperation, num_games=len(factors))
    env.reset(seed=0)
    action = torch.full((len(factors), sum(teams), 1), best)
    action[:, : teams[0]] *= factors.view(-1, 1, 1)
    _, reward, *_ = env.step(action.flatten(0, 1))
    first = reward.view(len(factors), -1)[:, 0]
    assert int(first.argmax()) == 20
    assert float(first[20] - first[0]) > 1e-6


AGENT = PPO(
    gamma=0.0, noise=0.3, noise_decay=0.05, head={"kind": "direct"}, network={"hidden": [8]}
)


HASTY = AGENT.model_copy(
    update={"learning_rate": 0.01, "num_steps": 4, "update_epochs": 4, "num_minibatches": 2}
)
"""Few steps lead it there, less exactly."""


def learn(teams, cooperation, env_steps, num_games, agent=AGENT):
    """The action that a shared policy of PPO comes to."""
    env = cournot(teams, cooperation, num_games=num_games)
    policy = fintrader.train(agent, env, env_steps=env_steps, seed=1).policy
    actions = policy(cournot(teams, num_games=1).reset(seed=3)[0])
    assert actions.unique().numel() == 1, "they share a policy and see the same"
    return CAPITAL * actions[0].item()


@pytest.mark.slow
def test_a_shared_policy_learns_to_collude_and_to_compete():
    """Two traders: a cartel buys a quarter of the competitive amount each, rivals a third, and
    those who want to beat each other a half."""
    found = {c: learn((1, 1), c, 12_000, 64, HASTY) for c in (1.0, 0.0, -1.0)}
    for cooperation, usd in found.items():
        assert usd == pytest.approx(closed_form((1, 1), cooperation), rel=0.1), cooperation
    assert found[1.0] < 0.88 * found[0.0] < 0.75 * found[-1.0]


@pytest.mark.slow
@pytest.mark.parametrize(("teams", "cooperation"), GAMES[3:])  # those before are learned above
def test_a_shared_policy_finds_every_equilibrium(teams, cooperation):
    found = learn(teams, cooperation, 400_000, num_games=128)
    assert found == pytest.approx(closed_form(teams, cooperation), rel=0.06)


@pytest.mark.parametrize("cooperation", [0.0, 1.0])
def test_advantages_are_judged_against_other_games(cooperation):
    """Three games of two traders that begin at one bar: slow and obvious, row by row."""
    market = make_market(60, 3)
    game = {"teams": [1, 1], "cooperation": cooperation, "impact_bps_per_million_usd": 50.0}
    learned = {}
    for baseline in (False, True):
        env = TradingEnv(market, traders=game, num_envs=12, start_groups=2, episode_bars=30, seed=4)
        agent = make_agent(A2C(num_steps=3, group_baseline=baseline), env.layout, seed=1)
        agent.learn = lambda rollout, baseline=baseline: learned.update({baseline: rollout}) or {}
        train(agent, env, Budget(env_steps=36))
    advantage = learned[False].advantage
    bar = learned[False].batch.row_index
    row_of = range(len(advantage))
    for row in row_of:
        others = [float(advantage[k]) for k in row_of if k // 2 != row // 2 and bar[k] == bar[row]]
        assert others
        expected = float(advantage[row]) - sum(others) / len(others)
        assert learned[True].advantage[row].item() == pytest.approx(expected, abs=1e-5)
    assert float(learned[True].advantage.abs().max()) > 1e-3


def test_teams_share_rewards():
    own = torch.tensor([1.0, 3.0, 10.0, 2.0, 4.0, 6.0], dtype=torch.float64)
    for c in (0.0, 0.3, 1.0, -0.4, -1.0):
        traders = TraderSettings(teams=(2, 1), cooperation=c)
        expected = [value for game in own.view(2, 3).tolist() for value in share(game, [2, 1], c)]
        assert share_rewards(own, traders).tolist() == pytest.approx(expected)


GAME = {"teams": [1, 2], "impact_bps_per_million_usd": 50.0}


def test_the_traders_of_a_game_share_its_clock():
    market = make_market(120, 3)
    env = TradingEnv(market, traders=GAME, num_envs=60, episode_bars=9, seed=3)
    assert env.engine == "torch (traders share the price)"
    env.reset()
    assert len(env.account.bar.unique()) > 5
    for action in random_actions(3, 12, 60, 3):
        bars = env.account.bar.view(20, 3)
        assert (bars == bars[:, :1]).all()
        env.step(action)
    for options, seed in (({"start": torch.arange(60)}, None), ({}, list(range(60)))):
        with pytest.raises(EnvError, match="begin and end together"):
            env.reset(seed=seed, options=options)
    first = torch.zeros(60, dtype=torch.bool)
    first[0] = True
    with pytest.raises(EnvError, match="begin and end together"):
        env.reset(options={"reset_mask": first})


def test_a_game_goes_on_from_its_state_with_a_ruined_trader():
    market = make_market(120, 3, volatility=0.05)
    how = {"traders": GAME, "ruin_fraction": 0.93, "num_envs": 30, "cost_bps": 100.0}
    env, other = (TradingEnv(market, **how, seed=seed) for seed in (5, 6))
    env.reset()
    other.reset()
    actions = random_actions(5, 40, 30, 3)
    stood = False
    for action in actions[:20]:
        before = env.account
        _, reward, terminated, _, info = env.step(action)
        out = before.finished
        assert (reward[out] == 0).all()
        assert (terminated | ~out).all(), "a ruined trader stays out"
        stays = out & env.account.finished
        assert torch.equal(env.account.shares[stays], before.shares[stays])
        stood |= bool(stays.any())
        over = (terminated | info["_final_obs"]).view(10, 3).all(1)
        assert not env.account.finished.view(10, 3)[over].any(), "a new game begins with all"
    assert stood
    state = env.state_dict()
    moved = TradingEnv(market, **how, seed=7)
    moved.reset()
    moved.load_state_dict(state)
    other.load_state_dict(state)
    out = env.account.finished
    assert out.any()
    dead = torch.where(out.unsqueeze(1), 1.0 - actions[19], actions[19])
    for one, same in zip(moved.step(dead)[:4], env.step(actions[19])[:4], strict=True):
        assert torch.equal(one, same), "who is out moves no price"
    env.load_state_dict(state)
    for action in actions[20:]:
        for one, same in zip(env.step(action)[:4], other.step(action)[:4], strict=True):
            assert torch.equal(one, same)
    assert_same(env.state_dict(), other.state_dict())


def test_pieces_of_a_market_hold_whole_games():
    market = make_market(400, 2)
    pieces = [market.window(0, 90), market.window(100, 400)]
    env = JoinedEnv(pieces, EnvSettings(num_envs=30, traders=GAME), seed=1)
    assert [part.num_envs for part in env.envs] == [6, 24]


def test_what_cannot_share_a_market_says_so():
    market = make_market(60, 3)
    with pytest.raises(EnvError, match="no multiple of the 3 traders of a game; set it to 255"):
        TradingEnv(market, traders=GAME)
    with pytest.raises(EnvError, match="which does not divide 20 games; set it to 5"):
        TradingEnv(market, traders=GAME, num_envs=60, start_groups=6)
    with pytest.raises(EnvError, match="leave autoreset_mode out"):
        TradingEnv(market, traders=GAME, num_envs=60, autoreset_mode=AutoresetMode.NEXT_STEP)
    with pytest.raises(ConfigError, match="leave out randomise"):
        EnvSettings(traders=GAME, randomise={"delay_bars": 1})
    assert EnvSettings(traders=GAME, randomise={"costs": (2.0, 2.0)}).for_training()
    for engine in ("fused", "triton"):
        with pytest.raises(EnvError, match="engine does not apply here"):
            TradingEnv(market, traders=GAME, num_envs=60, engine=engine)
    with pytest.raises(ConfigError, match="each trader's own"):
        fintrader.train("apg", TradingEnv(market, traders=GAME, num_envs=60), env_steps=600)


def test_rivals_are_played_by_their_policies():
    """Against the game itself, in which the same policies act on what they are shown."""
    market = make_market(120, 3)
    game = {"teams": [1, 2, 1], "cooperation": -0.5, "impact_bps_per_million_usd": 50.0}
    for observation in ("flat", "factored"):
        how = {"traders": game, "num_envs": 20, "episode_bars": 9, "observation": observation}
        whole, inner = (TradingEnv(market, seed=3, **how) for _ in range(2))
        rivals = [lambda obs, k=k: torch.sin(k * obs[:, :3] + k) for k in (1.0, 2.0)]
        env = RivalsEnv(inner, rivals)
        assert env.num_envs == 5
        obs = whole.reset()[0]
        env.reset()
        for action in random_actions(3, 12, 5, 3):
            flat = obs
            if observation == "factored":
                flat = whole.layout.assemble(obs["private"], whole.market_rows[obs["clock"]])
            every = torch.zeros(20, 3)
            for row in range(20):
                seat = row % 4
                seen = flat[row : row + 1]
                every[row] = action[row // 4] if seat == 0 else rivals[(seat - 1) // 2](seen)[0]
            obs, *numbers, info = whole.step(every)
            shown, *own, about = env.step(action)
            for expected, found in zip(numbers, own, strict=True):
                assert torch.equal(expected[::4], found)
            parts = obs if observation == "factored" else {"": obs}
            for name, part in parts.items():
                assert torch.equal(part[::4], shown[name] if name else shown)
            assert torch.equal(info["_final_obs"][::4], about["_final_obs"])
        assert_same(whole.state_dict(), env.state_dict())
    with pytest.raises(EnvError, match="1 rivals play against 3 teams"):
        RivalsEnv(inner, rivals[:1])


@pytest.mark.slow
def test_learners_that_take_turns_come_to_the_equilibrium():
    """Two policies of their own. The best response to a rival who buys x is (mu / kappa - x) / 2;
    from 0 the turns are 1/2, 1/4, 3/8, ... of the competitive amount."""
    competitive = RETURN / KAPPA
    bought = 0.0
    for expected in (1 / 2, 1 / 4, 3 / 8):
        share = bought / CAPITAL
        env = RivalsEnv(
            cournot((1, 1), num_games=32),
            [lambda obs, share=share: torch.full((len(obs), 1), share)],
        )
        policy = fintrader.train(AGENT, env, env_steps=30_000, seed=1).policy
        bought = CAPITAL * policy(cournot((1, 1), num_games=1).reset(seed=3)[0])[0].item()
        assert bought == pytest.approx(expected * competitive, rel=0.12)
