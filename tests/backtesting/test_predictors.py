"""Models of Stable-Baselines3 and of its kind, backtested as they stand."""

import gymnasium
import numpy as np
import pytest
import torch

import fintrader
from fintrader import EnvSettings, TradingEnv
from fintrader.backtesting import simulate
from fintrader.backtesting.policy_strategy import is_predictor
from fintrader.backtesting.sensitivity import Choices, sensitivity
from fintrader.errors import BacktestError
from tests.factories import make_market
from tests.quick import mostly_slow, slow_but

SETTINGS = EnvSettings(num_envs=4, episode_bars=20)


@pytest.fixture(scope="module")
def market():
    return make_market(240, 3)


@pytest.fixture(scope="module")
def sb3():
    return pytest.importorskip("stable_baselines3")


def trained(sb3, algo, market, *, normalise):
    """A small model after a few steps of learning, with loud exploration noise."""
    from stable_baselines3.common.vec_env import VecNormalize

    from fintrader.envs.adapters.sb3 import Sb3VecEnv

    env = Sb3VecEnv(TradingEnv(market.split().train, SETTINGS, seed=1))
    if normalise:
        env = VecNormalize(env)
    given = {"policy_kwargs": {"net_arch": [8]}, "seed": 1, "device": "cpu"}
    given |= {"n_steps": 16, "batch_size": 16, "n_epochs": 1} if "PPO" in algo else {}
    given |= {"learning_starts": 16, "batch_size": 8} if algo in OFF_POLICY else {}
    kind = "MlpLstmPolicy" if algo == "RecurrentPPO" else "MlpPolicy"
    model = getattr(sb3, algo)(kind, env, **given)
    model.learn(96)
    return model


def by_hand(model, market, settings, normaliser):
    """The last equity of a loop over `predict(deterministic=True)` in the environment itself."""
    env = TradingEnv.evaluation(market, settings)
    obs, _ = env.reset(seed=0)
    over = False
    state = None
    while not over:
        rows = obs.numpy()
        seen = rows if normaliser is None else normaliser.normalize_obs(rows)
        starts = np.array([state is None])
        action, state = model.predict(seen, state, starts, deterministic=True)
        obs, _, terminated, truncated, _ = env.step(torch.from_numpy(action))
        over = bool((terminated | truncated).all())
    return float(env.equity[0])


OFF_POLICY = ("SAC", "TD3", "DDPG", "TQC")
CASES = [("PPO", True), ("PPO", False), ("A2C", True), ("SAC", True), ("TD3", False)]
CASES += [("DDPG", True), ("TQC", True), ("RecurrentPPO", True), ("RecurrentPPO", False)]


@pytest.mark.parametrize(("algo", "normalise"), slow_but(0, every=CASES))
def test_a_model_is_asked_deterministically_and_sees_what_it_was_trained_on(
    sb3, algo, normalise, market
):
    if not hasattr(sb3, algo):
        sb3 = pytest.importorskip("sb3_contrib", reason=f"sb3-contrib is missing, so {algo} is")
    test = market.split().test
    settings = EnvSettings(start="first")
    model = trained(sb3, algo, market, normalise=normalise)
    normaliser = model.get_vec_normalize_env()
    assert (normaliser is not None) == normalise
    before = None if normaliser is None else normaliser.obs_rms.mean.copy()
    first, second = (fintrader.backtest(model, test, settings) for _ in range(2))
    assert np.array_equal(first["policy"].equity, second["policy"].equity)
    assert first["policy"].equity[-1] == by_hand(model, test, settings, normaliser)
    assert len(first["policy"].trades) > 0
    if normaliser is not None:
        assert np.array_equal(normaliser.obs_rms.mean, before)
        assert first["policy"].equity[-1] != by_hand(model, test, settings, None)
        assert "normalised by its VecNormalize" in str(first)
    else:
        assert "holds no VecNormalize" in str(first)
    # Its bare policy is deterministic, too, and knows no normaliser.
    bare = fintrader.backtest(model.policy, test, settings)
    assert bare["policy"].equity[-1] == by_hand(model, test, settings, None)
    assert "a bare policy knows no VecNormalize; pass its model" in str(bare)
    for tests in (first, bare):
        assert "VecNormalize" not in " ".join(tests.verdict.caveats)
        assert tests["policy"].caveats == ()


@pytest.mark.parametrize("normalise", [True, False])
def test_a_stored_model_names_the_normaliser_that_it_lost(sb3, normalise, market, tmp_path):
    trained(sb3, "PPO", market, normalise=normalise).save(tmp_path / "model.zip")
    alone = sb3.PPO.load(tmp_path / "model.zip", device="cpu")
    caveats = fintrader.backtest(alone, market.split().test).verdict.caveats
    named = [caveat for caveat in caveats if "VecNormalize that it was trained under" in caveat]
    assert len(named) == normalise


