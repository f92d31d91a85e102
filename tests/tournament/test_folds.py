from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load

from fintrader.agents import Budget, load_policy
from fintrader.agents.heads import ActionHead
from fintrader.agents.policy import EnsemblePolicy
from fintrader.backtesting import simulate
from fintrader.envs import EnvSettings
from fintrader.errors import ConfigError
from fintrader.market.tensors import MarketTensors, Windows
from fintrader.pipeline.backtest_context import add_ensembles
from fintrader.records import to_json
from fintrader.results.context import BacktestContext
from fintrader.runs import RunFolder
from fintrader.tournament.ensemble import read_ensemble
from fintrader.tournament.folds import FoldLearners, make_blocks
from fintrader.tournament.fusion import learners
from fintrader.tournament.pod_training import evaluate_trained, train_and_evaluate
from fintrader.tournament.spec import TrainedPod
from fintrader.tournament.store import RunStore
from tests.engines.killing import Killed
from tests.engines.races import ENV, SETTINGS, first_spec, market_file, real_race, train_pod
from tests.engines.thread_launcher import ThreadLauncher
from tests.factories import make_market

KFOLD = {"validation_folds": 3, "budget": Budget(env_steps=4 * 128)}


def sessions(market):
    return set(market.session.tolist())


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_no_learner_sees_its_block_or_the_embargo_around_it(folds):
    first = 20
    last = 300
    embargo = 2
    test = (330, 400)
    windows = Windows((first, 200), (200 + 10 * embargo, last), test)
    market = replace(make_market(400, 3, session_bars=10), windows=windows)
    blocks = make_blocks(market, folds, EnvSettings(num_envs=4))
    held = [sessions(block.held_out) for block in blocks]
    everything = sessions(market.window(first, last))
    assert set().union(*held) == everything
    assert sum(map(len, held)) == len(everything)
    assert everything.isdisjoint(sessions(market.window(*test)))
    assert max(map(len, held)) - min(map(len, held)) <= 1
    for block, own in zip(blocks, held, strict=True):
        near = {day + step for day in own for step in range(-embargo, embargo + 1)}
        trained = set().union(*(sessions(piece) for piece in block.pieces))
        assert trained == everything - near
        assert all(
            len(sessions(piece)) == max(sessions(piece)) - min(sessions(piece)) + 1
            for piece in block.pieces
        )


def test_folds_that_cannot_be_are_refused(tmp_path):
    market = make_market(240, 3, session_bars=10)
    with pytest.raises(
        ConfigError, match=r"16 sessions are too few for 9 folds of two; lower it to 8"
    ):
        make_blocks(market, 9, ENV)
    with pytest.raises(ConfigError, match=r"no 181 bars in a row are left.*shorten the episode"):
        make_blocks(market, 3, ENV.model_copy(update={"episode_bars": 180}))
    with pytest.raises(ConfigError, match="validation_folds"):  # at the door, not by every pod
        real_race(
            RunFolder(tmp_path / "run"),
            SETTINGS.model_copy(update={"validation_folds": 9}),
        )


def test_a_pod_is_scored_out_of_fold_and_is_the_learner_who_saw_everything(tmp_path):
    spec = first_spec(**KFOLD)
    result, context = train_pod(tmp_path, spec)
    assert result.env_steps == 4 * 128
    kfold = FoldLearners(spec, context, torch.device("cpu"))
    kfold.take(load(RunStore(context.run).get(str(result.snapshot))))
    blocks = make_blocks(MarketTensors.load(context.market), 3, ENV)
    *judged, whole = kfold.policies
    alone = [
        simulate(one, block.held_out, ENV).daily_returns
        for one, block in zip(judged, blocks, strict=True)
    ]
    returns = np.concatenate(alone)
    assert len(result.returns) == len(result.active_returns) == len(returns) == 16
    assert result.returns == pytest.approx(
        returns, abs=0.005
    )  # positions are sold at the end of a block
    assert result.returns[: len(alone[0]) - 1] == pytest.approx(alone[0][:-1])
    stored = load_policy(context.folder / "policy.safetensors")
    assert all(
        torch.equal(a, b) for a, b in zip(stored.parameters(), whole.parameters(), strict=True)
    )
    for one in judged:
        pairs = zip(one.actor.parameters(), whole.actor.parameters(), strict=True)
        assert not any(torch.equal(a, b) for a, b in pairs if a.ndim == 2)


