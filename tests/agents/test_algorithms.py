import gc
import math
import weakref

import pytest
import torch
from torch.nn.utils import parameters_to_vector

from fintrader.agents import (
    Budget,
    load_policy,
    make_agent,
    off_policy,
    read_agent_state,
    save_policy,
    train,
)
from fintrader.agents.networks import MarketTrunk
from fintrader.envs.observation import select_holdings
from fintrader.envs.trading import EnvSettings, TradingEnv
from fintrader.errors import ConfigError
from tests.engines.killing import Killed, assert_same_training, killed_after
from tests.engines.tiny import (
    ConstantReward,
    ConstantRewardEnding,
    Identity,
    IdentityMarket,
    agent_settings,
)
from tests.factories import rising_market
from tests.quick import mostly_slow, slow_but

pytestmark = pytest.mark.usefixtures("frequent_reports")

ON = {"network": {"hidden": [32]}}
OFF = {"network": {"hidden": [32]}, "learning_starts": 256, "batch_size": 128}
OFF_IDENTITY = {**OFF, "gamma": 0.0, "learning_rate": 3e-3}
IDENTITY = {
    "ppo": (
        {
            **ON,
            "gamma": 0.0,
            "num_steps": 32,
            "update_epochs": 4,
            "num_minibatches": 4,
            "noise": 0.3,
            "learning_rate": 3e-3,
        },
        6_000,
    ),
    "a2c": ({**ON, "gamma": 0.0, "noise": 0.3, "num_steps": 8, "learning_rate": 0.01}, 8_000),
    **dict.fromkeys(("ddpg", "td3", "sac"), (OFF_IDENTITY, 6_000)),
    "redq": ({**OFF_IDENTITY, "num_critics": 3, "updates_per_step": 1.0}, 6_000),
}
MARKET = {
    "ppo": {"num_steps": 16},
    "a2c": {},
    "apg": {"num_steps": 16},
    **{name: {**OFF, "updates_per_step": 2.0} for name in ("ddpg", "td3", "sac", "redq")},
}


@pytest.mark.parametrize("algo", mostly_slow("ppo", "sac", every=IDENTITY))
def test_learns_the_identity(algo):
    values, env_steps = IDENTITY[algo]
    env = Identity(seed=3)
    agent = make_agent(agent_settings(algo, values), env.layout, seed=0)
    train(agent, env, Budget(env_steps=env_steps))
    shown = torch.linspace(-0.8, 0.8, 9).unsqueeze(1).expand(-1, 2)
    with torch.no_grad():
        assert float((agent.policy(shown) - shown).abs().mean()) < 0.15


@pytest.mark.parametrize(
    ("algo", "values"),
    [
        ("ppo", {"num_steps": 8}),
        ("ppo", {"num_steps": 8, "learners": 2}),
        ("a2c", {}),
        *((algo, {"learning_starts": 32}) for algo in ("ddpg", "td3", "sac", "redq")),
        ("sac", {"learning_starts": 32, "pipeline": True}),
    ],
)
def test_an_agent_and_its_experience_are_freed_at_once(algo, values):
    env = Identity()
    settings = agent_settings(algo, values)
    make_agent(settings, env.layout)  # torch keeps the frames of its first import of compilers
    agent = make_agent(settings, env.layout)
    train(agent, env, Budget(env_steps=160))
    trained = getattr(agent, "agent", agent)
    experience = trained.buffer if algo in ("ppo", "a2c") else trained.replay
    alive = [weakref.ref(part) for part in (agent, trained, experience)]
    gc.disable()
    try:
        del agent, trained, experience
        assert [part() for part in alive] == [None, None, None]
    finally:
        gc.enable()


@pytest.mark.slow
def test_apg_learns_the_identity():
    env = IdentityMarket(seed=3)
    given = {"head": {"kind": "direct"}, "gamma": 0.0, "bootstrap": False, "num_steps": 4}
    agent = make_agent(agent_settings("apg", given), env.layout, seed=0)
    train(agent, env, Budget(env_steps=16 * 4 * 150))
    obs = env.draw()
    with torch.no_grad():
        assert float((agent.policy(obs) - env.shown).abs().mean()) < 0.1


def rising_market_env(num_envs=16, seed=0):
    return TradingEnv(rising_market(), EnvSettings(num_envs=num_envs, episode_bars=60), seed=seed)


