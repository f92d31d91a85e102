import dataclasses
import math

import pytest
import torch
from torch import nn

from fintrader.agents import (
    PPO,
    ActionHeadSettings,
    Budget,
    EnsemblePolicy,
    FlatLayout,
    NetworkSettings,
    load_policy,
    make_agent,
    save_policy,
    train,
)
from fintrader.agents.encoders import GruEncoder
from fintrader.agents.heads import ActionHead
from fintrader.agents.network_kinds import make_actor, make_critic, resolve_network
from fintrader.agents.normalisation import Batch
from fintrader.agents.policy import ActorPolicy
from fintrader.backtesting import simulate
from fintrader.envs import EnvSettings, ObservationLayout, TradingEnv
from fintrader.envs.observation import MarketTable, split_market, stack_window
from fintrader.errors import ConfigError
from tests.engines.tiny import agent_settings
from tests.factories import make_market

LAYOUT = ObservationLayout(5, 3, 2)
WINDOWED = ObservationLayout(5, 3, 2, lookback=4)
KINDS = ["market_once", "per_asset", "mlp"]
ENCODERS = ["none", "gru", "attention"]
WINDOWS = [("none", 1), ("none", 3), ("gru", 3), ("attention", 3)]
BARS = 4


def network(encoder, **values):
    return NetworkSettings.model_validate({"hidden": (8,), "encoder": encoder, **values})


def raw(obs, layout):
    """Observations as networks read them, as they are."""
    return Batch(obs[:, : layout.private_width], obs[:, layout.private_width :], None)


def permuted(obs, order):
    """The observation of the same account with its assets in another order."""
    obs = obs.clone()
    slices = LAYOUT.slices
    for name in ("holdings", "tradable"):
        obs[:, slices[name]] = obs[:, slices[name]][:, order]
    features = obs[:, slices["features"]].reshape(-1, 5, 3)
    obs[:, slices["features"]] = features[:, order].flatten(1)
    return obs


@pytest.mark.parametrize("kind", ["market_once", "per_asset"])
@pytest.mark.parametrize(("private", "layer_norm"), [(["account", "holdings"], False), ([], True)])
def test_permuting_assets_permutes_actions_and_leaves_the_value(kind, private, layer_norm):
    settings = {
        "kind": kind,
        "hidden": (16, 16),
        "private": private,
        "layer_norm": layer_norm,
    }
    network = NetworkSettings.model_validate(settings)
    agent = make_agent(PPO(network=network), LAYOUT, seed=1)
    torch.manual_seed(1)
    for parameter in agent.modules.parameters():
        nn.init.normal_(parameter, std=0.2)
    agent.modules.requires_grad_(False)
    agent.normaliser.update(torch.randn(50, LAYOUT.width) * 3 + 1)
    obs = torch.rand(7, LAYOUT.width)
    order = torch.tensor([3, 0, 4, 1, 2])
    action = agent.policy(obs)
    moved = agent.policy(permuted(obs, order))
    torch.testing.assert_close(moved, action[:, order])
    assert float((action[:, 0] - action[:, 1]).abs().max()) > 1e-3
    (latent,), (other,) = (
        agent.actor(agent.normalise(each)) for each in (obs, permuted(obs, order))
    )
    torch.testing.assert_close(other, latent[:, [*order.tolist(), 5]])  # cash stays
    value = agent.critic(agent.normalise(obs))
    torch.testing.assert_close(agent.critic(agent.normalise(permuted(obs, order))), value)
    assert float(value.std()) > 1e-3


@pytest.mark.parametrize("kind", ["market_once", "per_asset"])
def test_a_latent_critic_sees_each_latent_at_its_asset(kind):
    critic = make_critic(LAYOUT, network("none", kind=kind), latents=6)
    obs = torch.randn(3, LAYOUT.width)
    latent = torch.randn(3, 6)
    order = torch.tensor([3, 0, 4, 1, 2])
    moved = torch.cat([latent[:, order], latent[:, 5:]], dim=1)
    value = critic(raw(obs, LAYOUT), latent)
    torch.testing.assert_close(critic(raw(permuted(obs, order), LAYOUT), moved), value)
    assert not torch.allclose(critic(raw(obs, LAYOUT), moved), value)
    cash = latent.clone()
    cash[:, 5] += 1
    assert not torch.allclose(critic(raw(obs, LAYOUT), cash), value)


