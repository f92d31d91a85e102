"""Lease, spec, result and log of the real code on schedules that seeds choose.

The invariants are stated in `docs/tournament.md`.
"""

import pytest

from fintrader.storage import lease
from fintrader.storage.objects import ObjectStore
from fintrader.tournament.mirrored_store import MirroredStore
from fintrader.tournament.store import RunStore
from tests.engines import schedules


@pytest.mark.parametrize(
    "seeds", [range(20, 40), pytest.param(range(1400), marks=pytest.mark.slow)], ids=len
)
def test_the_real_code_on_schedules_of_seeds(tmp_path, seeds):
    adopted = is_superseded = killed = taken_over = 0
    for seed in seeds:
        home = tmp_path / str(seed)
        home.mkdir()
        world = schedules.run_schedule(home, seed)
        assert world.problems == [], f"seed {seed}"
        adopted += world.adopted > 0
        is_superseded += any("taken" in outcome for outcome in world.outcomes)
        killed += any("killed" in outcome for outcome in world.outcomes)
        taken_over += world.taken_over > 0
    assert min(adopted, is_superseded, killed, taken_over) > len(seeds) / 50


def _own_spec(store, spec):
    """Without adoption: what lies on one's own disk is taken for what stands."""
    store.mirror.create_pod_file(spec.pod, "spec.json", spec.to_json())
    RunStore.write_spec(store, spec)
    return spec


@pytest.mark.slow
def test_real_code_without_a_rule_is_found_out(tmp_path, monkeypatch):
    monkeypatch.setattr(MirroredStore, "write_spec", _own_spec)
    for seed in range(200):
        home = tmp_path / str(seed)
        home.mkdir()
        if schedules.run_schedule(home, seed).problems:
            return
    raise AssertionError("nobody noticed")


def test_a_token_that_was_swept_away_is_not_taken_again(tmp_path, monkeypatch):
    """Between the look at who holds the run and the claim, two others may have come and gone."""
    store = ObjectStore(f"file://{tmp_path}")
    create = store.create
    looked = []

    def late(name, data):
        if not looked:
            looked.append(name)
            with lease.hold(ObjectStore(f"{store.url}/.")):
                pass
            with lease.hold(ObjectStore(f"{store.url}/.")):
                pass
        return create(name, data)

    monkeypatch.setattr(store, "create", late)
    assert lease._acquire_token(store, 0) == 3
    assert looked == ["lease/000001.json"]
