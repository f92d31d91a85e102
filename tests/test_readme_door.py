"""What the README shows of the Python door is what the door shows."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


def test_what_the_readme_prints_is_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```pycon\n(.*?)^```$", README.read_text(), re.M | re.S)
    example = doctest.DocTestParser().get_doctest("".join(blocks), {}, "README", str(README), 0)
    assert any("print(tests)" in one.source for one in example.examples)
    said: list[str] = []
    outcome = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE).run(
        example, out=said.append
    )
    assert outcome.failed == 0, "".join(said)
