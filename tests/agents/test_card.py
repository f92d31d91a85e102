"""Trainings on a device that counts waits and memory, in a separate process: torch counts its
devices when it first differentiates."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT


@pytest.mark.slow
def test_trainings_wait_only_to_update_and_fit_the_memory_that_is_asked_for():
    words = ["pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).with_name("on_card.py"))]
    result = subprocess.run(
        [sys.executable, "-m", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout[-4000:]
