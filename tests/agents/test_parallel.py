import threading

import pytest
import torch

from fintrader.agents import (
    Budget,
    load_policy,
    make_agent,
    off_policy,
    read_agent_state,
    save_policy,
    train,
)
from fintrader.agents.buffers import Transition
from fintrader.agents.normalisation import Batch
from fintrader.agents.on_policy import Rollout
from fintrader.agents.parallel import BatchedLearners, PipelinedAgent, average
from fintrader.config import validate
from fintrader.envs import ObservationLayout
from fintrader.envs.observation import FlatLayout
from fintrader.errors import CheckpointError, ConfigError
from fintrader.pipeline.config import RunConfig
from tests.engines.killing import Killed, assert_same_training, killed_after
from tests.engines.tiny import DEVICES, Identity, agent_settings
from tests.quick import mostly_slow, slow_but

pytestmark = pytest.mark.usefixtures("frequent_reports")

SMALL = {"num_steps": 8, "network": {"hidden": [8]}}
LEARNS = {
    "gamma": 0.0,
    "num_steps": 32,
    "update_epochs": 4,
    "noise": 0.3,
    "network": {"hidden": [32]},
    "learners": 2,
}


def on_policy(algo, values, layout, seed):
    return make_agent(agent_settings(algo, values), layout, seed=seed)


def rollout_of(rows, layout, latents, seed, *, clocked):
    """Where clocked, accounts see four bars, and those of one learner not all of them."""
    draw = torch.Generator().manual_seed(seed)
    market = 0 if isinstance(layout, FlatLayout) else layout.market_width
    seen = Batch(
        torch.randn(rows, layout.width - market, generator=draw),
        torch.randn(4 if clocked else rows, market, generator=draw),
        torch.arange(rows) % 9 // 3 + torch.arange(rows) % 2 if clocked else None,
    )
    latent, log_prob = 0.5 * torch.randn(2, rows, latents, generator=draw)
    return Rollout(seen, latent, log_prob - 0.5, *torch.randn(2, rows, generator=draw))


@pytest.mark.parametrize("algo", ["ppo", "a2c"])
@pytest.mark.parametrize(
    "kind", mostly_slow("market_once", "mlp", every=["market_once", "per_asset", "mlp", "classic"])
)
@pytest.mark.parametrize("clocked", slow_but(0, every=[True, False]))
def test_learners_in_a_batch_are_learners_one_after_another(algo, kind, clocked):
    steps = 4
    accounts = 3
    learners = 3
    network = {
        "hidden": [8, 8],
        "kind": "auto" if kind == "classic" else kind,
        "private": ["account"],
    }
    values = {"num_steps": steps, "network": network, "noise_decay": "learned", "noise": 0.7}
    values["weight_decay"] = 5.0
    values |= {"num_minibatches": 2, "update_epochs": 3} if algo == "ppo" else {}
    layout = Identity().layout if kind == "classic" else ObservationLayout(3, 2, 1)
    together = on_policy(algo, {**values, "learners": learners}, layout, 4)
    apart = [on_policy(algo, values, layout, 4) for _ in range(learners)]
    shared = torch.Generator().manual_seed(9)
    together.generator.set_state(shared.get_state())
    for number in range(2):  # the second begins with moments
        whole = rollout_of(
            steps * learners * accounts, layout, together.head.latents, number, clocked=clocked
        )
        metrics = together.make_learners(together).learn(whole)
        found = []
        for k, learner in enumerate(apart):
            learner.generator = shared
            rows = (
                torch.arange(steps * learners * accounts)
                .view(steps, learners, accounts)[:, k]
                .flatten()
            )
            own = whole.select(rows)
            # side by side, rows that share no bar count as bars of their own: this orders them
            # alike
            if not clocked:
                own = own._replace(batch=own.batch._replace(row_index=torch.arange(len(rows))))
            found.append(learner.learn(own))
        fused = average([learner.collect_inheritable_state() for learner in apart])
        for learner in apart:
            learner.inherit(fused)
        mine = together.collect_inheritable_state()
        assert mine.keys() == fused.keys()
        for name, tensor in mine.items():
            torch.testing.assert_close(
                tensor, fused[name], atol=2e-6, rtol=2e-4, msg=f"{number}: {name}"
            )
        for name, value in metrics.items():
            expected = torch.stack([entry[name].detach() for entry in found]).mean()
            torch.testing.assert_close(value, expected, atol=1e-5, rtol=1e-3, msg=name)


