import pytest
import torch
from torch.nn.utils import parameters_to_vector

from fintrader.agents import PPO, ActionHeadSettings, Budget, make_agent, on_policy, ppo, train
from fintrader.agents.normalisation import Batch
from fintrader.agents.on_policy import Rollout, log_prob_per_latent
from fintrader.agents.ppo import PPOAgent, ppo_objective
from fintrader.agents.settings import NetworkSettings
from fintrader.envs import EnvSettings, ObservationLayout, TradingEnv
from fintrader.errors import ConfigError
from tests.engines.tiny import DEVICES, Identity
from tests.factories import make_market, planted_market

LAYOUT = ObservationLayout(5, 3, 2)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient"),
    [(3.0, 1.0, 0.0), (3.0, -1.0, -1.0), (0.5, 1.0, 1.0), (0.5, -1.0, 0.0), (1.0, 2.0, 2.0)],
)
def test_gradient_of_the_clipped_objective(ratio, advantage, gradient):
    r = torch.tensor(ratio, requires_grad=True)
    ppo_objective(r, torch.tensor(advantage), 0.2).backward()
    assert r.grad.item() == gradient


@pytest.mark.parametrize(
    ("rows", "bars", "minibatches"),
    [(12, 0, 4), (35, 0, 4), (10, 0, 4), (9, 0, 5), (7, 0, 7)]
    + [(180, 15, 4), (45, 15, 4), (240, 15, 5), (15, 15, 3)],
)
def test_every_pass_visits_every_row_once_and_cuts_hardly_a_bar_in_two(rows, bars, minibatches):
    """The private parts name their rows; batches that do not divide the rollout lose none."""
    agent = make_agent(PPO(num_minibatches=minibatches, update_epochs=3), LAYOUT, seed=1)
    loss = agent.loss
    visited = []

    def spy(rollout):
        visited.append(rollout.batch)
        return loss(rollout)

    agent.loss = spy
    names = torch.arange(float(rows)).unsqueeze(1).expand(-1, LAYOUT.private_width)
    place = torch.arange(rows) % bars if bars else None
    if bars:
        place[:4] = 3  # not all bars have as many
    seen = Batch(names, torch.randn(bars or rows, LAYOUT.market_width), place)
    rollout = Rollout(seen, *torch.randn(2, rows, agent.head.latents), *torch.randn(2, rows))
    drawn = agent.draw_passes(rows, place, len(seen.rows))
    on_policy.take_passes.__wrapped__(rollout.latent, agent, rollout, drawn)
    passes = [visited[k : k + minibatches] for k in range(0, len(visited), minibatches)]
    orders = [[name for batch in one for name in batch.private[:, 0].tolist()] for one in passes]
    assert [sorted(order) for order in orders] == 3 * [list(range(rows))]
    assert orders[0] != orders[1]
    for one in passes:
        sizes = [len(batch.private) for batch in one]
        assert max(sizes) - min(sizes) <= 1
        assert sum(len(batch.rows) for batch in one) <= (bars + minibatches - 1 if bars else rows)


def some_rollout(agent, rows=40):
    """Experience of the agent as it stands: all ratios are 1. Rows see nine bars."""
    draw = torch.Generator().manual_seed(5)
    private = torch.randn(rows, LAYOUT.private_width, generator=draw)
    seen = Batch(
        private, torch.randn(9, LAYOUT.market_width, generator=draw), torch.arange(rows) % 9
    )
    with torch.no_grad():
        noise = torch.randn(rows, agent.head.latents, generator=draw)
        latent = agent.mean_latent(seen) + noise * agent.noise["log_std"].exp()
    log_prob = log_prob_per_latent(noise, agent.noise["log_std"]).detach()
    return Rollout(seen, latent, log_prob, *torch.randn(2, rows, generator=draw))


def slopes(loss, agent):
    weights = [*agent.actor.parameters(), agent.noise["log_std"]]
    return [slope.clone() for slope in torch.autograd.grad(loss, weights, retain_graph=True)]


def test_the_first_step_is_that_of_the_joint_ratio():
    agent = make_agent(PPO(noise_decay="learned"), LAYOUT, seed=1)
    batch = some_rollout(agent)
    log_std = agent.noise["log_std"]
    _, found = agent.loss(batch)
    noise = (batch.latent - agent.mean_latent(batch.batch)) * torch.exp(-log_std)
    joint = (log_prob_per_latent(noise, log_std) - batch.log_prob).sum(dim=-1).exp()
    torch.testing.assert_close(joint, torch.ones(40), atol=1e-5, rtol=0)
    objective = ppo_objective(joint.unsqueeze(-1), batch.advantage, 0.2).mean()
    assert float(found["kl"]) == pytest.approx(0, abs=1e-6)
    for mine, theirs in zip(
        slopes(found["policy_loss"], agent), slopes(-objective, agent), strict=True
    ):
        assert float(theirs.abs().max()) > 1e-4
        torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("kind", ["market_once", "per_asset"])
