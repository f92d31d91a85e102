"""The recipe inside a report, by which others can repeat its backtest: plain JSON, read without
running any code.

`recipe` of a backtest's context says how its result was made: `verb` and `window`, the whole
configuration (`config`; also `backtest` if it was repeated with other settings), `commit` and
`dirty`, `processors`, `versions`. `market` is the `Provenance` of its market. The page holds both
with the metrics, in one `<script>` of JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fintrader import runs
from fintrader.errors import ReportError
from fintrader.files import read_bytes
from fintrader.records import JsonValue, RecordError, from_json, to_json
from fintrader.reproducible import code_paths
from fintrader.results.context import BacktestContext

FORMAT = "fintrader-report-1"
MOST_BYTES = 256 * 1024 * 1024
_ELEMENT = re.compile(r'<script type="application/json" id="record">([^<]*)</script>')
_ESCAPES = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def describe_software(manifest: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Describe code and machine: a run's from its `manifest`, else those of this process.

    `commit` is None outside a checkout, `dirty` says whether it had changes that were not
    committed; `processors` has an entry for each kind of machine that worked on it.
    """
    if manifest is None:
        here = {"commit": runs.commit(), "code_paths": [code_paths()], "versions": runs.versions()}
        return describe_software(here)
    commit = manifest.get("commit")
    return {
        "commit": commit.removesuffix("+") if commit else None,
        "dirty": commit.endswith("+") if commit else None,
        "processors": list(manifest.get("code_paths") or []),
        "versions": dict(manifest.get("versions") or {}),
    }


def record_of(context: BacktestContext, metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Make the record that the page carries: the recipe, and every metric unrounded."""
    names = ("recipe", "run", "trials", "seed", "look", "data_hash", "settings_hash", "market")
    stored = to_json(context)
    known = {name: stored[name] for name in names if stored[name] is not None}
    return {"format": FORMAT, "metrics": metrics, **known}


def element(record: Mapping[str, Any]) -> str:
    """Render the record as a script element; escapes keep its text from closing the element."""
    text = json.dumps(record, sort_keys=True, allow_nan=False, ensure_ascii=False)
    for character, escape in _ESCAPES.items():
        text = text.replace(character, escape)
    return f'<script type="application/json" id="record">{text}</script>'


def read_record(path: Path | str) -> dict[str, Any]:
    """Read the record in a report's page, without running its scripts.

    Raises ReportError for a missing file, a file that is no report, and one of another version.
    """
    path = Path(path)
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ReportError(
                f"{path} is larger than {MOST_BYTES // 2**20} MiB: no report of a backtest"
            )
        text = read_bytes(path).decode()
    except OSError as error:
        raise ReportError(
            f"{path}: {error.strerror or error}; give the report.html of a backtest"
        ) from None
    except UnicodeDecodeError:
        raise ReportError(f"{path} is no text; give the report.html of a backtest") from None
    found = _ELEMENT.findall(text)
    if len(found) != 1:
        raise ReportError(
            f"{path} holds no record of how it was made: it is no report, or one of an earlier"
            " version; `fintrader backtest RUN_DIR` writes the run's report anew"
        )
    try:
        record = from_json(dict[str, JsonValue], json.loads(found[0]))
        if record.get("format") == FORMAT:
            from_json(dict[str, dict[str, float | None]], record.get("metrics"))
            from_json(dict[str, JsonValue], record.get("recipe"))
            return record
    except (ValueError, RecursionError, RecordError):
        raise ReportError(f"{path}: its record is damaged; ask for the file again") from None
    raise ReportError(
        f"{path} is a report of another version ({record.get('format')!s:.40}; this one reads"
        f" {FORMAT}); open it with the version that wrote it"
    )
