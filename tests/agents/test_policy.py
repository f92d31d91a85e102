import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load, load_file, save

from fintrader.agents import (
    PPO,
    Budget,
    EnsemblePolicy,
    NetworkSettings,
    load_policy,
    make_agent,
    save_policy,
    train,
)
from fintrader.agents.checkpoint import read_tensors, write_tensors
from fintrader.agents.policy import FORMAT, export_onnx
from fintrader.envs import ObservationLayout
from fintrader.envs.observation import FlatLayout
from fintrader.envs.trading import EnvSettings, TradingEnv
from fintrader.errors import CheckpointError, ConfigError
from tests.factories import planted_market
from tests.quick import mostly_slow

MARKET = planted_market(80, 4)
ENV = TradingEnv(MARKET, EnvSettings(num_envs=6))


def random_policy(layout=ENV.layout, head="auto", seed=1, **network):
    """A policy whose weights and statistics are random numbers."""
    settings = NetworkSettings.model_validate({"hidden": (8,), **network})
    agent = make_agent(PPO(network=settings, head={"kind": head}), layout, seed=1)
    torch.manual_seed(seed)
    for parameter in agent.policy.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    agent.normaliser.update(torch.rand(9, layout.width) * 2 + 1)
    return agent.policy


def observations():
    obs, _ = ENV.reset(seed=11)
    for _ in range(3):
        obs, *_ = ENV.step(torch.rand(6, 4))
    return obs


def test_the_observations_statistics_travel_with_the_policy(tmp_path):
    agent = make_agent(
        PPO(network=NetworkSettings(hidden=(8,)), gamma=0.9, num_steps=8), ENV.layout, seed=1
    )
    train(agent, ENV, Budget(env_steps=6 * 8 * 3))
    save_policy(agent, tmp_path / "one", market=MARKET)
    save_policy(
        EnsemblePolicy([load_policy(tmp_path / "one"), random_policy(seed=2)]), tmp_path / "both"
    )
    member = load_policy(tmp_path / "both").members[0]
    for loaded in (load_policy(tmp_path / "one"), member):
        assert torch.equal(loaded.normaliser.mean, agent.normaliser.mean)


@pytest.mark.parametrize("kind", ["market_once", "per_asset", "mlp"])
@pytest.mark.parametrize("head", ["aim", "direct"])
def test_a_stored_policy_acts_as_before(tmp_path, kind, head):
    original = random_policy(head=head, kind=kind)
    save_policy(original, tmp_path / "policy.safetensors", {"score": 1.5}, market=MARKET)
    loaded = load_policy(tmp_path / "policy.safetensors", market=MARKET)
    obs = observations()
    action = loaded(obs)
    assert torch.equal(action, original(obs).detach())
    assert action.shape == (6, 4)
    assert bool((action.abs() <= 1).all())
    assert loaded.meta["score"] == 1.5
    assert not action.requires_grad
    assert torch.equal(action, loaded(obs))


def test_equal_policies_give_equal_bytes_and_leave_the_global_random_stream_alone(tmp_path):
    save_policy(random_policy(), tmp_path / "a")
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    save_policy(load_policy(tmp_path / "a"), tmp_path / "b")
    make_agent(PPO(), ENV.layout, seed=4)
    assert torch.equal(torch.rand(1), expected)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_ensembles(tmp_path):
    members = [random_policy(seed=seed) for seed in (1, 2, 3)]
    obs = observations()
    actions = torch.stack([member(obs) for member in members]).detach()
    expected = {
        "mean": actions.mean(dim=0),
        "weighted": (actions * torch.tensor([0.5, 0.3, 0.2]).view(3, 1, 1)).sum(dim=0),
        "vote": actions.sort(dim=0).values[1],
    }
    for mode, action in expected.items():
        ensemble = EnsemblePolicy(members, [5.0, 3.0, 2.0], mode)
        torch.testing.assert_close(ensemble(obs).detach(), action)
        save_policy(ensemble, tmp_path / mode, {"trials": 3})
        loaded = load_policy(tmp_path / mode)
        assert torch.equal(loaded(obs), ensemble(obs).detach())
        assert loaded.meta == {"trials": 3}
        assert len({mode: action.sum() for mode, action in expected.items()}) == 3


def test_ensembles_that_make_no_sense():
    with pytest.raises(ConfigError, match="at least one"):
        EnsemblePolicy([])
    for weights, mode, message in (
        ([-1.0], "weighted", "weights"),
        ([float("nan")], "weighted", "weights"),
        (None, "loudest", "mode"),
    ):
        with pytest.raises(ConfigError, match=message):
            EnsemblePolicy([random_policy()], weights, mode)
    other = TradingEnv(planted_market(80, 5), EnvSettings(num_envs=2))
    with pytest.raises(CheckpointError, match="layout"):
        EnsemblePolicy([random_policy(), make_agent(PPO(), other.layout).policy])


def test_a_damaged_file(tmp_path):
    path = tmp_path / "p"
    save_policy(random_policy(), path, {"score": 1.0})
    whole = path.read_bytes()
    told = whole.replace(b'score\\\\\\": 1.0', b'score\\\\\\": 9.0')
    assert told != whole
    damages = [
        *((whole[:size], "truncated or damaged") for size in (0, 7, 100, len(whole) - 1)),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "changed after it was written"),
        (told, "changed after it was written"),
        (
            save(
                load(whole), metadata={"fintrader": json.dumps({"header": '{"format": "other"}'})}
            ),
            "other",
        ),
    ]
    for damaged, message in damages:
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=message):
            load_policy(path)
    with pytest.raises(CheckpointError, match="does not exist"):
        load_policy(tmp_path / "nothing")


