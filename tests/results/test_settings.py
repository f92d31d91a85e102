"""Settings beside defaults and beside another run's: marks, unions, old runs with other fields."""

import json

import pytest
import yaml

from fintrader.config import dump_yaml, merge_values
from fintrader.pipeline import defaults
from fintrader.pipeline.config import RunConfig, load_config
from fintrader.results.settings import (
    DEFAULTS,
    changed,
    differing,
    format_setting,
    read_run_settings,
)

RATE = {"low": 3e-5, "high": 3e-3, "log": True}


def stored(**changes):
    """What `config.yaml` of a run with these settings says."""
    written = yaml.safe_load(dump_yaml(RunConfig.model_validate(merge_values({}, changes))))
    return written


def test_the_table_of_defaults_is_that_of_the_models():
    again = "a default has changed: run `python -m fintrader.pipeline.defaults`"
    assert json.loads(DEFAULTS.read_text()) == json.loads(json.dumps(defaults.table())), again


def test_a_run_that_says_nothing_has_changed_nothing():
    assert changed(stored()) == {}
    assert changed({}) == {}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"seed": 3}, {"seed": (3, 0)}),
        ({"env": {"cost_bps": 20.0}}, {}),  # said, and the same
        (
            {"agent": {"algo": "sac"}},
            {"agent.algo": ("sac", "ppo")},
        ),  # its other settings are its own defaults
        (
            {"agent": {"algo": "sac", "tau": 0.5}},
            {"agent.algo": ("sac", "ppo"), "agent.tau": (0.5, 0.01)},
        ),
        (
            {"agent": {"algo": "ppo", "network": {"hidden": [8]}}},
            {"agent.network.hidden": ([8], [32, 32])},
        ),
        (
            {"data": {"path": "x.csv", "source": {"kind": "files"}}},
            {
                "data.source.kind": ("files", "synthetic"),
                "data.path": ("x.csv", None),
            },
        ),
        (
            {"tournament": {"search": {"learning_rate": RATE, "network.hidden": [[8], [16]]}}},
            {
                "tournament.search.learning_rate": (RATE, None),
                "tournament.search.network.hidden": ([[8], [16]], None),
            },
        ),
        ({"tournament": {"search": {}}}, {}),
    ],
)
def test_what_differs_from_the_default_is_marked(changes, expected):
    found = changed(stored(**changes))
    assert set(found) == set(expected)
    for name, (value, default) in expected.items():
        assert found[name].value == value
        assert found[name].default == default


def test_shipped_configurations_have_no_unknown_setting():
    for name in ("quickstart", "podracer", "walkforward_us14"):
        config = yaml.safe_load(dump_yaml(load_config(name)))
        assert all(one.known for one in read_run_settings(config).values()), name


def test_an_old_runs_fields_that_are_no_longer_known_are_named_and_not_called_changed():
    old = stored(agent={"algo": "sac"}) | {"desk": {"whim": 3}, "seed": 0}
    old["agent"]["forgotten"] = [1]
    found = changed(old)
    assert {name for name, one in found.items() if not one.known} == {
        "desk.whim",
        "agent.forgotten",
    }
    assert not found["desk.whim"].changed
    for odd in (
        {"agent": 3},
        {"agent": {"algo": ["ppo"]}},
        {"env": None},
        {"data": {"source": {"kind": "gone"}}},
        {1: 2},
    ):
        assert changed(odd)


def test_only_what_differs_stands_in_the_table_of_several_runs():
    runs = {
        "a": stored(name="a", seed=1),
        "b": stored(name="b", seed=1, agent={"algo": "sac"}),
        "c": stored(name="c", seed=1, agent={"algo": "ppo", "gamma": 0.5}),
    }
    found = differing(runs)
    assert "seed" not in found
    assert "name" not in found
    assert found["agent.gamma"]["c"].changed
    assert not found["agent.gamma"]["a"].changed
    assert found["agent.tau"]["a"] is None
    assert found["agent.algo"]["b"].value == "sac"
    assert set(differing({"a": runs["a"], "c": runs["c"]})) == {"agent.gamma"}
    assert differing({"a": runs["a"]}) == differing({}) == {}


def test_values_stand_as_in_yaml():
    values = (None, True, 3e-5, 20.0, "x: y", [1, 2.5], [], 1e6, {"low": 0, "log": False})
    told = ["null", "true", "3e-05", "20", "x: y", "[1, 2.5]", "[]", "1000000", "{low: 0}"]
    assert [format_setting(value) for value in values] == told