def test_learners_pass_on_what_they_fused(tmp_path):
    def team(seed=0):
        agent = on_policy("ppo", LEARNS, Identity().layout, seed)
        assert agent.make_learners is BatchedLearners
        return agent

    whole = team()
    train(whole, Identity(num_envs=16, seed=3), Budget(env_steps=1_200), folder=tmp_path / "whole")
    shown = torch.linspace(-0.8, 0.8, 9).unsqueeze(1).expand(-1, 2)
    # the stored policy is the fused one, and a child, of several learners or one, goes on from it
    save_policy(whole, tmp_path / "policy")
    moments = "optimisers.adam.0.exp_avg"
    for child in (team(seed=8), on_policy("ppo", {**LEARNS, "learners": 1}, Identity().layout, 8)):
        child.inherit(read_agent_state(tmp_path / "whole"))
        with torch.no_grad():
            assert torch.equal(load_policy(tmp_path / "policy")(shown), child.policy(shown))
        assert torch.equal(child.state_dict()[moments], whole.state_dict()[moments])


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        *(({"algo": name, "learners": 2}, "ppo or a2c") for name in ("ddpg", "sac", "redq", "apg")),
        ({"algo": "ppo", "learners": 0}, r"agent\.ppo\.learners|agent\.learners"),
        *(({"algo": name, "pipeline": True}, "replay buffer") for name in ("ppo", "a2c", "apg")),
    ],
    ids=str,
)
def test_settings_that_make_no_sense(agent, message):
    with pytest.raises(ConfigError, match=message):
        validate(RunConfig, {"agent": agent}, "test.yaml")


def test_learners_that_make_no_sense():
    agent = on_policy("ppo", {**SMALL, "learners": 3}, Identity().layout, 0)
    with pytest.raises(ConfigError, match=r"multiple of agent\.learners, 3"):
        train(agent, Identity(num_envs=16), Budget(env_steps=64))
    for learners, steps in ((1, 32), (2, 16)):  # each learner cuts its own share into minibatches
        greedy = on_policy(
            "ppo", {**SMALL, "num_minibatches": 40, "learners": learners}, Identity().layout, 0
        )
        with pytest.raises(
            ConfigError, match=f"num_minibatches is 40, more than the {steps} steps"
        ):
            train(greedy, Identity(num_envs=4), Budget(env_steps=64))


OFF = {
    "network": {"hidden": [32]},
    "learning_starts": 256,
    "batch_size": 128,
    "gamma": 0.0,
    "learning_rate": 3e-3,
    "pipeline": True,
}


def pipelined(algo, values=None, seed=0):
    agent = make_agent(
        agent_settings(algo, {**OFF, **(values or {})}), Identity().layout, seed=seed
    )
    assert isinstance(agent, PipelinedAgent)
    return agent


@pytest.mark.slow
@pytest.mark.parametrize(
    "values",
    slow_but(
        2,
        every=[{}, {"updates_per_step": 0.3}, {"updates_per_step": 3.0, "noise_persistence": 0.8}],
    ),
)
@pytest.mark.parametrize(
    "algo",
    mostly_slow("sac", every=("sac", "ddpg", "td3", "redq")),
)
def test_it_resumes_bit_exactly(algo, values, tmp_path):
    def run(folder, on_progress=None):
        agent = pipelined(algo, values)
        budget = Budget(env_steps=16 * 60)
        train(
            agent,
            Identity(seed=3),
            budget,
            folder=tmp_path / folder,
            on_progress=on_progress,
            checkpoint_seconds=0,
        )
        return agent.agent.learned

    assert run("whole") > 0
    with pytest.raises(Killed):
        run("killed", killed_after(3))
    run("killed")
    assert_same_training(tmp_path / "whole", tmp_path / "killed")


