"""The codec of stored records: what is written is read, and everything else is refused by name."""

import json
from dataclasses import dataclass
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fintrader.agents.settings import Budget
from fintrader.records import JsonValue, RecordError, from_json, to_json


@dataclass(frozen=True)
class Leg:
    size: float
    note: str | None


@dataclass(frozen=True)
class Journey:
    kind: Literal["there", "back"]
    legs: tuple[Leg, ...]
    span: tuple[int, int]
    by_name: dict[str, Leg]
    is_done: bool
    rest: JsonValue

    def __post_init__(self):
        if self.span[0] > self.span[1]:
            raise ValueError("ends before it begins")


WHOLE = Journey("back", (Leg(1.0, None), Leg(2.5, "b")), (1, 2), {"x": Leg(0.0, "")}, True, [1, {}])

legs = st.builds(Leg, st.floats(allow_nan=False), st.none() | st.text())
journeys = st.builds(
    Journey,
    st.sampled_from(["there", "back"]),
    st.lists(legs).map(tuple),
    st.tuples(st.integers(max_value=0), st.integers(min_value=0)),
    st.dictionaries(st.text(), legs),
    st.booleans(),
    st.none() | st.integers() | st.lists(st.text()),
)


@given(journeys)
def test_what_is_written_is_read(journey):
    assert from_json(Journey, json.loads(json.dumps(to_json(journey)))) == journey


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "up"}, "kind is 'up', not one of there, back"),
        ({"legs": {}}, "legs is {}, not a list"),
        ({"legs": [{"size": 1.0, "note": None}, {"size": "1", "note": None}]}, "legs.1.size"),
        ({"legs": [{"size": 10**400, "note": None}]}, "not a number"),
        ({"legs": [{"size": True, "note": None}]}, "legs.0.size is True, not a number"),
        ({"legs": [{"size": 1.0}]}, "legs.0.note is missing"),
        ({"legs": [{"size": 1.0, "note": None, "more": 1}]}, "legs.0.more is a field that this"),
        ({"span": [1]}, "span is [1], not a list of 2"),
        ({"span": [1, True]}, "span.1 is True, not a whole number"),
        ({"span": [2, 1]}, "ends before it begins"),
        ({"by_name": {"y": 3}}, "by_name.y is 3, not an object"),
        ({"is_done": 1}, "is_done is 1, not true or false"),
    ],
)
def test_what_is_wrong_is_named(change, problem):
    with pytest.raises(RecordError) as refused:
        from_json(Journey, json.loads(json.dumps(to_json(WHOLE) | change)))
    assert problem in str(refused.value)


@dataclass(frozen=True)
class Boat:
    length: float
    kind: Literal["boat"] = "boat"


@dataclass(frozen=True)
class Cart:
    wheels: int
    kind: Literal["cart"] = "cart"


@dataclass(frozen=True)
class Fleet:
    vehicles: tuple[Boat | Cart, ...]
    budget: Budget | None


def test_records_of_a_union_are_told_apart_by_their_literal():
    fleet = Fleet((Cart(2), Boat(3.0)), Budget(env_steps=5))
    stored = json.loads(json.dumps(to_json(fleet)))
    assert stored["budget"] == {"env_steps": 5, "seconds": None}
    assert from_json(Fleet, stored) == fleet
    for change, problem in (
        ({"kind": "sled"}, "vehicles.0.kind is 'sled', not one of boat, cart"),
        ({"kind": "boat"}, "vehicles.0.length is missing"),
    ):
        with pytest.raises(RecordError, match=problem):
            from_json(Fleet, stored | {"vehicles": [{"wheels": 2} | change]})
    with pytest.raises(RecordError, match="budget holds no valid settings"):
        from_json(Fleet, stored | {"budget": {"env_steps": 0}})


def test_a_whole_number_is_a_float_and_nan_stays_one():
    assert from_json(Leg, {"size": 2, "note": None}) == Leg(2.0, None)
    assert str(from_json(Leg, json.loads('{"size": NaN, "note": null}')).size) == "nan"
    with pytest.raises(RecordError, match="not an object"):
        from_json(Leg, [])
