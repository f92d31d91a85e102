"""Reproduction of a report: its run made again from the report alone, and every metric compared."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

from fintrader.bars.sources.layout import FilesSettings
from fintrader.config import list_code, merge_values, validate
from fintrader.errors import DataError, ReportError
from fintrader.market.data_commands import build_data
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline.config import RESULT_NEUTRAL, RunConfig, Window, changed_results
from fintrader.pipeline.run_stages import backtest_run, run, run_tournament, walk_forward
from fintrader.report.recipe import describe_software, read_record
from fintrader.results.backtest_files import read_backtest
from fintrader.results.verify import Check

TOLERANCE = 1e-6
"""Largest relative difference, if code, packages or processor differ from the report's."""
_NOISE = 1e-9
"""Largest difference of numbers near zero in that case."""
Metrics = Mapping[str, Mapping[str, Any]]


def check_report(
    report: Path, *, keep: Path | None = None, data: str | None = None, allow_code: bool = False
) -> Iterator[Check]:
    """Make the run of a report again, in a separate folder, and compare every metric.

    `keep`: the folder, which stays and must not hold the run yet; None: a temporary folder.
    `data`: path of the bars here. Null model, sensitivity and tear sheet change no metric and are
    left out. Code that the configuration names is imported only with `allow_code`.

    Raises ReportError for a report that cannot be read, holds no configuration, or was made of
    other bars than those here; DataError if there are no bars here; and the errors of `run`.
    """
    record = read_record(report)
    recipe = record["recipe"]
    where = str(report)
    if "config" not in recipe:
        raise ReportError(
            f"{where} was written for a policy made in Python and has no configuration; run its"
            " author's script again"
        )
    verb = recipe.get("verb")
    window = recipe.get("window")
    if verb not in ("run", "walkforward") or window not in get_args(Window):
        raise ReportError(
            f"{where}: its record is damaged (verb {verb!r:.40}, window {window!r:.40})"
        )
    deviations = compare_origin(recipe)
    tolerance = TOLERANCE if deviations else 0.0
    yield Check(
        "origin of the report",
        "commit, packages and processor with those here",
        result=f"different here: {'; '.join(deviations)}; so numbers within {tolerance:g} of each"
        " other (relative) count as equal"
        if deviations
        else "the same commit, packages and processor as here",
    )
    # No existing market is trusted: the market is built again, in that folder.
    with contextlib.ExitStack() as stack:
        prefix = "fintrader-reproduce-"
        home = keep or stack.enter_context(tempfile.TemporaryDirectory(prefix=prefix))

        def read_settings(values: Any) -> RunConfig:
            places = {"runs_dir": str(home), "cache": str(Path(home) / "tensors")}
            config = read_stored_config(values, where, allow_code=allow_code, **places)
            only = {
                "window": [window],
                "null_model": False,
                "sensitivity": False,
                "tear_sheet": "none",
            }
            changes: dict[str, Any] = {"backtest": only}
            if data:
                source = config.data.effective().source
                if not isinstance(source, FilesSettings):
                    raise ReportError(f"--data: this run's bars are {source.kind}, not files")
                changes["data"] = {"path": data}
            return type(config).model_validate(
                merge_values(config.model_dump(mode="json"), changes)
            )

        own = read_settings(recipe["config"])
        judged = read_settings(recipe["backtest"]) if "backtest" in recipe else own
        if own.folder.root.exists():
            raise ReportError(
                f"{own.folder.root} is there already; choose another folder for --keep"
            )
        _check_bars(own, record.get("data_hash"), where)
        again = bool(changed_results(own, judged))
        if verb == "walkforward":
            walk_forward(own)
        elif again:
            run_tournament(own)
        else:
            run(own)
        if again:
            backtest_run(own.folder.root, judged)
        stored = read_backtest(own.folder.backtest_of(window))
        metrics = {name: values.by_key() for name, values in stored.metrics.items()}
    count, differences = compare_metrics(record["metrics"], metrics, tolerance)
    yield Check(
        "metrics",
        "every metric of every strategy in the report with that of the run made again",
        differences,
        f"{count} of {count} metrics equal: the report is reproduced",
        "a difference with the same code, packages, processor and bars means that the report was"
        " edited",
    )