@pytest.mark.parametrize("rescale", [True, False])
def test_a_model_keeps_the_wrappers_of_its_single_account(sb3, rescale, market):
    """RescaleAction is undone as in training; an observation wrapper is named."""
    from stable_baselines3.common.vec_env import DummyVecEnv

    def make():
        env = gymnasium.make("fintrader/Trading-v0", market=market.split().train)
        if rescale:
            return gymnasium.wrappers.RescaleAction(env, np.float32(0), np.float32(1))
        return gymnasium.wrappers.NormalizeObservation(env)

    env = DummyVecEnv([make])
    model = sb3.PPO("MlpPolicy", env, n_steps=16, batch_size=16, seed=1, device="cpu")
    model.learn(16)
    test = market.split().test
    settings = EnvSettings(start="first")
    tests = fintrader.backtest(model, test, settings)
    wrappers = "observations without the gymnasium wrappers"
    assert any(wrappers in caveat for caveat in tests.verdict.caveats) == (not rescale)
    if rescale:
        asked = Rescaled(model)
        assert tests["policy"].equity[-1] == by_hand(asked, test, settings, None)
        with pytest.raises(BacktestError, match=r"acts between 0 and 1"):
            fintrader.backtest(model.policy, test, settings)


class Rescaled:
    """A model of actions in [0, 1], whose actions are [-1, 1] here."""

    def __init__(self, model):
        self.model = model

    def predict(self, obs, *state, deterministic):
        action, state = self.model.predict(obs, *state, deterministic=deterministic)
        return 2 * action - 1, state


class Recurrent:
    """Holds more of the first asset each time that it is asked since its last beginning."""

    def __init__(self, width=18, assets=3, high=1.0):
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (width,), np.float32)
        self.action_space = gymnasium.spaces.Box(-high, high, (assets,), np.float32)
        self.asked = []

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        assert observation.shape == (len(observation), *self.observation_space.shape)
        assert observation.dtype == np.float32
        self.asked.append((bool(episode_start[0]), deterministic))
        times = np.zeros(len(observation))
        if state is not None:
            times = np.where(episode_start, 0, state[0]) + 1
        action = np.zeros((len(observation), self.action_space.shape[0]), np.float32)
        action[:, 0] = np.minimum(times / 100, 1)
        return action, (times,)


def test_a_recurrent_model_keeps_its_state_within_one_simulation(market):
    model = Recurrent()
    test = market.split().test
    first, second = (simulate(model, test, EnvSettings()) for _ in range(2))
    assert np.array_equal(first.equity, second.equity)
    decisions = test.num_bars - 1
    once = [(True, True), *[(False, True)] * (decisions - 1)]
    # The first decisions are asked for again, from the beginning.
    assert model.asked == (once + once[:16]) * 2
    assert first.caveats == ()
    # At bar t it has been asked t times: by then a share of t / 100 is held.
    assert first.weights()[50, 0] == pytest.approx(0.49, abs=0.03)


@pytest.mark.slow
def test_variations_of_a_model_begin_with_a_state_of_their_own(market):
    few = Choices(costs_bps=(0,), fills=(), capitals=(), start_shifts=())
    test = market.split().test
    rows = [sensitivity(Recurrent(), test, EnvSettings(), choices=few) for _ in range(2)]
    assert rows[0] == rows[1]
    kinds = ["cost_bps"] * 2 + ["delay_bars"] * 2 + ["without"] * 3
    assert [row.kind for row in rows[0]] == kinds


class Classifier:
    """Has a `predict` of another kind; it is a policy by being called."""

    def predict(self, rows):
        raise AssertionError

    def __call__(self, obs):
        return torch.full((len(obs), 3), 0.2)


class Listed(Recurrent):
    """Chooses from a list."""

    def __init__(self):
        super().__init__()
        self.action_space = gymnasium.spaces.Discrete(3)


class Broken(Recurrent):
    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        raise ValueError("unexpected shape")