@pytest.mark.parametrize("kind", ["market_once", "per_asset"])
@pytest.mark.parametrize("latents", [0, 6])
def test_weights_hold_for_any_number_of_assets(kind, latents):
    """Every asset twice: means stay what they are, so both of a pair say what the one said."""
    settings = network("none", kind=kind, private=("account", "holdings"))
    twice = dataclasses.replace(LAYOUT, num_assets=10)
    order = torch.arange(5).repeat(2)
    obs = torch.randn(3, LAYOUT.width)
    latent = torch.randn(3, 6)
    part = LAYOUT.split(obs)
    cash = latent[:, 5:]
    doubled = torch.cat(
        [part["account"], part["holdings"][:, order], part["features"][:, order].flatten(1)]
        + [part["tradable"][:, order], part["context"]],
        dim=1,
    )
    few, many = (make_actor(layout, settings, extra=1, out_gain=1.0) for layout in (LAYOUT, twice))
    many.load_state_dict(few.state_dict())
    (one,), (two,) = few(raw(obs, LAYOUT)), many(raw(doubled, twice))
    torch.testing.assert_close(two, one[:, [*order.tolist(), 5]])
    judge, other = (
        make_critic(layout, settings, latents=n)
        for layout, n in ((LAYOUT, latents), (twice, latents and 11))
    )
    other.load_state_dict(judge.state_dict())
    doubled_latent = torch.cat([latent[:, order], cash], dim=1)
    given = ((latent,), (doubled_latent,)) if latents else ((), ())
    torch.testing.assert_close(
        other(raw(doubled, twice), *given[1]), judge(raw(obs, LAYOUT), *given[0])
    )


@pytest.mark.parametrize("kind", ["market_once", "per_asset"])
def test_what_cannot_be_traded_leaves_numbers_finite(kind):
    """Nothing of the asset is left, its columns vary no more, and nothing of the market, once, is
    left at all."""
    agent = make_agent(PPO(network=NetworkSettings.model_validate({"kind": kind})), LAYOUT, seed=1)
    obs = torch.rand(8, LAYOUT.width)
    gone = {"holdings": slice(2, 3), "tradable": slice(2, 3), "features": slice(6, 9)}
    for name, columns in gone.items():
        obs[:, LAYOUT.slices[name]][:, columns] = 0.0
    obs[7, LAYOUT.private_width :] = 0.0
    agent.normaliser.update(obs[:4])
    action = agent.policy(obs)
    assert action.shape == (8, 5)
    (action.sum() + agent.critic(agent.normalise(obs)).sum()).backward()
    found = [action, *(parameter.grad for parameter in agent.actor.parameters())]
    assert all(bool(numbers.isfinite().all()) for numbers in found)


EVERY_NETWORK = [(kind, encoder, bars) for kind in KINDS for encoder, bars in WINDOWS]