def test_accounts_trade_on_while_an_update_runs(monkeypatch):
    """The update waits for the next step of the accounts: in turns, neither would ever end."""
    monkeypatch.setattr(off_policy, "REPORT_STEPS", 10_000)  # a report waits for the update
    agent = pipelined("ddpg")
    inner = agent.agent
    learn = agent.agent.learn
    acted = threading.Event()

    def learn_after_the_accounts_acted(sample):
        assert acted.wait(timeout=600)
        return learn(sample)

    inner.learn = learn_after_the_accounts_acted
    never = torch.zeros(16, dtype=torch.bool)
    obs = torch.rand(16, 2)
    while agent._updates is None:
        agent.observe(Transition(obs, agent.act(obs), -obs.sum(dim=1), never, never, obs))
        agent.update()
    before = agent.act(obs)
    assert before.shape == (16, 2)
    assert inner.learned == 0
    acted.set()
    agent._take_over()
    assert inner.learned == 1


def test_an_error_in_the_thread_reaches_the_loop():
    agent = pipelined("sac")

    def broken(sample):
        raise RuntimeError("the learner broke")

    agent.agent.learn = broken
    with pytest.raises(RuntimeError, match="the learner broke"):
        train(agent, Identity(seed=3), Budget(env_steps=10_000))


@pytest.mark.parametrize("device", DEVICES)
def test_the_thread_learns_what_the_agent_alone_learns(device):
    """From one replay buffer and one random stream both must come to the same weights."""
    values = {**OFF, "updates_per_step": 40.0}
    layout = Identity().layout
    alone, ahead = (
        make_agent(agent_settings("td3", {**values, "pipeline": on}), layout, device=device, seed=3)
        for on in (False, True)
    )
    draw = torch.Generator().manual_seed(1)
    never = torch.zeros(16, dtype=torch.bool, device=device)
    while alone.is_warming_up:
        obs, after = torch.rand(2, 16, 2, generator=draw).to(device)
        action = alone.act(obs)
        ahead._front.latent = alone.latent
        for agent in (alone, ahead):
            agent.observe(Transition(obs, action, -obs.sum(dim=1), never, never, after))
    ahead.agent.generator.set_state(alone.generator.get_state())
    alone.update()
    ahead.update()
    mine = ahead.state_dict()
    theirs = alone.state_dict()
    assert ahead.agent.learned == alone.learned == 40
    for name, tensor in theirs.items():
        if name.startswith(("modules.", "optimisers.")):
            torch.testing.assert_close(mine[name], tensor, msg=name)
    for name, weights in ahead._front.actor.state_dict().items():
        assert torch.equal(weights, mine[f"modules.policy.actor.{name}"]), name


def test_parents_and_children_may_be_pipelined_or_not(tmp_path):
    parent = pipelined("sac", seed=1)
    train(parent, Identity(seed=3), Budget(env_steps=1_600), folder=tmp_path)
    theirs = read_agent_state(tmp_path)
    plain = make_agent(agent_settings("sac", {**OFF, "pipeline": False}), Identity().layout, seed=5)
    child = pipelined("sac", seed=5)
    for agent in (plain, child):
        agent.inherit(theirs)
        mine = agent.state_dict()
        assert all(
            torch.equal(mine[name], theirs[name])
            for name in mine
            if name.startswith(("modules", "optimisers"))
        )
    # it acts with what it inherited at once, as the plain child does
    obs = child.agent.normalise(torch.rand(4, 2))
    with torch.no_grad():
        assert torch.equal(child._front.actor(obs)[0], child.agent.actor(obs)[0])
    assert child._front.has_parent
    with pytest.raises(CheckpointError, match="without a pipeline"):
        pipelined("sac").load_state_dict(plain.state_dict())


def test_what_one_learner_lacks_is_not_averaged():
    weight, moment = torch.ones(2), torch.full((2,), 4.0)
    states = [{"modules.a": weight, "optimisers.b": moment}, {"modules.a": 3 * weight}]
    assert average(states)["modules.a"].tolist() == [2.0, 2.0]
    assert average(states).keys() == average(states[::-1]).keys() == {"modules.a"}
