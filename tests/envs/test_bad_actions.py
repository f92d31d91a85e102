"""What is no action, or no argument, is refused with one typed error and changes nothing: at every
door and engine."""

from itertools import product

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode

from fintrader.envs import EnvSettings, TradingEnv
from fintrader.envs.adapters.gymnasium import NumpyVectorEnv
from fintrader.envs.multi_agent import MultiTraderEnv
from fintrader.envs.settings import TraderSettings
from fintrader.errors import CheckpointError, EnvError
from tests.engines.twins import assert_same, refused
from tests.factories import make_market

MARKET = make_market(30, 3)
NOT_FINITE = {"NaN": float("nan"), "infinity": float("inf"), "minus infinity": -float("inf")}
ENGINES = ["torch", "fused"]


def stepped(mode, engine, **settings):
    """Two accounts after one step, the first of them at its episode's end."""
    env = TradingEnv(
        MARKET, EnvSettings(**settings), num_envs=2, autoreset_mode=mode, engine=engine
    )
    options = {"episode_bars": torch.tensor([1, 9])} if mode is not AutoresetMode.DISABLED else None
    env.reset(seed=1, options=options)
    env.step(torch.full((2, 3), 0.2))
    return env


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("engine", ENGINES)
def test_an_action_that_is_not_finite_is_refused_and_changes_nothing(engine, mode):
    env = stepped(mode, engine)
    twin = stepped(mode, engine)
    before = env.state_dict()
    account = env.account
    for value, row in product(
        NOT_FINITE.values(), (0, 1)
    ):  # under NEXT_STEP the action in row 0 counts for nothing
        action = torch.full((2, 3), 0.5)
        action[row, 2] = value
        wanted = action.clone().requires_grad_(True)  # a step of the core, on any engine
        for given in (
            action,
            action.double(),
            action.half(),
            wanted,
            action.numpy(),
            action.double().numpy(),
        ):
            with refused(env, "NaN or infinity"):
                env.step(given)
    for after, expected in zip(
        env.step(torch.full((2, 3), 0.5)), twin.step(torch.full((2, 3), 0.5)), strict=True
    ):
        if isinstance(after, torch.Tensor):
            assert torch.equal(after, expected)
    assert all(
        torch.equal(value, before[f"account.{name}"]) for name, value in account._asdict().items()
    )


@pytest.mark.parametrize("engine", ["torch", "fused"])
@pytest.mark.parametrize(
    ("action", "message"),
    [
        (torch.full((2, 3), 1e300, dtype=torch.float64), "infinity"),  # an action is a float32
        (np.full((2, 3), 1e300), "infinity"),
        (torch.zeros(2, 3).to_sparse(), "dense"),
        (torch.zeros(2, 4), "shape"),
        (torch.zeros(6), "shape"),
        (np.zeros((2, 3), dtype=object), "floating"),
        (np.ones((2, 3), dtype=np.int32), "floating"),
        (torch.ones(2, 3, dtype=torch.int64), "floating"),
        (torch.ones(2, 3, device="meta"), "lie on meta"),
        ([[0.0] * 3] * 2, "tensor"),
    ],
    ids=str,
)
def test_engines_refuse_the_same(engine, action, message):
    env = stepped(AutoresetMode.SAME_STEP, engine)
    with refused(env, message):
        env.step(action)


@pytest.mark.parametrize("engine", ["torch", "fused"])
@pytest.mark.parametrize(
    "kind",
    ["f2", ">f4", np.longdouble, torch.float16, torch.float64, torch.bfloat16, torch.float8_e4m3fn],
    ids=str,
)
def test_every_floating_point_format_is_an_action(engine, kind):
    env = stepped(AutoresetMode.SAME_STEP, engine)
    twin = stepped(AutoresetMode.SAME_STEP, engine)
    action = torch.full((2, 3), 0.25)
    env.step(action.to(kind) if isinstance(kind, torch.dtype) else action.numpy().astype(kind))
    twin.step(action)
    assert_same(env.state_dict(), twin.state_dict())


@pytest.mark.parametrize("value", NOT_FINITE.values(), ids=NOT_FINITE)
@pytest.mark.parametrize("door", ["single", "numpy vector", "traders"])
def test_other_doors_refuse_what_is_not_finite(door, value):
    if door == "single":
        single = gymnasium.make("fintrader/Trading-v0", market=MARKET).unwrapped
        single.reset(seed=1)
        step = lambda: single.step(np.full(3, value, dtype=np.float32))  # noqa: E731
        books = single.vector_env.account
    elif door == "numpy vector":
        vector = NumpyVectorEnv(TradingEnv(MARKET, num_envs=2))
        vector.reset(seed=1)
        step = lambda: vector.step([[value] * 3] * 2)  # noqa: E731
        books = vector.env.account
    else:
        games = MultiTraderEnv(MARKET, EnvSettings(), TraderSettings(teams=(1, 1)))
        games.reset(seed=1)
        step = lambda: games.step(torch.full((1, 2, 3), value))  # noqa: E731
        books = games.account
    before = [one.clone() for one in books]
    with pytest.raises(EnvError, match="NaN or infinity"):
        step()
    assert all(torch.equal(one, kept) for one, kept in zip(books, before, strict=True))


@pytest.mark.parametrize("actions", [None, "buy", [[0.0] * 3, [0.0] * 2], {"a": 1.0}], ids=str)
def test_what_numpy_makes_no_numbers_of_is_refused(actions):
    vector = NumpyVectorEnv(TradingEnv(MARKET, num_envs=2))
    vector.reset(seed=1)
    with pytest.raises(EnvError, match="actions"):
        vector.step(actions)


@pytest.mark.parametrize("seed", [1.5, "a", [1, "a"], [1.5, 2.0], [1, 2, 3]], ids=str)
def test_what_is_no_seed_is_refused(seed):
    env = stepped(AutoresetMode.SAME_STEP, "auto")
    with refused(env, "seed"):
        env.reset(seed=seed)
    with pytest.raises(EnvError, match="seed"):
        TradingEnv(MARKET, num_envs=2, seed=seed)


@pytest.mark.parametrize("seed", [[3, 4], (3, 4), np.array([3, 4]), torch.tensor([3, 4])], ids=str)
def test_seeds_may_come_in_any_sequence(seed):
    env = TradingEnv(MARKET, num_envs=2)
    twin = TradingEnv(MARKET, num_envs=2)
    env.reset(seed=seed)
    twin.reset(seed=[3, 4])
    assert torch.equal(env.state_dict()["key"], twin.state_dict()["key"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_envs": 2.5}, "num_envs"),
        ({"num_envs": True}, "num_envs"),
        ({"num_envs": "2"}, "num_envs"),
        ({"device": "gpu"}, "'gpu' is no device"),
        ({"device": "cuda:99"}, "CUDA"),
        ({"autoreset_mode": "SAME_STEP"}, "autoreset_mode"),
        ({"settings": {"episode_bars": 5}}, "EnvSettings"),
        ({"market": None}, "market"),
        ({"market": {}}, "market"),
    ],
    ids=str,
)
def test_what_no_environment_is_made_of_is_refused(arguments, message):
    with pytest.raises(EnvError, match=message):
        TradingEnv(**({"market": MARKET} | arguments))


def test_what_is_no_dict_is_refused():
    env = stepped(AutoresetMode.SAME_STEP, "auto")
    for options in ([1], "start", {1: 2}):
        with refused(env, "option"):
            env.reset(options=options)
    with refused(env, "state_dict", CheckpointError):
        env.load_state_dict(None)
