"""The benchmarks of known optima are run by hand only: their settings must not rot in the
meantime."""

import importlib

import pytest
from pydantic import TypeAdapter

from fintrader.agents import AgentSettings


@pytest.mark.parametrize("name", ["kelly", "known_optimum", "leaked_future"])
def test_agents_of_known_optima_can_be_made(name):
    settings = importlib.import_module(f"benchmarks.{name}").SETTINGS
    assert settings
    for algo, values in settings.items():
        TypeAdapter(AgentSettings).validate_python({"algo": algo, **values})
