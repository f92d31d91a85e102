"""Who may be a parent: the best of each family, or of each depth; and children that go on
unchanged."""

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


def depth(entry):
    layers = [(0, 0), (1, 1), (2, 3), (4, 7), (8, 15), (16, 31)]
    return next(k for k, (low, high) in enumerate(layers) if low <= entry.spec.generation <= high)


SCORES = st.sampled_from([None, *map(float, range(-6, 7))])


@given(
    st.lists(st.tuples(st.integers(-1, 20), SCORES), min_size=6, max_size=24),
    st.integers(1, 5),
    st.sampled_from(["lineage", "age"]),
)
def test_elites_are_the_best_of_each_niche(draws, size, niche):
    """Slow and obvious: group all that was ever applied, take the best of each, sort and cut."""
    entries = family(draws)
    board = Leaderboard(size, niche)
    for one in entries:
        submit(board, one)
        assert board.find_founder(one) == root(one, entries)
    best = {}
    for one in sorted((one for one in entries if one.is_inheritable), key=lambda one: one.order):
        best.setdefault(root(one, entries) if niche == "lineage" else depth(one), one)
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


def test_each_depth_is_as_likely_a_parent():
    line = [child(0, 1.0)]
    for index in range(1, 8):
        line.append(child(index, 1.0 + index, line[-1]))
    board = Leaderboard(8, "age")
    for one in line:
        submit(board, one)
    specs = [breeder(niche="age", fresh=0.0).propose(index, board) for index in range(20, 820)]
    counts = Counter(spec.parent for spec in specs)
    assert set(counts) == {"p0000", "p0001", "p0003", "p0007"}
    assert min(counts.values()) > 150


def test_some_children_go_on_unchanged():
    board = Leaderboard(4)
    for index in range(3):
        submit(board, child(index, float(index)))
    for share in (0.0, 0.5, 1.0):
        specs = [
            breeder(unchanged=share, fresh=0.0).propose(index, board) for index in range(20, 220)
        ]
        same = sum(
            spec.agent == board.rows[0].spec.agent for spec in specs if spec.parent == "p0002"
        )
        survivors = sum(spec.origin == "survivor" for spec in specs)
        assert abs(survivors / 200 - share) <= (0.15 if share == 0.5 else 0.0)
        assert same <= survivors
