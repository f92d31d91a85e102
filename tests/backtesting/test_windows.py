"""Which windows get a verdict: the market says what it is, whoever asks."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import fintrader
from fintrader import EnvSettings, TradingEnv, agents
from fintrader.agents import EnsemblePolicy, load_policy, save_policy
from fintrader.backtesting import information_free, simulate, write_backtest
from fintrader.backtesting.assessment import assess
from fintrader.backtesting.data_caveats import EXITS, bound_absence
from fintrader.backtesting.settings import WalkForwardSettings
from fintrader.backtesting.walk_forward import cut_fold, make_folds, stitch
from fintrader.envs.joined import JoinedEnv
from fintrader.market.tensors import MarketTensors, Windows
from fintrader.results.context import BacktestContext
from fintrader.results.market_description import PlantedSignal, Survivorship
from fintrader.verdict.looks import HOME, Ledger
from tests.factories import planted_market

SESSIONS = 240
BARS = 5
NARROW = Windows((0, 10), (10, 20), (20, 390))
RULES = EnvSettings(benchmark="equal_weight", cost_bps=1.0)


def split_market():
    """A third of the sessions for each window; following the signal is ahead of equal weights."""
    drawn = {"drift": 7e-4, "volatility": 5e-3, "regime_bars": 60}
    market = planted_market(SESSIONS * BARS, 4, session_bars=BARS, **drawn)
    third = SESSIONS // 3 * BARS
    windows = Windows((0, third - BARS), (third, 2 * third - BARS), (2 * third, 3 * third))
    return replace(market, windows=windows)


MARKET = split_market()
LAYOUT = TradingEnv(MARKET, RULES, num_envs=1).layout


def follow(obs):
    """Equal weights in whatever the signal says will rise."""
    rising = (LAYOUT.split(obs)["features"][..., 0] > 0).float() + 1e-3
    return rising / rising.sum(1, keepdim=True)


def verdict_on(market, policy=follow):
    return fintrader.backtest(policy, market, RULES).judge(trials=1)


def test_the_held_out_window_has_a_certificate_and_the_others_have_none():
    held_out = verdict_on(MARKET.split().test)
    assert held_out.text.startswith("Unlikely to be luck")
    assert held_out.is_likely_skill
    for name, said in (
        ("train", "this is the training window, and nothing about skill can be concluded"),
        ("validation", "this is the validation window, and nothing about skill can be concluded"),
    ):
        found = verdict_on(getattr(MARKET.split(), name))
        assert found.sentences == (found.text,)
        assert found.text.startswith(f"No verdict: {said}")
        assert not found.is_likely_skill
        assert found.window == name


def test_a_market_that_was_never_split_has_no_certificate():
    hand_made = replace(MARKET, windows=None)
    for market in (MARKET, hand_made, hand_made.window(800, 1200)):
        found = verdict_on(market)
        assert found.text.startswith(
            "Cannot be believed as it stands, with bars that were never split off as a test window"
        )
        assert not found.is_likely_skill
        assert found.window == "whole"


def saved(market, folder):
    market.save(folder / "m.safetensors")
    return MarketTensors.load(folder / "m.safetensors", verify=True)


CUTS = {
    "as it is": lambda market, _: market,
    "a cut of the cut": lambda market, _: market.window(10, market.num_bars - 10),
    "on a device": lambda market, _: market.to("cpu"),
    "saved and loaded": saved,
    "without information": lambda market, _: information_free(market, 0),
    "split anew": lambda market, _: replace(market, windows=NARROW).split().test,
}


@pytest.mark.parametrize("how", CUTS)
@pytest.mark.parametrize("window", ["train", "validation", "test"])
def test_what_is_made_of_a_window_is_that_window(how, window, tmp_path):
    made = CUTS[how](getattr(MARKET.split(), window), tmp_path)
    assert made.window_name == window
    assert made.cut_from == (window,)


def test_a_cut_across_windows_is_the_most_seen_of_them():
    assert MARKET.window(300, 500).cut_from == ("train", "validation")
    assert MARKET.window(300, 900).cut_from == ("train", "validation", "test")
    assert MARKET.window(700, 900).window_name == "validation"
    assert MARKET.window(900, 1000).window_name == "test"
    assert MARKET.window(300, 900).window(100, 200).cut_from == ("train", "validation", "test")
    found = verdict_on(MARKET.window(300, 1200))
    assert found.text.startswith("No verdict: some of these bars are the training window's")


def test_bars_between_windows_are_in_none_of_them():
    windows = Windows((10, 100), (110, 200), (210, 300))
    market = replace(MARKET, windows=windows)
    for start, stop in ((0, 10), (100, 110), (200, 210), (300, 400)):
        assert market.window(start, stop).window_name == "whole"
    assert market.window(95, 105).cut_from == ("train",)


def test_nothing_that_a_caller_says_gives_the_training_window_a_verdict(tmp_path):
    train = MARKET.split().train
    test = MARKET.split().test
    result = simulate(follow, train, RULES)
    looks = fintrader.backtest(follow, train, RULES)
    counted = BacktestContext(trials=1, look=1)
    folds = [simulate(follow, train.window(0, 200), RULES), simulate(follow, test, RULES)]
    with pytest.raises(TypeError, match="window"):
        assess({"policy": result}, window="test")
    for found in (
        assess({"policy": result}, market=test, look=1),
        looks.judge(1),
        (looks | {"other": simulate(follow, train, RULES, name="other")}).judge(1),
        write_backtest(tmp_path / "backtest", {"policy": result}, context=counted).verdict,
        assess({"policy": stitch(folds)}),
    ):
        assert found.text.startswith("No verdict: ")
        assert not found.is_likely_skill
    assert "No verdict" in looks.report(tmp_path / "x.html").read_text()
    assert "The training window" in (tmp_path / "x.html").read_text()


def test_the_data_of_a_market_are_a_reservation_in_every_door(tmp_path):
    """Survivors, rows left out and a planted feature: in Python, as in a run."""
    survivors = Survivorship(True, 250, 0, 0, ("GONE",), 0.9, None, None, None, None)
    signal = PlantedSignal("signal", 0.5, {}, 1, 1.0, 0)
    known = replace(
        MARKET.provenance,
        calendar="XNAS",
        survivorship=survivors,
        outside=0.015,
        planted_signal=signal,
        trusted_columns=("mood",),
    )
    third = SESSIONS // 3 * BARS
    adjacent = Windows((0, third), (third, 2 * third), (2 * third, 3 * third))
    market = replace(MARKET, provenance=known, windows=adjacent).split().test
    tests = fintrader.backtest(follow, market, RULES)
    context = BacktestContext(trials=1, look=1)
    stored = write_backtest(tmp_path, dict(tests), context=context, market=market, settings=RULES)
    without = assess(dict(tests))  # a door that is given no market
    assert "a universe of survivors" in without.caveats
    assert {"no embargo between the windows"} <= {*without.caveats}
    for verdict in (tests.judge(1), stored.verdict):
        assert any(
            one.startswith("a universe of survivors, whose unknown bias may")
            for one in verdict.caveats
        )
        assert {
            "no embargo between the windows",
            "1.5% of the rows left out, outside of the sessions of XNAS",
            "a planted feature that knows the future",
        } <= {*verdict.caveats}
        assert not verdict.is_likely_skill
        assert verdict.trusted_columns == ("mood",)
    assert "Columns on trust" in repr(tests.verdict)


def test_a_gap_inside_a_session_is_no_embargo():
    third = SESSIONS // 3 * BARS
    windows = Windows((0, third), (third + 1, 2 * third), (2 * third + 1, 3 * third))
    assert replace(MARKET, windows=windows).split().test.provenance.is_adjacent
    assert not MARKET.split().test.provenance.is_adjacent


def test_an_alpha_beyond_the_effect_of_survivors_may_be_skill():
    """The growth of the names that are left bounds that of the missing ones."""
    known = replace(
        MARKET.provenance,
        survivorship=Survivorship(True, 250, 0, 0, (), 0.0, None, None, None, None),
    )
    found = verdict_on(replace(MARKET, provenance=known).split().test)
    assert found.is_likely_skill
    assert "Survivors may have added" in repr(found)
    assert 0 < found.survivors_bound < found.evidence.alpha.low
    assert verdict_on(MARKET.split().test).survivors_bound is None


@pytest.mark.parametrize("years", [0.25, 4])
def test_the_bound_is_the_growth_that_the_missing_take_from_the_universe(years):
    """Ten thousand names of known growth, of which the worst leave."""
    growth = np.random.default_rng(0).normal(0.3, 0.5, 10_000)
    left = growth[growth > np.quantile(growth, 1 - (1 - EXITS) ** years)]
    assert years * bound_absence(left, years) == pytest.approx(left.mean() - 0.3, abs=0.02)
    half = growth[growth > np.quantile(growth, 0.5)]
    assert years * bound_absence(half, years, 0.5) == pytest.approx(half.mean() - 0.3, abs=0.02)


def test_a_verdict_refuses_to_be_skill_against_its_tests():
    verdict = verdict_on(MARKET.split().test)
    for changes in (
        {"caveats": ("a leak",)},
        {"window": "train"},
        {"is_seen": True},
        {"evidence": replace(verdict.evidence, level=1e-9)},
    ):
        with pytest.raises(ValueError, match="state is likely_skill"):
            replace(verdict, **changes)


def test_the_ledger_names_the_window(tmp_path, monkeypatch):
    monkeypatch.setenv(HOME, str(tmp_path))
    split = MARKET.split()
    seen = {
        "train": split.train,
        "validation": split.validation,
        "test": split.test,
        "whole": MARKET,
    }
    for name, market in seen.items():
        fintrader.backtest(follow, market, RULES, name=name)
    fintrader.backtest(follow, MARKET.window(300, 900), RULES, name="across")
    lines = {line.look.run: line for line in Ledger().looks()}
    expected = {"validation": "validation", "test": "test", "whole": "whole", "across": "test"}
    assert {name: line.look.window for name, line in lines.items()} == expected
    assert all(line.held_out for line in lines.values())


def test_looks_are_stated_only_if_counted(tmp_path, monkeypatch, caplog):
    test = MARKET.split().test
    (tmp_path / "file").touch()
    monkeypatch.setenv(HOME, str(tmp_path / "file"))
    uncounted = fintrader.backtest(follow, test, RULES)
    said = uncounted.judge(trials=8)
    assert "looks not counted, the choice of 8 trials" in said.text
    assert "look at this window" not in said.text
    assert said.text.endswith("any earlier look at these bars would have lowered its level.")
    assert "not counted" in repr(said)
    assert said.evidence.look is None
    assert said.evidence.level == pytest.approx(0.05 * 6 / math.pi**2)
    assert "looks are not counted" in caplog.text
    assert "looks not counted" in uncounted.report(tmp_path / "x.html").read_text()
    stored = write_backtest(
        tmp_path / "b", uncounted, context=BacktestContext(trials=8), market=test
    )
    assert "looks not counted" in stored.verdict.text

    monkeypatch.setenv(HOME, str(tmp_path))

    def counted(share):
        def policy(obs):
            return follow(obs) * share

        return fintrader.backtest(policy, test, RULES)

    first = counted(1.0)
    second = counted(0.9)
    assert "look 1 at this window" in first.judge(1).text
    assert "look 2 at this window" in second.judge(1).text
    assert second.judge(1).evidence.level == pytest.approx(0.05 * 6 / math.pi**2 / 4)


# --- what a policy has seen ---------------------------------------------------------------


def learn(market, *, env=None):
    """A policy trained for an update or two on this market."""
    env = TradingEnv(market, RULES, num_envs=4, seed=1) if env is None else env
    result = fintrader.train(agents.PPO(num_steps=4, network={"hidden": [4]}), env, env_steps=16)
    assert result.policy is not None
    return result.policy


def said_of(policy, market):
    return assess({"policy": simulate(policy, market, RULES)}).sentences[0]


SEEN = "No verdict: the policy was trained or chosen on some of these bars"


def test_a_policy_knows_the_bars_it_was_trained_on_in_its_file_too(tmp_path):
    whole = replace(MARKET, windows=None)
    policy = learn(whole.window(0, 800))
    assert said_of(policy, whole).startswith(SEEN)
    assert said_of(policy, whole.window(790, 1200)).startswith(SEEN)
    assert not said_of(policy, MARKET.split().test).startswith("No verdict")
    # A window that is called test in another split of the same bars.
    other = replace(MARKET, windows=Windows((0, 10), (10, 20), (20, 1200)))
    assert other.split().test.window_name == "test"
    assert said_of(policy, other.split().test).startswith(SEEN)
    save_policy(policy, tmp_path / "p.safetensors", market=whole)
    for again in (
        load_policy(tmp_path / "p.safetensors"),
        load_policy(tmp_path / "p.safetensors", market=whole),
        EnsemblePolicy([learn(whole.window(1000, 1100)), policy]),
    ):
        assert said_of(again, other.split().test).startswith(SEEN)
    assert policy.meta["seen"] == [whole.window(0, 800).span.to_json()]


def test_other_symbols_and_other_days_are_not_seen():
    whole = replace(MARKET, windows=None)
    span = whole.window(100, 200).span
    assert span.overlaps(whole.window(199, 300).span)
    assert not span.overlaps(whole.window(200, 300).span)
    assert not span.overlaps(replace(whole, symbols=("A", "B", "C", "D")).span)
    assert span.overlaps(replace(whole, symbols=("A", "B", "C", "S001")).span)


def test_pieces_and_further_trainings_add_to_what_was_seen():
    whole = replace(MARKET, windows=None)
    pieces = [whole.window(0, 200), whole.window(300, 500)]
    policy = learn(whole, env=JoinedEnv(pieces, RULES.model_copy(update={"num_envs": 4}), seed=1))
    assert policy.meta["seen"] == [piece.span.to_json() for piece in pieces]
    varied = EnvSettings(num_envs=4, randomise={"variants": 2, "delay_bars": 1})
    env = TradingEnv(pieces[0], varied, seed=1)
    assert learn(whole, env=env).meta["seen"] == [pieces[0].span.to_json()]
    agent = agents.make_agent(agents.PPO(num_steps=4), TradingEnv(whole, RULES, num_envs=4).layout)
    for piece in (*pieces, pieces[0]):
        fintrader.train(agent, TradingEnv(piece, RULES, num_envs=4), env_steps=16)
    assert agent.policy.meta["seen"] == [piece.span.to_json() for piece in pieces]


@pytest.mark.slow
def test_a_model_that_holds_its_environment_knows_its_bars():
    sb3 = pytest.importorskip("stable_baselines3")
    import gymnasium
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    from fintrader.envs.adapters.sb3 import Sb3VecEnv

    whole = replace(MARKET, windows=None)
    other = replace(MARKET, windows=Windows((0, 10), (10, 20), (20, 1200))).split().test
    train = whole.window(0, 800)
    ours = VecNormalize(Sb3VecEnv(TradingEnv(train, RULES, num_envs=2)))
    made = partial(gymnasium.make, "fintrader/Trading-v0", market=train, settings=RULES)
    singles = DummyVecEnv([made] * 2)
    for env in (ours, singles):
        few = {"n_steps": 8, "batch_size": 16, "policy_kwargs": {"net_arch": [4]}}
        model = sb3.PPO("MlpPolicy", env, device="cpu", **few)
        assert said_of(model, other).startswith(SEEN)
        assert not said_of(model, MARKET.split().test).startswith("No verdict")


# --- walk-forward -------------------------------------------------------------------------


def test_the_test_windows_of_folds_are_held_out_wherever_they_lie_in_the_whole():
    def settings(*sessions):
        return WalkForwardSettings(sessions=sessions)

    folds = make_folds(MARKET, settings(60, 20, 40))
    parts = [cut_fold(MARKET, fold) for fold in folds]
    assert all(part.cut_from == () for part in parts)
    tests = [part.split().test for part in parts]
    assert all(test.window_name == "test" for test in tests)
    results = [simulate(follow, test, RULES, name="ensemble") for test in tests]
    assert stitch(results).cut_from == ("test",)
    inner = make_folds(MARKET.split().train, settings(30, 10, 10))
    assert cut_fold(MARKET.split().train, inner[0]).split().test.window_name == "train"