@pytest.mark.slow
@pytest.mark.parametrize("algo", mostly_slow("ppo", every=MARKET))
def test_finds_the_asset_that_always_rises(algo):
    env = rising_market_env()
    agent = make_agent(agent_settings(algo, ON | MARKET[algo]), env.layout, seed=0)
    train(
        agent, env, Budget(env_steps={"ppo": 8_000, "a2c": 12_000, "td3": 12_000}.get(algo, 6_000))
    )
    obs, _ = env.reset(seed=9)
    with torch.no_grad():
        for _ in range(30):
            obs, *_ = env.step(agent.policy(obs))
    held = select_holdings(obs, env.layout).mean(dim=0)
    assert held[1] > 0.7
    assert held[0] < 0.15


@pytest.mark.slow
@pytest.mark.parametrize("algo", mostly_slow("ppo", every=("ppo", "ddpg", "sac")))
@pytest.mark.parametrize("env", slow_but(1, every=[ConstantReward, ConstantRewardEnding]))
def test_critics_keep_time_limits_and_ends_apart(algo, env):
    # γ = 0.8: 1 / (1 − γ) = 5 under a clock; seen at a random of eight steps to an end, mean of (1
    # − 0.8^k) / 0.2
    expected = 5.0 if env is ConstantReward else sum((1 - 0.8**k) / 0.2 for k in range(1, 9)) / 8
    given = {**OFF, "tau": 0.1, "learning_rate": 3e-3, "n_steps": 3}
    if algo == "ppo":
        given = {
            "update_epochs": 4,
            "num_minibatches": 2,
            "learning_rate": 0.02,
            "network": {"hidden": [8]},
        }
    elif algo == "sac":
        given |= {"alpha": 1e-6}
    world = env()
    agent = make_agent(
        agent_settings(algo, {**given, "gamma": 0.8, "normalise": ["observations"]}),
        world.layout,
        seed=0,
    )
    train(agent, world, Budget(env_steps=10_000 if algo == "ppo" else 12_000))
    with torch.no_grad():
        obs = agent.normalise(torch.zeros(1, 1))
        learned = (
            agent.critic(obs) if algo == "ppo" else agent.critic(obs, torch.zeros(1, 1)).mean()
        )
    assert float(learned) == pytest.approx(expected, rel=0.15 if algo == "ppo" else 0.12)


