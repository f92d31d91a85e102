"""Configurations that nobody would write end in one sentence, or run.

Values of the shipped configurations, and of one with all settings, are replaced, renamed, moved and
deleted at random, and the text of some files is damaged. Whatever is read from them is also asked
for its inputs and its estimate, as the app and `run` do before anything starts. The long run
(`FINTRADER_SLOW=1`) has 10,000 of them; a failure names the number of its file, which is drawn
alone by that number.
"""

import copy
import json
import math
import random

import pytest
import yaml

from fintrader.cli.options import parse_config
from fintrader.errors import FintraderError
from fintrader.pipeline.config import RunConfig
from fintrader.pipeline.estimates import estimate
from fintrader.pipeline.inputs import find_missing_inputs
from tests import ROOT

SHIPPED = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "configs").glob("*.yaml"))]
WHOLE = json.loads(RunConfig().model_dump_json())
NUMBERS = [0, -1, 1, 2, 10**30, -(10**30), 1.5, -0.0, 1e308, 1e-320, math.nan, math.inf]
TEXTS = [
    *("", "x", " ", "auto", "none", "ppo", "\0", "é\u202e", "a" * 5000, "${HOME}", "[]", "1e5"),
    *(
        "../..",
        "/",
        "~",
        "s3://x",
        "file:///",
        "http://x/y",
        "http://[",
        "s3://[x",
        ":",
        ":x",
        "x:",
    ),
    *("os:system", "package.module:name", "2020-02-30", "99999-01-01", "0001-01-01", "12:00"),
]
SHAPES = [
    *([], [None], [[]], [1, 2, 3], ["a", "a"], [{}], [0.5, 0.5], [math.nan] * 3, [1e-300, 1, 1]),
    *({}, {"a": 1}, {"kind": "x"}, {"kind": None}, {1: 2}, {None: None}, {"": ""}),
    *({"min": 1, "max": 0}, {"low": 0, "high": 0}),
]
POOL = [None, True, False, *NUMBERS, *TEXTS, *SHAPES]
DAMAGE = "{}[]:,&*!|>%@`\"'#-?\t\n \\0\u0085\ufeff"


def list_places(value, above=()):
    """Every place of a nested value, as the keys that lead there."""
    inside = value.items() if isinstance(value, dict) else ()
    inside = enumerate(value) if isinstance(value, list) else inside
    return [above, *(place for key, one in inside for place in list_places(one, (*above, key)))]


def get(value, place):
    for key in place:
        value = value[key]
    return value


KEYS = [*dict.fromkeys(str(place[-1]) for place in list_places(WHOLE) if place), "kind", "x", ""]


def change(value, draw):
    """Change one place of a configuration."""
    places = list_places(value)[1:]
    if not places:
        return
    place = draw.choice(places)
    above = get(value, place[:-1])
    old = above[place[-1]]
    odd = copy.deepcopy(draw.choice(POOL))
    kind = draw.random()
    if kind < 0.6:
        above[place[-1]] = odd
    elif kind < 0.7 and isinstance(above, dict):
        del above[place[-1]]
    elif kind < 0.8 and isinstance(above, dict):
        above[draw.choice(KEYS)] = odd
    elif kind < 0.9:
        above[place[-1]] = copy.deepcopy(get(value, draw.choice(places)))
    elif isinstance(old, int | float):
        above[place[-1]] = draw.choice([-old, old * 1000, old / 7, str(old), [old]])
    else:
        above[place[-1]] = draw.choice([[old], {"kind": old}, str(old).upper(), str(old)[:-1]])


def write_odd_config(number):
    """Write the text of the odd configuration with this number."""
    draw = random.Random(number)
    value = copy.deepcopy(draw.choice([*SHIPPED, WHOLE]))
    for _ in range(draw.choice([1, 1, 1, 2, 3, 5])):
        change(value, draw)
    text = list(yaml.safe_dump(value, allow_unicode=True))
    for _ in range(draw.choice([0, 0, 0, 0, 1, 2, 4])):
        at = draw.randrange(len(text) + 1)
        text[at : at + draw.choice([0, 1])] = draw.choice([draw.choice(DAMAGE), ""])
    return "".join(text)


def run_checks(number, path):
    """Read an odd configuration and look at it as `run` does first; True where it is accepted."""
    path.write_text(write_odd_config(number), encoding="utf-8")
    try:
        config = parse_config("run", [str(path)])
        find_missing_inputs(config)
        estimate(config, [])
    except FintraderError:
        return False
    except Exception as error:
        raise AssertionError(f"odd configuration {number}") from error
    return True


@pytest.mark.parametrize(
    "numbers",
    [range(60), pytest.param(range(60, 10_000), marks=pytest.mark.slow)],
    ids=["60", "10000"],
)
def test_an_odd_configuration_is_accepted_or_refused_in_words(numbers, tmp_path):
    accepted = sum(run_checks(number, tmp_path / "odd.yaml") for number in numbers)
    assert 0 < accepted < len(numbers)


def test_a_value_in_the_place_of_the_features_is_refused(tmp_path):
    path = tmp_path / "odd.yaml"
    path.write_text(yaml.safe_dump({"data": {"features": {"names": True}}}))
    with pytest.raises(FintraderError, match="names"):
        parse_config("run", [str(path)])
