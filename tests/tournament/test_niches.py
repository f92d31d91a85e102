"""Parents: rows by rank, or the best of each founder's family."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fintrader.tournament.leaderboard import Leaderboard
from fintrader.tournament.updater import submit
from tests.tournament.test_roles import breeder, entry


def child(index, score, parent=None):
    spec = parent.spec if parent else None
    made = {"parent": spec.pod, "generation": spec.generation + 1} if spec else {}
    return entry(index, score, spec=made)


def family(draws):
    """Pods whose parents are earlier ones that can be inherited (-1: nobody)."""
    entries = []
    for index, (parent, score) in enumerate(draws):
        able = [one for one in entries if one.is_inheritable]
        entries.append(
            child(index, score, able[parent % len(able)] if able and parent >= 0 else None)
        )
    return entries


def root(entry, entries):
    while entry.spec.parent is not None:
        entry = next(one for one in entries if one.spec.pod == entry.spec.parent)
    return entry.spec.pod


SCORES = st.sampled_from([None, *map(float, range(-6, 7))])


@given(
    st.lists(st.tuples(st.integers(-1, 20), SCORES), min_size=6, max_size=24),
    st.integers(1, 5),
)
def test_elites_are_the_best_of_each_family(draws, size):
    """Slow and obvious: group all that was ever applied, take the best of each, sort and cut."""
    entries = family(draws)
    board = Leaderboard(size, "lineage")
    for one in entries:
        submit(board, one)
        assert board.find_founder(one) == root(one, entries)
    best = {}
    for one in sorted((one for one in entries if one.is_inheritable), key=lambda one: one.order):
        best.setdefault(root(one, entries), one)
    assert board.elites == sorted(best.values(), key=lambda one: one.order)[:size]


def test_one_family_does_not_father_all():
    first = child(0, 9.0)
    strong = [first, *(child(index, 9.0 + index, first) for index in range(1, 8))]
    weak = [child(index, 1.0) for index in range(8, 12)]
    parents = {}
    for niche in ("none", "lineage"):
        board = Leaderboard(8, niche)
        for one in strong + weak:
            submit(board, one)
        generator = breeder(niche=niche, fresh=0.0, leaderboard_size=8, ensemble_size=2)
        specs = [generator.propose(index, board) for index in range(20, 320)]
        parents[niche] = Counter(board.founders[str(spec.parent)] for spec in specs)
    assert set(parents["none"]) == {"p0000"}
    assert len(parents["lineage"]) == 5
    assert parents["lineage"]["p0000"] > parents["lineage"]["p0008"] > 0