@pytest.mark.parametrize(("kind", "encoder", "bars"), EVERY_NETWORK)
def test_a_clock_says_what_the_row_says(kind, encoder, bars):
    """Actions, values of both kinds of critic, and all gradients: also those of what an account
    holds."""
    layout = dataclasses.replace(LAYOUT, lookback=bars)
    settings = network(encoder, kind=kind, private=("account", "holdings"), layer_norm=True)
    torch.manual_seed(2)
    policy = ActorPolicy(layout, settings, ActionHeadSettings(), outputs=2)
    critics = make_critic(layout, settings), make_critic(layout, settings, latents=6, members=3)
    modules = nn.ModuleList([policy, *critics])
    for parameter in modules.parameters():
        nn.init.normal_(parameter, std=0.3)
    normalise = policy.normaliser
    table = MarketTable((torch.randn(9, layout.row_width),), lookback=bars)
    normalise.update_market(table)
    bar = torch.tensor([4, 0, 4, 8, 8, 4, 2])
    latent = torch.randn(7, 6)

    def numbers(clocked):
        private = torch.randn(
            7, layout.private_width, generator=torch.Generator().manual_seed(3)
        ).requires_grad_()
        obs = torch.cat([private, bar.unsqueeze(1) if clocked else table[bar]], dim=1)
        seen = normalise.normalise(obs, table if clocked else None)
        assert len(seen.rows) == (4 if clocked else 7)  # each bar is embedded once
        said = [*policy.actor(seen), critics[0](seen), critics[1](seen, latent)]
        said.append(policy.head.decode(obs, said[0]))
        modules.zero_grad()
        sum((one * torch.arange(one.numel()).view_as(one).cos()).sum() for one in said).backward()
        return [*said, private.grad, *(parameter.grad for parameter in modules.parameters())]

    flat = numbers(False)
    clocked = numbers(True)
    assert all(float(one.detach().std()) > 1e-3 for one in flat[:5])
    for one, other in zip(flat, clocked, strict=True):
        torch.testing.assert_close(other, one, atol=1e-4, rtol=1e-4)


def test_samples_taken_bring_the_rows_that_they_see():
    private = torch.arange(6.0).unsqueeze(1)
    rows = 10 * torch.arange(4.0).unsqueeze(1)
    place = torch.tensor([3, 1, 1, 0, 3, 2])
    part = Batch(private, rows, place).select(torch.tensor([4, 2, 0]))
    assert part.private.flatten().tolist() == [4, 2, 0]
    assert part.rows.flatten().tolist() == [10, 30]
    assert part.expand(part.rows).flatten().tolist() == [30, 10, 30]
    alone = Batch(private[:4], rows, None).select(torch.tensor([2, 0]))
    assert alone.expand(alone.rows).flatten().tolist() == [20, 0]


@pytest.mark.parametrize(
    ("settings", "layout", "message"),
    [
        (
            {"kind": "market_once"},
            FlatLayout(3, 1),
            "market_once reads a market's assets; set it to",
        ),
        ({"kind": "per_asset"}, FlatLayout(3, 1), "per_asset reads a market's assets; set it to"),
        ({"encoder": "gru"}, LAYOUT, r"env\.lookback"),
        ({"encoder": "attention"}, FlatLayout(3, 1), "none"),
    ],
    ids=str,
)
def test_networks_that_cannot_read_a_layout_say_so(settings, layout, message):
    with pytest.raises(ConfigError, match=message):
        make_agent(PPO(network=settings), layout)


def test_auto_is_the_kind_that_suits_the_layout():
    def suit(layout, head, **given):
        return resolve_network(
            NetworkSettings(**given), layout, ActionHead(layout, ActionHeadSettings(kind=head))
        ).kind

    assert suit(FlatLayout(3, 1), "auto") == "mlp"
    assert suit(LAYOUT, "auto") == "market_once"
    assert suit(LAYOUT, "direct") == "per_asset"
    assert suit(LAYOUT, "weights") == "mlp"
    with pytest.raises(ConfigError, match="no trade rate for each asset"):
        suit(LAYOUT, "weights", kind="market_once")


def test_weights_move_part_of_the_way_from_what_is_held():
    layout = ObservationLayout(2, 0, 0)
    head = ActionHead(layout, ActionHeadSettings(kind="weights", trade_rate=0.25))
    obs = torch.zeros(1, layout.width)
    obs[0, layout.slices["holdings"]] = torch.tensor([0.4, -0.2])
    assert head.latents == 4
    # At rate latents of 0 a quarter of the way; the second aim is clipped to -1.
    still = head.decode(obs, torch.tensor([[0.8, -3.0, 0.0, 0.0]]))
    assert still.tolist() == [pytest.approx([0.5, -0.4])]
    fast = head.decode(obs, torch.tensor([[0.8, -3.0, 50.0, -50.0]]))
    assert fast.tolist() == [pytest.approx([0.8, -0.2])]


