"""Training with the GPU's code paths on a device that counts waits and memory; run by
`test_card.py`."""

import pytest
import torch

from fintrader.agents import PPO, Budget, base, buffers, make_agent, on_policy
from fintrader.agents.buffers import Transition
from fintrader.agents.training import TrainingRun
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.joined import JoinedEnv
from fintrader.envs.observation import FlatLayout
from fintrader.seeding import derive
from tests.engines import card
from tests.engines.tiny import agent_settings
from tests.factories import make_market

ROLLOUT = {"num_steps": 4}
PASSES = {**ROLLOUT, "update_epochs": 1, "num_minibatches": 2}
REPLAY = {"learning_starts": 16, "buffer_size": 1024, "batch_size": 8}
IN_UPDATES = {
    "index_occurring: _local_scalar_dense",  # bars of a rollout
    "to_metrics: _to_copy",
    "has_moved_enough: _local_scalar_dense",
}

pytestmark = pytest.mark.skipif(
    not hasattr(card.backend_registration, "_setup_privateuseone_for_python_backend"),
    reason="this torch has no devices in Python",
)


@pytest.fixture(autouse=True)
def on_card(monkeypatch):
    card.open_card()

    def create_generator(seed, *labels, device):
        generator = card.CardGenerator()
        generator.manual_seed(derive(seed, *labels))
        return generator

    monkeypatch.setattr(base, "create_generator", create_generator)
    monkeypatch.setitem(on_policy.ROWS_AT_ONCE, "card", on_policy.ROWS_AT_ONCE["cuda"])


@pytest.mark.parametrize(
    ("wait", "operation"),
    [
        (float, "_local_scalar_dense"),
        (lambda x: bool(x > 0), "_local_scalar_dense"),
        (lambda x: x.view(1).tolist(), "_to_copy"),
        (lambda x: x.cpu(), "_to_copy"),
        (lambda x: torch.zeros(1).to("card"), "copy_"),
        (lambda x: x.view(1).nonzero(), "nonzero"),
        (lambda x: x.view(1)[x.view(1) > 0], "index"),
        (lambda x: x.view(1).masked_select(x.view(1) > 0), "masked_select"),
        (lambda x: torch.equal(x, x), "equal"),
        (lambda x: torch.unique(x.view(1)), "_unique2"),
    ],
)
def test_the_card_notes_a_wait(wait, operation):
    x = torch.ones((), device="card")
    card.waits.clear()
    wait(x)
    assert card.waits == [operation]


@pytest.mark.parametrize(
    ("algo", "values", "env_values"),
    [
        ("ppo", {**PASSES, "network": {"kind": "mlp", "hidden": (8,)}}, {}),
        ("ppo", {**PASSES, "feature_dropout": 0.2, "feature_noise": 0.1}, {"lookback": 3}),
        ("ppo", {**PASSES, "target_kl": 0.1, "group_baseline": True}, {"decision_interval": 3}),
        ("ppo", PASSES, {"randomise": {"costs": (1, 2), "delay_bars": 2, "block_sessions": 1}}),
        ("ppo", PASSES, {"num_envs": 8, "short": True, "reward": "differential_sharpe"}),
        ("a2c", ROLLOUT, {"action": "trade"}),
        ("apg", ROLLOUT, {}),
        ("sac", {**REPLAY, "n_steps": 3}, {"clock": "session"}),
        ("td3", REPLAY, {}),
        ("redq", {**REPLAY, "num_critics": 3}, {}),
    ],
)
def test_a_training_waits_only_to_update(algo, values, env_values):
    """Acting, stepping and observing never wait, and an update waits for few numbers."""
    head = {"head": {"kind": "direct"}} if env_values.get("action") == "trade" else {}
    given = EnvSettings(episode_bars=5, **env_values)
    market = make_market(120, 3)
    if "num_envs" in env_values:
        env = JoinedEnv(
            [market.window(0, 60), market.window(70, 120)], given, device="card", seed=0
        )
    else:
        env = TradingEnv(market, given, num_envs=8, seed=0, device="card")
    agent = make_agent(agent_settings(algo, {**values, **head}), env.layout, device="card")
    run = TrainingRun(agent, agent.prepare_env(env), Budget(env_steps=10**6), None)
    run.begin()
    updates = 0
    for _ in range(9):
        card.waits.clear()
        action = agent.act(run.obs)
        run.check_action(action)
        transition = run.step(action)
        agent.observe(transition)
        between = list(card.waits)
        metrics = agent.update()
        if updates:  # the first one prepares what all others use
            assert between == []
            assert set(card.waits) <= (IN_UPDATES if metrics else set())
        if metrics:
            run.record(metrics)
        updates += bool(metrics) or getattr(agent, "learned", 0) > 0
    assert updates > 1


def test_a_rollout_is_refused_where_learning_from_it_would_not_fit(monkeypatch):
    """The guard counts the memory of an update and of a GPU's graphs."""
    counted = []
    monkeypatch.setattr(buffers, "require_memory", lambda needed, *rest: counted.append(needed))
    layout = FlatLayout(64, 2)
    agent = make_agent(PPO(num_steps=8, network={"hidden": (4,)}), layout, device="card")
    steps = [
        Transition(
            torch.randn(512, 64, device="card"),
            torch.zeros(512, 2, device="card"),
            *torch.zeros(1, 512, device="card"),
            *torch.zeros(2, 512, dtype=torch.bool, device="card"),
            torch.randn(512, 64, device="card"),
        )
        for _ in range(8)
    ]
    before = card.memory.now
    card.memory.most = before
    for _ in range(2):
        for step in steps:
            agent.act(step.obs)
            agent.observe(step)
        agent.update()
    used = card.memory.most - before
    assert 0.7 * counted[0] < used < counted[0]