@pytest.mark.parametrize("algo", mostly_slow("ppo", every=MARKET))
def test_a_killed_training_ends_like_an_undisturbed_one(algo, tmp_path):
    hiding = {"feature_dropout": 0.4, "feature_noise": 0.2}
    settings = agent_settings(algo, {**MARKET[algo], **hiding, "network": {"hidden": [8]}})

    def run(folder, stop=None, every=0.0, seed=0):
        env = rising_market_env(seed=seed)
        budget = Budget(env_steps=16 * 16 * 6)
        on_progress = killed_after(stop) if stop else None
        agent = make_agent(settings, env.layout, seed=3)
        train(
            agent,
            env,
            budget,
            folder=tmp_path / folder,
            on_progress=on_progress,
            checkpoint_seconds=every,
        )

    run("whole")
    for updates, every in ((2, 1e9), (3, 0.0), (5, 1e9)):  # the first and the last lose work
        with pytest.raises(Killed):
            run("killed", updates, every)
    run("killed", seed=9)  # what is stored of the environment's random stream counts
    assert_same_training(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.parametrize(
    ("algo", "more"),
    [*((algo, {}) for algo in MARKET), ("ppo", {"learners": 2}), ("sac", {"pipeline": True})],
)
def test_all_parts_of_every_algorithm_learn_on_a_market(algo, more):
    values = {"num_steps": 4} if algo in ("ppo", "a2c", "apg") else {**OFF, "learning_starts": 16}
    env = TradingEnv(rising_market(), EnvSettings(num_envs=8, episode_bars=5), seed=1)
    made = make_agent(agent_settings(algo, {**values, **more, "network": {}}), env.layout, seed=1)
    agent = made.agent if more.get("pipeline") else made
    assert agent.policy.network.kind == "market_once"
    assert isinstance(agent.critic.trunk, MarketTrunk)

    def weights():
        parts = ("policy.actor.trunk", "policy.actor.head", "critic.trunk", "critic.head")
        modules = [agent.modules.get_submodule(part) for part in parts]
        return [parameters_to_vector(module.parameters()).detach().clone() for module in modules]

    before = weights()
    found = []
    train(
        made,
        env,
        Budget(env_steps=8 * 12),
        on_progress=lambda progress: found.append(progress.metrics),
    )
    assert len(found) == 3
    assert all(math.isfinite(value) for metrics in found for value in metrics.values())
    assert not any(map(torch.equal, before, weights()))
    assert agent.normaliser.has_market_statistics


@pytest.mark.parametrize("algo", sorted(MARKET))
def test_another_seed_gives_other_weights_and_other_noise(algo):
    settings = agent_settings(algo, {**MARKET[algo], "network": {"hidden": [8]}})
    env = rising_market_env(4)
    obs, _ = env.reset(seed=1)
    agents = [make_agent(settings, env.layout, seed=seed) for seed in (3, 3, 4)]
    weights = [parameters_to_vector(agent.policy.parameters()).detach() for agent in agents]
    actions = [agent.act(obs).detach() for agent in agents]
    assert torch.equal(weights[0], weights[1])
    assert torch.equal(actions[0], actions[1])
    assert not torch.equal(weights[0], weights[2])
    assert not torch.equal(actions[0], actions[2])


@pytest.mark.parametrize("algo", mostly_slow("ppo", "sac", every=MARKET))
def test_children_and_policy_files(algo, tmp_path):
    """A child has its parent's weights and moments, but its own learning rate and random stream."""
    env = rising_market_env(4)
    settings = agent_settings(algo, {**MARKET[algo], "network": {"hidden": [8]}})
    parent = make_agent(settings, env.layout, seed=1)
    steps = 4 * 90
    train(parent, env, Budget(env_steps=steps), folder=tmp_path)
    child = make_agent(settings.model_copy(update={"learning_rate": 0.5}), env.layout, seed=2)
    stream = child.state_dict()["generator"]
    child.inherit(read_agent_state(tmp_path))
    mine = child.state_dict()
    theirs = parent.state_dict()
    passed_on = [name for name in mine if name.startswith(("modules.", "optimisers."))]
    assert any(name.startswith("optimisers.") for name in passed_on)
    for name in passed_on:
        assert torch.equal(mine[name], theirs[name]), name
    assert torch.equal(mine["generator"], stream)
    assert {group["lr"] for one in child.optimisers.values() for group in one.param_groups} >= {0.5}
    save_policy(child, tmp_path / "p")
    obs, _ = env.reset(seed=5)
    with torch.no_grad():
        assert torch.equal(load_policy(tmp_path / "p")(obs), parent.policy(obs))
    assert train(child, env, Budget(env_steps=steps)).updates > 0


@pytest.mark.parametrize(
    ("algo", "randomise", "copies"),
    [
        ("ppo", {}, [True, False]),
        ("apg", {}, [True, True]),
        ("ppo", {"delay_bars": 2}, [True, True]),
    ],
)
def test_only_steps_by_a_graph_reuse_their_memory(algo, randomise, copies):
    """On a GPU; steps with a gradient, and those of variants, run without that graph."""
    made = []

    class OnGPU(TradingEnv):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            self.device = torch.device("cuda")
            made.append(self.copies)

    given = EnvSettings(randomise={**randomise, "variants": 2})
    env = OnGPU(rising_market(), given, num_envs=4)
    make_agent(agent_settings(algo, {}), env.layout).prepare_env(env)
    assert made == copies


def test_apg_needs_an_environment_that_can_be_differentiated():
    with pytest.raises(ConfigError, match="apg"):
        make_agent(agent_settings("apg", {}), Identity().layout)


@pytest.mark.parametrize("algo", mostly_slow("sac", every=("sac", "td3", "redq")))
def test_batches_in_parts_have_the_gradient_of_the_whole(algo, monkeypatch):
    settings = agent_settings(algo, {"network": {"hidden": [8]}, "learning_starts": 32})

    def run():
        env = rising_market_env()
        agent = make_agent(settings, env.layout, seed=3)
        train(agent, env, Budget(env_steps=env.num_envs * 8))
        return agent.state_dict()

    whole = run()
    # A width that does not divide the batch: the last part is smaller.
    monkeypatch.setattr(off_policy, "CELLS_AT_ONCE", 100 * rising_market().num_assets)
    in_parts = run()
    changed = 0
    for name, value in whole.items():
        torch.testing.assert_close(in_parts[name], value, rtol=1e-4, atol=1e-6)
        changed += int(not torch.equal(in_parts[name], value))
    assert changed  # sums in another order