def test_without_shorts_aims_begin_amid_the_weights():
    layout = dataclasses.replace(ObservationLayout(3, 0, 0), short=0)
    head = ActionHead(layout, ActionHeadSettings(kind="weights", trade_rate=0.5))
    latent = torch.tensor([[0.0, -3.0, 3.0, 0.0, 0.0, 0.0]], requires_grad=True)
    action = head.decode(torch.zeros(1, layout.width), latent)
    assert action.tolist() == [[0.25, 0.0, 0.5]]
    action[0, 0].backward()
    # Aim and rate: a = rate aim, d aim / d z = 1/2, d rate / d z = 2 rate (1 - rate).
    assert latent.grad[0].tolist() == [0.25, 0.0, 0.0, 0.25, 0.0, 0.0]


def test_aims_outside_their_bounds_follow_gradients_that_lead_back():
    head = ActionHead(
        ObservationLayout(3, 0, 0), ActionHeadSettings(kind="weights", trade_rate=0.5)
    )
    for sign, slopes in ((1.0, [0.0, 0.5, 0.5]), (-1.0, [-0.5, -0.5, 0.0])):
        latent = torch.tensor([[-3.0, 0.5, 3.0, 0.0, 0.0, 0.0]], requires_grad=True)
        action = head.decode(torch.zeros(1, head.layout.width), latent)
        assert action.tolist() == [[-0.5, 0.25, 0.5]]
        (sign * action.sum()).backward()
        assert latent.grad[0, :3].tolist() == slopes


@pytest.mark.parametrize("algo", ["ppo", "apg", "sac"])
def test_an_untrained_agent_of_weights_trades_without_shorts(algo):
    env = TradingEnv(make_market(), EnvSettings(action="target", fractional=True, num_envs=4))
    agent = make_agent(agent_settings(algo, {"head": {"kind": "weights"}}), env.layout, seed=0)
    obs, _ = env.reset(seed=0)
    assert agent.policy(obs).detach() == pytest.approx(0.2 * 0.5, abs=0.03)
    assert (env.layout.short, TradingEnv(env.market, EnvSettings(short=True)).layout.short) == (
        0,
        1,
    )


def test_the_action_is_the_aim():
    head = ActionHead(LAYOUT, ActionHeadSettings(scale=2.0, cash_logit=0.5))
    obs = torch.zeros(1, LAYOUT.width)
    obs[0, LAYOUT.slices["holdings"]] = torch.tensor([0.4, 0.0, 0.0, 0.1, 0.0])
    latent = torch.tensor([[0.3, -0.2, 0.0, 0.1, 0.5, -0.4]])
    logits = [2.0 * z for z in latent[0].tolist()]
    logits[5] += math.log(5) + 0.5
    total = sum(math.exp(x) for x in logits)
    expected = [math.exp(x) / total for x in logits[:5]]
    torch.testing.assert_close(head.decode(obs, latent), torch.tensor([expected]))


def seen(market, lookback=BARS, count=30, **values):
    """Observations of one account that does nothing, from the first bar on."""
    env = TradingEnv(market, EnvSettings(start="first", lookback=lookback, **values), num_envs=1)
    rows = [env.reset(seed=0)[0]]
    rows += [env.step(torch.zeros(1, market.num_assets))[0] for _ in range(count - 1)]
    return torch.cat(rows)


