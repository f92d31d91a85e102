"""Runs that start from an earlier run's pods, and walk-forwards whose folds start from the one
before."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fintrader.agents.checkpoint import read_tensors
from fintrader.agents.policy import FORMAT
from fintrader.errors import ConfigError, FintraderError, TournamentError
from fintrader.files import hash_file, read_json
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline.config import load_config
from fintrader.pipeline.run_stages import run_tournament, walk_forward
from fintrader.pipeline.train import train_one
from fintrader.pipeline.verification import check_replay
from fintrader.results.leaderboard_reader import lineage, read_pods
from fintrader.results.tournament_events import DropEvent
from fintrader.runs import Manifest, RunFolder
from fintrader.tournament.events import EventLog
from fintrader.tournament.store import RunStore
from fintrader.tournament.warm_start import WarmStart
from tests.engines.runs import TINY, Struck, fintrader, struck_when, write_config

pytestmark = pytest.mark.usefixtures("in_this_process", "blank_reports")
SMALL = TINY["tournament"] | {"pods": 2, "leaderboard_size": 2, "ensemble_size": 1}
ONE = SMALL | {"pods": 1, "ensemble_size": 1}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory):
    """A finished tournament of two pods. Nobody may change it."""
    return run_tournament(
        load_config(write_config(tmp_path_factory.mktemp("earlier"), tournament=SMALL, name="old"))
    )


def configure(folder, earlier, **changes):
    return load_config(
        write_config(
            folder, **({"tournament": ONE, "from_run": str(earlier), "name": "new"} | changes)
        )
    )


def snapshot_of(run, pod):
    store = RunStore(RunFolder(run))
    return load_file(store.locate_snapshot(str(store.read_result(pod).snapshot)))


def test_the_first_pods_start_from_the_earlier_leaderboard(earlier, tmp_path):
    config = configure(tmp_path, earlier, tournament=SMALL | {"pods": 3})
    run = run_tournament(config)
    best = read_pods(earlier / "leaderboard.sqlite")
    ranked = [row.pod for row in sorted(best, key=lambda row: -row.score)]
    specs = RunStore(RunFolder(run)).read_specs()
    assert [specs[pod].parent for pod in ("p0000", "p0001")] == [f"old:{pod}" for pod in ranked]
    # The same market: what is taken over is the parent's state, to the byte.
    assert specs["p0000"].snapshot == RunStore(RunFolder(earlier)).read_result(ranked[0]).snapshot
    inherited = Manifest.load(run / "manifest.json").values["inherited"]
    assert inherited["address"] == str(earlier)
    assert inherited["policies"] == {
        pod: hash_file(earlier / "pods" / pod / "policy.safetensors") for pod in ranked
    }
    assert Manifest.load(run / "manifest.json").values["trials"] == 3 + 2
    steps = lineage(read_pods(run / "leaderboard.sqlite"), "p0000")
    assert [(step.pod, step.origin) for step in steps] == [
        ("p0000", "survivor"),
        (f"old:{ranked[0]}", "earlier run"),
    ]
    assert f"old:{ranked[0]}" in fintrader("status", str(run), "--lineage", "p0000").out
    assert check_replay(run, "again").is_ok


def test_of_dropped_pods_only_the_looks_count(earlier, tmp_path):
    run = RunFolder(Path(shutil.copytree(earlier, tmp_path / "source" / "old")))
    store = RunStore(run)
    best, worst = sorted(store.read_results().values(), key=lambda one: -one.score)
    for result in (best, worst):
        store.set_aside(result.pod)
        store.write_result(replace(result, looks=10))
    EventLog(run.events).append(DropEvent(pods=(worst.pod,)))
    store.drop(worst)
    known = WarmStart.read(RunFolder(run_tournament(configure(tmp_path, run.root))))
    assert (list(known.policies), known.trials) == ([best.pod], 20)


@pytest.mark.slow
def test_ended_anywhere_the_same_call_goes_on_without_the_earlier_run(earlier, tmp_path):
    source = Path(shutil.copytree(earlier, tmp_path / "source" / "old"))
    expected = run_tournament(configure(tmp_path, source))
    config = configure(tmp_path, source, name="struck")
    for moment in ("snapshots/*.safetensors", "inherited.json", "pods/*/spec.json"):
        with pytest.raises(Struck), struck_when(moment):
            run_tournament(config)
    (tmp_path / "source").rename(tmp_path / "gone")
    with pytest.raises(Struck), struck_when("pods/*/result.json"):
        run_tournament(config)
    run = config.folder.root
    # What was taken over is damaged: the earlier run is needed again.
    for path in (run / "snapshots").iterdir():
        path.write_bytes(b"?")
    with pytest.raises(TournamentError, match="no finished pods to start from; there is no run"):
        run_tournament(config)
    (tmp_path / "gone").rename(tmp_path / "source")
    run_tournament(config)
    assert RunStore(RunFolder(run)).read_specs() == RunStore(RunFolder(expected)).read_specs()
    states = [snapshot_of(one, "p0000") for one in (run, expected)]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[1])


@pytest.mark.slow
def test_other_symbols_start_from_what_was_learned(earlier, tmp_path):
    """Of another market the statistics are moved, and nothing else; `mlp` is refused."""
    source = TINY["data"]["source"] | {"num_symbols": 6, "seed": 5}
    run = run_tournament(configure(tmp_path, earlier, data={"source": source}))
    known = WarmStart.read(RunFolder(run))
    pod = known.entries[0].spec.pod.partition(":")[2]
    taken = load_file(
        RunStore(RunFolder(run)).locate_snapshot(str(known.entries[0].result.snapshot))
    )
    before = snapshot_of(earlier, pod)
    moments = set(before) - set(taken)
    assert {before[name].shape for name in moments} <= {torch.Size([5]), torch.Size([])}
    changed = {name for name in taken if not torch.equal(before[name], taken[name])}
    assert changed == {
        "modules.policy.normaliser.mean",
        "modules.policy.normaliser.var",
        "modules.noise.log_std",
    }
    _, header = read_tensors(run / "pods" / "p0000" / "policy.safetensors", FORMAT)
    assert header["policy"]["layout"]["layout"]["num_assets"] == 6


def refused(config):
    with pytest.raises(FintraderError) as told:
        run_tournament(config)
    return str(told.value)


@pytest.mark.slow
def test_what_cannot_be_started_from_is_refused_in_a_sentence(earlier, tmp_path):
    def tried(name, **changes):
        return refused(configure(tmp_path / name, earlier, **changes))

    assert "no finished pods" in tried("nothing", from_run=str(tmp_path / "nowhere"))
    run_tournament(configure(tmp_path / "nothing", earlier))  # a slip can be mended in place
    assert "other settings (from_run" in tried("nothing", from_run=str(tmp_path / "nowhere"))
    names = {"names": ["return_1", "rsi_30"]}
    assert "feature names" in tried("features", data=TINY["data"] | {"features": names})
    wider = TINY["agent"] | {"network": {"hidden": [32, 32], "activation": "tanh"}}
    assert "activation relu stored, tanh requested" in tried("network", agent=wider)
    assert "is not in this run" in tried("algo", agent={"algo": "sac"})
    assert "its observations have other columns" in tried(
        "lookback", env=TINY["env"] | {"lookback": 3}
    )
    assert "would not be held out" in tried("sooner", data={"start": "2018-01-02"})
    with pytest.raises(ConfigError, match="starts no tournament"):
        train_one(configure(tmp_path / "train", earlier))


def test_learners_that_are_judged_on_blocks_they_have_not_seen_start_from_no_other_run(
    earlier, tmp_path
):
    folds = ONE | {"validation_folds": 2}
    with pytest.raises(TournamentError, match="have seen the blocks"):
        run_tournament(configure(tmp_path / "a", earlier, tournament=folds))


@pytest.mark.slow
def test_a_pod_goes_on_from_the_learner_who_saw_everything(tmp_path):
    folds = ONE | {"validation_folds": 2}
    earlier = run_tournament(
        load_config(write_config(tmp_path / "old", tournament=folds, name="old"))
    )
    run = run_tournament(configure(tmp_path / "new", earlier))
    there = snapshot_of(earlier, "p0000")
    spec = RunStore(RunFolder(run)).read_specs()["p0000"]
    assert spec.parent == "old:p0000"
    assert spec.folds == 0
    began = load_file(RunStore(RunFolder(run)).locate_snapshot(str(spec.snapshot)))
    networks = [name for name in began if name.startswith("modules.")]
    assert networks
    assert all(torch.equal(began[name], there[f"whole.{name}"]) for name in networks)


@pytest.mark.slow
def test_the_option_is_called_from(earlier, tmp_path):
    config = write_config(tmp_path, tournament=ONE, name="new")
    done = fintrader("tournament", str(config), "--from", str(earlier))
    assert done.status == 0, done.err
    assert load_config(tmp_path / "runs" / "new" / "config.yaml").from_run == str(earlier)


@pytest.mark.slow
def test_warm_folds_start_from_the_fold_before_and_know_nothing_of_their_test(
    tmp_path,
):
    lengths = {
        "sessions": [6, 4, 4],
        "warm_start": True,
    }
    source = TINY["data"]["source"] | {"num_sessions": 21}
    judged = {"null_model": True, "sensitivity": False, "tear_sheet": "none"}
    config = write_config(
        tmp_path, data={"source": source}, walkforward=lengths, backtest=judged, tournament=ONE
    )
    run = walk_forward(load_config(config))
    folds = [RunFolder(run / "folds" / name) for name in ("00", "01")]
    free = [fold.null_model for fold in folds]
    for first, second, label in ((*folds, "folds/00"), (*free, "folds/00/null_model")):
        spec = RunStore(second).read_spec("p0000")
        assert RunStore(first).read_spec("p0000").parent is None
        assert spec.parent == f"tiny/{label}:p0000"
        scales = {
            MarketTensors.load(fold.root / "market.safetensors").normalisation.digest
            for fold in folds
        }
        # The statistics of observations are restated where the folds are scaled otherwise.
        is_same = spec.snapshot == RunStore(first).read_result("p0000").snapshot
        assert is_same == (len(scales) == 1)
    test = MarketTensors.load(folds[1].root / "market.safetensors").split().test
    known = WarmStart.read(folds[1])
    validation = MarketTensors.load(folds[0].root / "market.safetensors").split().validation
    assert known.seen_until == int(validation.minutes[-1]) < int(test.minutes[0])
    assert read_json(run / "manifest.json")["trials"] == 2
