import pytest

from tests.bars.tables import minute_table


@pytest.fixture(scope="session")
def healthy():
    """Sound bars of three symbols over twelve sessions. Tests change copies."""
    return minute_table(symbols=3, sessions=12)
