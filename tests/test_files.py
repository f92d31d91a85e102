from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fintrader.errors import CheckpointError
from fintrader.files import atomic_file, seal, unseal, write_bytes

BODY: dict[str, Any] = {"text": '{"a": 1}\n', "rows": 3, "share": 0.1, "none": None, "nested": {"é": ["x", True]}}


@pytest.mark.parametrize("indent", [None, 2])
def test_a_sealed_body_comes_back(indent: int | None) -> None:
    data = seal(BODY, indent=indent)
    assert unseal(data, CheckpointError("damaged")) == BODY
    assert set(json.loads(data)) == {"sha256", *BODY}  # any reader of JSON sees what is in it
    assert seal(dict(reversed(BODY.items())), indent=indent) == data


def test_any_flipped_bit_breaks_the_seal() -> None:
    data = seal(BODY)
    for position in range(len(data)):
        for bit in range(8):
            harmed = bytearray(data)
            harmed[position] ^= 1 << bit
            with pytest.raises(CheckpointError, match=r"^the state is damaged$"):
                unseal(bytes(harmed), CheckpointError("the state is damaged"))


@pytest.mark.parametrize("data", [b"", b"[]", b'{"text": "a"}', b"\xff\xfe", seal(BODY)[:-9], seal(BODY) + b" "])
def test_what_was_never_sealed_or_is_not_whole(data: bytes) -> None:
    with pytest.raises(CheckpointError):
        unseal(data, CheckpointError("damaged"))


def test_no_seal_holds_what_json_cannot() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        seal({"loss": float("nan")})


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: bool) -> None:
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(handle), real(handle))[1])
    path = tmp_path / "new" / "file"
    write_bytes(path, b"one", sync=sync)
    assert len(synced) == (2 if sync else 0)  # the file and its folder
    with pytest.raises(KeyboardInterrupt), atomic_file(path, sync=sync) as file:
        file.write(b"half of t")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"one"
    assert list(path.parent.iterdir()) == [path]