def read_stored_config(values: Any, where: str, *, allow_code: bool, **places: Any) -> RunConfig:
    """Read settings from a report and check them like a file's; `places` (name, runs_dir, cache)
    override them.

    Raises ReportError if they are damaged, or import code without `allow_code`, ConfigError for a
    configuration of another version.
    """
    if not isinstance(values, Mapping):
        raise ReportError(f"{where}: its configuration is damaged; ask for the file again")
    forbidden = sorted(set(values) & {*RESULT_NEUTRAL} - {"name"})
    if forbidden:
        raise ReportError(
            f"{where}: a report must not set {', '.join(forbidden)}; ask for the file again"
        )
    named = list_code(values)
    if named and not allow_code:
        raise ReportError(
            f"{where}: its configuration imports {', '.join(named)}; read that code, then add"
            " --allow-code True"
        )
    return validate(RunConfig, {**values, **places}, where)


def compare_metrics(
    reported: Metrics, reproduced: Metrics, tolerance: float
) -> tuple[int, list[str]]:
    """Count the metrics on either side, and describe those that differ by more than `tolerance`
    (relative)."""
    pairs = [
        (
            f"{strategy} {key}",
            reported.get(strategy, {}).get(key),
            reproduced.get(strategy, {}).get(key),
        )
        for strategy in sorted({*reported, *reproduced})
        for key in dict.fromkeys([*reported.get(strategy, {}), *reproduced.get(strategy, {})])
    ]
    return len(pairs), [
        _describe(*pair) for pair in pairs if not _is_close(pair[1], pair[2], tolerance)
    ]


def _is_close(reported: float | None, reproduced: float | None, tolerance: float) -> bool:
    if reported is None or reproduced is None:
        return reported is reproduced
    noise = _NOISE if tolerance else 0.0
    return math.isclose(reported, reproduced, rel_tol=tolerance, abs_tol=noise)


def _describe(metric: str, reported: float | None, reproduced: float | None) -> str:
    text = f"{metric}: {reported!r} in the report, {reproduced!r} here"
    if reported is None or reproduced is None:
        return text
    relative = f" ({(reproduced - reported) / abs(reported):+.2%})" if reported else ""
    return f"{text}, {reproduced - reported:+.3g}{relative}"


def compare_origin(recipe: Mapping[str, Any]) -> tuple[str, ...]:
    """List the differences of code, packages and processor here from those in a recipe."""
    here = describe_software()
    differences = []
    if recipe.get("dirty") or here["dirty"]:
        which = "the report's" if recipe.get("dirty") else "this"
        differences.append(f"{which} code has uncommitted changes")
    if recipe.get("commit") != here["commit"]:
        differences.append(
            f"commit {_short(recipe.get('commit'))} in the report, {_short(here['commit'])} here"
        )
    reported = recipe.get("versions")
    versions = reported if isinstance(reported, Mapping) else {}
    for name in sorted({*versions, *here["versions"]}):
        if versions.get(name) != here["versions"].get(name):
            there = versions.get(name) or "none"
            differences.append(
                f"{name} {there!s:.40} in the report, {here['versions'].get(name) or 'none'} here"
            )
    config = recipe.get("config")
    fixed = isinstance(config, Mapping) and config.get("reproducible") == "across_machines"
    if not fixed and any(
        one not in here["processors"] for one in recipe.get("processors") or [None]
    ):
        reported_processors = [
            one.get("processor", "?")
            for one in recipe.get("processors") or ()
            if isinstance(one, Mapping)
        ]
        names = ", ".join(f"{name!s:.60}" for name in reported_processors) or "unknown"
        differences.append(
            f"processor {names} in the report, {here['processors'][0]['processor']} here"
        )
    return tuple(differences)


def _short(commit: Any) -> str:
    return f"{commit:.12}" if isinstance(commit, str) else "unknown"


def _check_bars(config: RunConfig, reported: Any, where: str) -> None:
    """Raise ReportError unless the bars here make the market that the report names."""
    try:
        built = build_data(config)
    except DataError as error:
        raise ReportError(
            f"the bars of {where} are not available here ({error}); give the path of files"
            " with --data PATH, or download the bars again"
        ) from error
    content = MarketTensors.stored_hash(built)
    if content != reported:
        raise ReportError(
            f"other bars: {where} was made of a market with the hash {reported!s:.12}, and those"
            f" here make {content:.12}; get the same files (--data PATH), or the version of"
            " fintrader that built them"
        )