STORED = r"networks of [\d,]+ numbers, and [\d,]+ are stored"
COLUMNS = r"layout has [\d,]+ columns"
LARGER = {
    "a network of 29 GB": (lambda one: one["network"].update(hidden=[60_000] * 2), STORED),
    "a member of 29 GB": (
        lambda one: one["members"][1]["network"].update(hidden=[60_000] * 2),
        STORED,
    ),
    "members by the thousand": (
        lambda one: one.update(members=one["members"] * 10_000),
        STORED,
    ),
    "a billion symbols": (
        lambda one: one["layout"]["layout"].update(num_assets=10**9),
        COLUMNS,
    ),
    "a billion columns": (
        lambda one: one["layout"]["layout"].update(account_width=10**9),
        COLUMNS,
    ),
}


@pytest.mark.parametrize("name", LARGER)
def test_what_is_not_stored_is_not_built(tmp_path, name):
    """Sealed as it should be, but larger than the file: it would take gigabytes or minutes."""
    change, problem = LARGER[name]
    path = tmp_path / "p"
    save_policy(
        EnsemblePolicy([random_policy(), random_policy(seed=2)])
        if "member" in name
        else random_policy(),
        path,
        {},
    )
    tensors, header = read_tensors(path, FORMAT)
    change(header["policy"])
    write_tensors(path, tensors, header)
    with pytest.raises(CheckpointError, match=problem):
        load_policy(path)


def test_a_network_that_cannot_read_its_layout_is_refused(tmp_path):
    path = tmp_path / "p"
    save_policy(random_policy(FlatLayout(3, 1)), path)
    tensors, header = read_tensors(path, FORMAT)
    header["policy"]["network"]["kind"] = "market_once"
    write_tensors(path, tensors, header)
    with pytest.raises(CheckpointError, match=r"reads a market's assets.*train again"):
        load_policy(path)


def test_another_market_is_refused(tmp_path):
    path = tmp_path / "p"
    save_policy(random_policy(), path, market=MARKET)
    with pytest.raises(CheckpointError, match="symbols differ"):
        load_policy(path, market=replace(MARKET, symbols=("A", "B", "C", "D")))
    with pytest.raises(CheckpointError, match="feature names differ"):
        load_policy(path, market=replace(MARKET, feature_names=("other", "noise0", "noise1")))
    load_policy(
        path, market=planted_market(50, 4, seed=8)
    )  # other bars of the same columns are fine
    save_policy(random_policy(), path)
    with pytest.raises(CheckpointError, match="4 assets"):
        load_policy(path, market=planted_market(50, 5))


KINDS = [
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]


def test_files_are_what_the_library_reads(tmp_path):
    tensors = {str(kind): torch.arange(7).to(kind) for kind in KINDS}
    tensors |= {
        "scalar": torch.tensor(3.0),
        "empty": torch.zeros(0, 4),
        "turned": torch.arange(6.0).view(2, 3).T,
    }
    write_tensors(tmp_path / "file", tensors, {"format": "test", "é": 1})
    mine, header = read_tensors(tmp_path / "file", "test")
    theirs = load_file(tmp_path / "file")
    assert header == {"format": "test", "é": 1}
    assert mine.keys() == theirs.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(mine[name], tensor), name
        assert torch.equal(theirs[name], tensor), name
        assert mine[name].dtype == tensor.dtype


@pytest.fixture
def onnxruntime():
    pytest.importorskip("onnxscript")
    return pytest.importorskip("onnxruntime")


BENCHMARK = ObservationLayout(5, 3, 2, benchmark=1)
WINDOWED = ObservationLayout(5, 3, 2, lookback=4)
POLICIES = {
    "ensemble": lambda: EnsemblePolicy(
        [random_policy(BENCHMARK), random_policy(BENCHMARK, "aim", kind="per_asset")]
    ),
    "mlp": lambda: random_policy(BENCHMARK, "direct", kind="mlp"),
    "gru": lambda: random_policy(WINDOWED, encoder="gru"),
    "attention": lambda: random_policy(WINDOWED, encoder="attention"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    mostly_slow("ensemble", every=POLICIES),
)
def test_an_exported_policy_acts_alike(tmp_path, kind, onnxruntime):
    original = POLICIES[kind]()
    assert kind != "ensemble" or [one.head.kind for one in original.members] == ["tilt", "aim"]
    assert export_onnx(original, tmp_path / "p.onnx") < 1e-5
    session = onnxruntime.InferenceSession(
        str(tmp_path / "p.onnx"), providers=["CPUExecutionProvider"]
    )
    obs = torch.rand(6, session.get_inputs()[0].shape[1])
    (action,) = session.run(["action"], {"obs": obs.numpy()})
    with torch.no_grad():
        np.testing.assert_allclose(action, original(obs).numpy(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("onnxruntime")
def test_a_model_that_differs_is_not_written(tmp_path):
    with pytest.raises(CheckpointError, match="differs"):
        export_onnx(random_policy(), tmp_path / "p.onnx", tolerance=-1.0)
    assert not (tmp_path / "p.onnx").exists()