@pytest.mark.slow
def test_a_childs_learner_goes_on_from_its_parents_learner_of_the_same_block(tmp_path, monkeypatch):
    spec = first_spec(**KFOLD)
    result, context = train_pod(tmp_path, spec)
    state = load(RunStore(context.run).get(str(result.snapshot)))
    train = learners.train
    began = []

    def spy(agent, env, *rest, **named):
        bars = len(env.table)
        began.append((bars, {name: tensor.clone() for name, tensor in agent.state_dict().items()}))
        return train(agent, env, *rest, **named)

    monkeypatch.setattr(learners, "train", spy)
    child = replace(spec, pod="p0001", seed=9, parent=spec.pod, snapshot=result.snapshot)
    train_pod(tmp_path, child)
    market = MarketTensors.load(context.market)
    seen = [sum(piece.num_bars for piece in block.pieces) for block in make_blocks(market, 3, ENV)]
    assert [bars for bars, _ in began] == [
        *seen,
        market.windows.validation[1] - market.windows.train[0],
    ]
    for learner, (_, first) in zip(("fold-0", "fold-1", "fold-2", "whole"), began, strict=True):
        inherited = [name for name in first if name.startswith(("modules.", "optimisers."))]
        assert any(name.startswith("modules.policy.actor") for name in inherited)
        assert all(torch.equal(first[name], state[f"{learner}.{name}"]) for name in inherited)


@pytest.mark.slow
def test_a_killed_pod_resumes_and_an_evaluator_elsewhere_comes_to_the_same(tmp_path):
    spec = first_spec(**KFOLD, early_stopping="best_validation")
    whole, _ = train_pod(tmp_path / "whole", spec)
    assert set(whole.rung_scores) == {str(k / 10) for k in range(1, 10)}

    def kill(share, env_steps, note):
        if share >= 0.63:
            raise Killed

    with pytest.raises(Killed):
        train_pod(tmp_path / "killed", spec, report=kill)
    again, _ = train_pod(tmp_path / "killed", spec)
    assert replace(again, seconds=whole.seconds) == whole
    plain = first_spec(**KFOLD)
    here, _ = train_pod(tmp_path / "here", plain)
    trained, context = train_pod(tmp_path / "there", plain, evaluate_elsewhere=True)
    assert isinstance(trained, TrainedPod)
    there = evaluate_trained(plain, context, trained)
    assert replace(there, seconds=here.seconds) == here


@pytest.mark.slow
def test_a_race_by_folds_ends_with_an_ensemble_of_pods(tmp_path):
    run = RunFolder(tmp_path / "run")
    market = market_file(tmp_path)
    wanted = SETTINGS.model_copy(
        update={**KFOLD, "metric": "information_ratio", "ensemble_shrinkage": "james_stein"}
    )
    threads = ThreadLauncher(run, market, train_and_evaluate, workers=1)
    with pytest.raises(ConfigError, match=r"set agent\.head\.kind to tilt"):
        real_race(RunFolder(tmp_path / "aim"), wanted)
    assert not list((tmp_path / "aim").glob("pods/*")), "refused before anything is trained"
    tilting = ENV.model_copy(update={"benchmark": "equal_weight"})
    result = real_race(run, wanted, launcher=threads, env=tilting)
    assert result.trials == 4
    shrinkage = read_ensemble(run).shrinkage
    policy = load_policy(result.ensemble_policy)
    assert isinstance(policy, EnsemblePolicy)
    assert len(policy.members) == len(result.members)
    assert {one.head.settings.tilt_scale for one in policy.members} == {shrinkage.tilt_scale}
    assert add_ensembles(BacktestContext(), [run]).shrinkage == (to_json(shrinkage),)
    specs = RunStore(run).read_specs()
    assert {spec.folds for spec in specs.values()} == {3}
    # the mean over pods, each shrunk
    obs = torch.randn(5, policy.layout.width).clamp(0, 1)
    pods = [load_policy(run.pod(name) / "policy.safetensors") for name in result.members]
    for pod in pods:
        assert not isinstance(pod, EnsemblePolicy)
        shrunk = pod.head.settings.model_copy(update={"tilt_scale": shrinkage.tilt_scale})
        pod.head = ActionHead(policy.layout, shrunk)
    torch.testing.assert_close(policy(obs), torch.stack([pod(obs) for pod in pods]).mean(0))