def test_only_models_of_that_kind_are_asked_by_predict(market):
    assert is_predictor(Recurrent())
    assert not is_predictor(Recurrent)
    assert not is_predictor(Classifier())
    classifier = Classifier()
    assert len(fintrader.backtest(classifier, market.split().test)["policy"].trades) > 0


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (Recurrent(width=17), EnvSettings(), r"\(17,\), and this market shows \(18,\).*lookback"),
        (Recurrent(assets=2), EnvSettings(), "for each of 3 assets"),
        (Recurrent(high=2.0), EnvSettings(), r"acts between -2 and 2.*numbers in \[-1, 1\]"),
        (Recurrent(high=0.5), EnvSettings(), r"acts between -0.5 and 0.5.*numbers in \[-1, 1\]"),
        (Recurrent(), EnvSettings(observation="factored"), "observation='flat'"),
        (Listed(), EnvSettings(), r"acts in Discrete\(3\)"),
        (Broken(), EnvSettings(), r"predict fails on .* of shape \(1, 18\) \(unexpected shape\)"),
    ],
)
def test_a_model_that_does_not_fit_is_one_clear_error(model, settings, message, market):
    for call in (fintrader.backtest, simulate):
        with pytest.raises(BacktestError, match=message):
            call(model, market.split().test, settings)


W = np.random.default_rng(0).normal(size=(18, 3)).astype(np.float32)
FORMS = {
    "tensor": lambda obs: torch.tanh(obs @ torch.from_numpy(W)),
    "array": lambda obs: np.tanh(obs.astype(np.float32) @ W),
    "float64": lambda obs: np.tanh(np.asarray(obs) @ W).astype(np.float64),
    "row": lambda obs: np.tanh(np.asarray(obs) @ W)[0],
    "list": lambda obs: np.tanh(np.asarray(obs) @ W).tolist(),
    "list of a row": lambda obs: np.tanh(np.asarray(obs) @ W)[0].tolist(),
    "with gradients": lambda obs: torch.tanh(obs @ torch.nn.Parameter(torch.from_numpy(W))),
}


@pytest.mark.parametrize("form", mostly_slow("array", "list of a row", every=FORMS))
def test_a_policy_may_be_in_numpy_and_return_a_row_or_a_list(form, market):
    test = market.split().test
    tests = fintrader.backtest(FORMS[form], test)
    expected = fintrader.backtest(FORMS["tensor"], test)
    np.testing.assert_allclose(tests["policy"].equity, expected["policy"].equity, rtol=1e-4)
    assert len(tests["policy"].trades) > 0
    assert tests["policy"].caveats == ()
    few = Choices(costs_bps=(0,), fills=(), capitals=(), start_shifts=())
    rows, others = (
        sensitivity(FORMS[name], test, EnvSettings(), choices=few) for name in (form, "tensor")
    )
    assert [row.cumulative_return for row in rows] == pytest.approx(
        [row.cumulative_return for row in others], abs=1e-4
    )


def test_a_constant_numpy_policy_holds_its_weights(market):
    tests = fintrader.backtest(lambda obs: np.full((1, 3), 0.25), market.split().test)
    assert tests["policy"].weights()[5] == pytest.approx([0.25] * 3, abs=0.03)


def test_a_policy_in_numpy_reads_a_factored_observation(market):
    settings = EnvSettings(observation="factored")

    def act(obs):
        assert obs["private"].dtype.kind == "f"
        return obs["private"].astype(np.float32)[:, :3] * 0 + 0.2

    assert len(fintrader.backtest(act, market.split().test, settings)["policy"].trades) > 0


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (lambda obs: (np.zeros((1, 3)), None), r"gave tuple for 3 assets.*pass the model itself"),
        (lambda obs: "buy", "gave str for 3 assets"),
        (lambda obs: np.zeros((2, 3)), r"gave \(2, 3\) for 3 assets"),
        (lambda obs: obs @ np.zeros((4, 3)), r"shape \(1, 18\) .*as an array: "),
    ],
)
def test_an_action_that_is_none_is_one_clear_error(policy, message, market):
    for call in (fintrader.backtest, simulate):
        with pytest.raises(BacktestError, match=message):
            call(policy, market.split().test, EnvSettings())


def test_a_policy_that_samples_is_named_in_the_verdict(market):
    def sampled(obs):
        return torch.rand(len(obs), 3)

    test = market.split().test
    tests = fintrader.backtest(sampled, test)
    named = "a policy that gave two actions for one observation"
    assert any(named in caveat for caveat in tests.verdict.caveats)
    assert named in str(tests)
    parts = [simulate(policy, test, EnvSettings()) for policy in (sampled, Classifier())]
    assert [bool(part.caveats) for part in parts] == [True, False]


class Sampling(Recurrent):
    """Samples although it is asked not to."""

    def predict(self, observation, state=None, episode_start=None, deterministic=False):
        return np.random.default_rng().uniform(size=(len(observation), 3)), None


def test_a_model_that_samples_in_spite_of_being_asked_not_to_is_named(market):
    assert "two actions" in simulate(Sampling(), market.split().test, EnvSettings()).caveats[0]