def test_history_is_what_the_bars_before_showed():
    market = make_market(60, 4)
    obs = seen(market)
    plain = seen(market, lookback=1)
    layout, single = (ObservationLayout.of(market, bars) for bars in (BARS, 1))
    parts = layout.split(obs)
    rows = plain[:, single.private_width :]
    assert torch.equal(obs[:, : layout.private_width], plain[:, : single.private_width])
    assert torch.equal(obs[:, -single.row_width :], rows)
    for t in range(30):
        for back in range(1, BARS):
            assert torch.equal(parts["history"][t, BARS - 1 - back], rows[max(t - back, 0)]), (
                t,
                back,
            )
    # the window that the networks read is the same thing by asset
    window = stack_window(split_market(obs[:, layout.private_width :], layout))
    assert torch.equal(window[9, :, -1, :-1], market.features[9])
    assert torch.equal(window[9, :, 0, :-1], market.features[6])
    assert torch.equal(window[9, :, 1, -1].bool(), market.tradable[7])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_a_network_reads_its_window_and_nothing_older(kind, encoder):
    market = make_market(60, 4)
    layout = ObservationLayout.of(market, BARS)
    torch.manual_seed(0)
    actor = make_actor(layout, network(encoder, kind=kind), extra=1, out_gain=1.0)
    features = market.features.clone()
    features[10, 2] += 1.0
    obs = seen(market)
    bumped = seen(dataclasses.replace(market, features=features))
    with torch.no_grad():
        moved = (actor(raw(obs, layout))[0] - actor(raw(bumped, layout))[0]).abs().amax(
            dim=1
        ) > 1e-6
    assert moved.nonzero().flatten().tolist() == [10, 11, 12, 13]


def test_the_gru_is_that_of_torch():
    torch.manual_seed(0)
    ours = GruEncoder(3, 5, BARS, batch_shape=())
    theirs = nn.GRU(3, 5, batch_first=True)
    with torch.no_grad():
        for name, layer in (("ih", ours.input), ("hh", ours.recurrent)):
            layer.bias.normal_()
            getattr(theirs, f"weight_{name}_l0").copy_(layer.weight.T)
            getattr(theirs, f"bias_{name}_l0").copy_(layer.bias)
        window = torch.randn(7, BARS, 3)
        torch.testing.assert_close(ours(window), theirs(window)[1][0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_members_are_independent_networks(kind, encoder):
    several = make_critic(WINDOWED, network(encoder, kind=kind), latents=6, members=3)
    single = make_critic(WINDOWED, network(encoder, kind=kind), latents=6)
    obs = torch.randn(2, WINDOWED.width)
    latent = torch.randn(2, 6)
    values = several(raw(obs, WINDOWED), latent)
    assert values.shape == (3, 2)
    for k in range(3):
        shapes = {name: tensor.shape for name, tensor in single.state_dict().items()}
        single.load_state_dict(
            {n: t[k].reshape(shapes[n]) for n, t in several.state_dict().items()}
        )
        torch.testing.assert_close(values[k], single(raw(obs, WINDOWED), latent))


@pytest.mark.parametrize(
    ("algo", "encoder"),
    [
        ("sac", "attention"),
        *(
            pytest.param(algo, encoder, marks=pytest.mark.slow)
            for algo in ("ppo", "a2c", "apg", "ddpg", "td3", "redq")
            for encoder in ("gru", "attention")
        ),
    ],
)
def test_every_algorithm_takes_an_encoder_all_the_way(tmp_path, algo, encoder):
    market = make_market(60, 4)
    settings = EnvSettings(num_envs=4, episode_bars=20, lookback=BARS)
    small = (
        {"num_steps": 4}
        if algo in ("ppo", "a2c", "apg")
        else {"learning_starts": 8, "batch_size": 8}
    )
    given = agent_settings(algo, {"network": network(encoder).model_dump(), **small})
    env = TradingEnv(market, settings, seed=1)
    agent = make_agent(given, env.layout, seed=1)
    before = {name: tensor.clone() for name, tensor in agent.policy.state_dict().items()}
    train(agent, env, Budget(env_steps=80))
    learned = [
        name
        for name, tensor in agent.policy.state_dict().items()
        if not torch.equal(tensor, before[name])
    ]
    assert any("encoder" in name for name in learned)

    save_policy(agent, tmp_path / "policy.safetensors", market=market)
    policy = load_policy(tmp_path / "policy.safetensors", market=market)
    obs = seen(market)
    with torch.no_grad():
        assert torch.equal(policy(obs), agent.policy(obs))
    both = EnsemblePolicy([policy, policy], mode="vote")
    assert torch.equal(both(obs), policy(obs))
    one, two = (simulate(each, market, settings, name="x") for each in (policy, both))
    assert one.metrics == two.metrics
