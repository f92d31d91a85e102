"""Orders that rest at a price: against the one-account loop, and in numbers worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines.strategies import env_settings
from tests.envs.test_ledger_oracle import GIVEN, MODES, SIGHT, compare
from tests.factories import examples


@settings(max_examples=examples(60))
@given(
    config=env_settings(limit=True),
    sight=SIGHT,
    seed=st.integers(0, 10_000),
    mode=MODES,
    given=GIVEN,
)
def test_the_environment_agrees_with_the_oracle(config, sight, seed, mode, given):
    config = config.model_copy(update=sight)
    assert compare(config, seed, 40, mode=mode, given=given) > 0