@pytest.mark.parametrize("moved", [0.0, 0.3, 3.0])
def test_the_compiled_pass_is_the_tensors(kind, moved, monkeypatch):
    network = {"kind": kind, "hidden": [8]}
    agent = make_agent(
        PPO.model_validate({"noise_decay": "learned", "network": network}), LAYOUT, seed=1
    )
    batch = some_rollout(agent)
    with torch.no_grad():  # the policy is another by now: many ratios are outside
        for weights in agent.actor.parameters():
            weights += moved * torch.randn(
                weights.shape, generator=torch.Generator().manual_seed(3)
            )
        agent.noise["log_std"] += 0.1 * moved
    found = []
    for surrogate in (ppo.clipped_surrogate, ppo.clipped_surrogate.__wrapped__):
        monkeypatch.setattr(ppo, "clipped_surrogate", surrogate)
        loss, parts = agent.loss(batch)
        parts = {name: float(value) for name, value in parts.items()}
        found.append(parts | {"slopes": slopes(loss, agent)})
    compiled, tensors = found
    for name in ("policy_loss", "value_loss", "kl", "clip_fraction"):
        assert compiled[name] == pytest.approx(tensors[name], rel=1e-3, abs=1e-5)
    assert (tensors["clip_fraction"] > 0.2) == (moved > 0)
    for mine, theirs in zip(compiled["slopes"], tensors["slopes"], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))


def test_a_latent_out_of_range_holds_no_other_back():
    agent = make_agent(PPO(noise_decay="learned"), LAYOUT, seed=1)
    batch = some_rollout(agent)
    batch = batch._replace(advantage=batch.advantage.abs())
    batch.log_prob[:, 2] -= 1.0  # its ratios are e: beyond the range, and advantages are positive
    _, found = agent.loss(batch)
    (slope,) = torch.autograd.grad(found["policy_loss"], [agent.noise["log_std"]])
    assert (slope == 0).tolist() == [False, False, True, False, False, False]
    assert float(found["clip_fraction"]) == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    ("start", "decay", "updates", "left"),
    [(1.0, 0.1, 3, 0.9**3), (0.4, 0.1, 9, 0.2), (0.1, 0.1, 3, 0.1), (0.5, 0.0, 3, 0.5)]
    + [(0.5, "learned", 3, None)],
)
def test_noise_becomes_less_with_every_update_down_to_its_least(start, decay, updates, left):
    """None: it moves, each latent's by itself."""
    env = Identity(seed=5)
    settings = PPO(num_steps=8, noise=start, noise_decay=decay)
    agent = make_agent(settings, env.layout, seed=0)
    train(agent, env, Budget(env_steps=updates * 8 * env.num_envs))
    noise = agent.noise["log_std"].detach().exp()
    if left is None:
        assert len({start, *noise.tolist()}) == 1 + len(noise)
    else:
        torch.testing.assert_close(noise, torch.full_like(noise, left))


def test_target_kl_stops_the_passes():
    env = Identity(seed=5)
    moved = []
    for target in (1e-8, None):
        agent = make_agent(PPO(num_steps=8, target_kl=target), env.layout, seed=0)
        before = parameters_to_vector(agent.policy.parameters()).detach().clone()
        train(agent, env, Budget(env_steps=128))
        after = parameters_to_vector(agent.policy.parameters()).detach()
        moved.append(float((after - before).abs().sum()))
    assert moved[0] < moved[1]


def test_aim_actions_are_refused_by_a_trade_environment():
    env = TradingEnv(planted_market(100, 2), EnvSettings(num_envs=4, action="trade"))
    with pytest.raises(ConfigError, match=r"env\.action"):
        train(make_agent(PPO(), env.layout), env, Budget(env_steps=10))
    direct = PPO(num_steps=2, head=ActionHeadSettings(kind="direct"))
    assert train(make_agent(direct, env.layout), env, Budget(env_steps=16)).updates == 2


UPDATES = 4
STEPS = 5
ACCOUNTS = 32


class Unwaiting(PPOAgent):
    """After the first update, which compiles and allocates, torch raises where the host would wait
    between updates."""

    updates = unwaited = 0

    def forbid(self, waiting):
        if self.device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error" if waiting else "default")

    def act(self, obs):
        self.forbid(self.updates > 0)
        self.unwaited += self.updates > 0
        return super().act(obs)

    def update(self):
        if self.buffer is None or not self.buffer.is_full:
            return super().update()
        self.forbid(False)
        self.updates += 1
        return super().update()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("network", [{"kind": "mlp", "hidden": (256, 256)}, {}])
@pytest.mark.parametrize("engine", ["auto", "torch"])
def test_ppo_waits_for_the_device_only_to_update(device, network, engine):
    """The same loop runs on the CPU, so that what a GPU is asked to do has been done once."""
    env = TradingEnv(
        make_market(60, 6),
        EnvSettings(episode_bars=7),
        num_envs=ACCOUNTS,
        device=device,
        engine=engine,
    )
    settings = PPO(num_steps=STEPS, network=NetworkSettings(**network))
    agent = Unwaiting(settings, env.layout, device=device, seed=0)
    try:
        result = train(agent, env, Budget(env_steps=UPDATES * STEPS * ACCOUNTS))
    finally:
        agent.forbid(False)
    assert result.updates == UPDATES
    assert agent.unwaited == (UPDATES - 1) * STEPS
    assert {parameter.device.type for parameter in agent.modules.parameters()} == {device}
