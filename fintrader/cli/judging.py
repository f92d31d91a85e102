"""The command that judges any strategy's returns."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field, NonNegativeFloat

from fintrader.cli.options import parse, take_argument
from fintrader.config import Count, Settings
from fintrader.errors import ConfigError, ReturnsError

if TYPE_CHECKING:
    from fintrader.verdict.track_record import TrackRecord


TABLES = (".csv", ".tsv", ".txt", ".parquet", ".pq", ".feather", ".arrow", ".json", ".zip", ".xlsx")
"""Endings of files of returns; any other source of a claim is a strategy."""


class FileOptions(Settings):
    """Layout of a file of returns."""

    benchmark: str | None = None
    """Column of the file, another file, or cash; by default the file's benchmark, or cash."""
    kind: Literal["returns", "percent", "log", "equity"] | None = None
    """Meaning of the values; detected by default."""
    column: str | None = None
    """Column or strategy, if the file has several."""
    sessions_a_year: int | None = Field(None, ge=1, le=366)
    """Periods a year; detected from the dates by default."""
    trust: bool = False
    """Open a pickle, which runs the code in it."""

    def read(self, file: str) -> TrackRecord:
        """Read the file, or a deployment's folder. Raises ReturnsError, DeployError."""
        if Path(file).is_dir():
            from fintrader.deploy.drift_report import read_account

            return read_account(Path(file))
        from fintrader.verdict.returns_files import read_record

        return read_record(file, **self.model_dump(include={*FileOptions.model_fields}))


class RegisterOptions(FileOptions):
    """The window of a claim, and the layout of its file of returns."""

    first: str | None = None
    """First day of the window, like 2027-01-04, which must not have begun anywhere; the next
    possible day by default."""
    last: str | None = None
    """Last day of the window; without it, each judgement of later days is another look."""


class JudgeOptions(FileOptions):
    """Layout of a file of returns, and facts about their strategy."""

    claim: str | None = None
    """Digest of the claim that `judge register` printed, for the returns of its window."""
    strategy: Path | None = None
    """Files of the strategy that the claim sealed."""
    trials: Count | Literal["unknown"] | None = None
    """Number of strategies tried on these returns, or unknown."""
    held_out: bool = False
    """State that the strategy was selected without these returns."""
    weights: Path | None = None
    """File of target weights, one column per symbol, instead of returns."""
    prices: Path | None = None
    """File of prices at which to trade the weights, one column per symbol."""
    cost_bps: NonNegativeFloat = 0.0
    """Trading costs of the weights, in basis points of turnover."""
    out: Path | None = None
    """Page to write; NAME-verdict.html in this folder by default."""


def judge(argv: list[str]) -> None:
    """Judge a file of returns; print the verdict and write a page."""
    file = argv[0] if argv and not argv[0].startswith("-") else None
    options = parse(JudgeOptions(), argv[1:] if file else argv, "judge")
    if (options.weights is None) != (options.prices is None) or (
        (file is None) == (options.weights is None)
    ):
        raise ConfigError("`fintrader judge` needs FILE, or --weights FILE --prices FILE")
    if options.weights is not None and (options.kind is not None or options.column is not None):
        raise ConfigError("--kind and --column describe a FILE; omit them with --weights")
    try:
        if options.weights is not None and options.prices is not None:
            from fintrader.verdict.returns_files import read_weights

            record = read_weights(
                options.weights,
                options.prices,
                benchmark=options.benchmark,
                cost_bps=options.cost_bps,
                sessions_a_year=options.sessions_a_year,
                trust=options.trust,
            )
        else:
            record = options.read(str(file))
        # The name may come from inside the file.
        page = options.out or Path(re.sub(r"[^\w-]+", "_", record.name)[:50] + "-verdict.html")
        if page.suffix != ".html":
            raise ConfigError(f"--out {page}: give the page a name that ends in .html")
        replaced = ", replaced" if page.exists() else ""
        command = shlex.join(["fintrader", "judge", *argv])
        from fintrader.report.judged import judge as judge_returns

        print(
            judge_returns(
                record,
                trials=options.trials,
                held_out=options.held_out,
                report=page,
                command=command,
                claim=options.claim,
                strategy=options.strategy,
            )
        )
    except ReturnsError as error:
        raise ReturnsError(_name_options(str(error))) from None
    for note in record.notes:
        print(note)
    print(f"The page{replaced}: {page.resolve()}")


def register(argv: list[str]) -> None:
    """Register a claim on a file of returns or on the files of a strategy; print its digest."""
    source, rest = take_argument("judge register", "SOURCE", argv)
    options = parse(RegisterOptions(), rest, "judge register")
    from fintrader.numerals import significance
    from fintrader.verdict import claims
    from fintrader.verdict.alpha import level_of_look

    content = until = None
    benchmark = options.benchmark
    try:
        if Path(source).suffix.lower() in TABLES:
            record = options.read(source)
            until = str(record.dates[-2])[:10]  # the last period may not be over
            content = claims.hash_history(record, until)
            benchmark = record.benchmark_name
        elif benchmark is not None and Path(benchmark).is_file():
            from fintrader.verdict.returns_files import read_benchmark
            from fintrader.verdict.track_record import pick_column

            rival = read_benchmark(benchmark, source, options.trust)
            benchmark = str(pick_column(rival, None, "the benchmark").name)
    except ReturnsError as error:
        problem = str(error).partition(" If each is a strategy")[0]  # a claim counts no trials
        raise ReturnsError(_name_options(problem)) from None
    claim = claims.Claim(
        source=Path(source).name,
        content=content or claims.hash_source(source),
        until=until,
        benchmark=benchmark or "cash",
        first=options.first or claims.find_first_day(),
        last=options.last,
    )
    found = claims.register(claim)
    command = ["fintrader", "judge", *([source] if until else ["FILE", "--strategy", source])]
    layout = options.model_dump(include={*FileOptions.model_fields}, exclude_defaults=True)
    for name, value in layout.items():
        command += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    command += ["--claim", found.digest[: claims.SHOWN]]
    level = significance(level_of_look(1) / found.sharing)
    print(f"Claim {found.digest}")
    print(f"{claim.describe()}. Its first look has a level of {level}.")
    print("Publish the digest where its date is certain, and judge the returns of the window with:")
    print(f"  {shlex.join(command)}")


def _name_options(message: str) -> str:
    """Name the options in a message that names arguments: `kind=equity` becomes `--kind equity`."""
    arguments = "|".join(JudgeOptions.model_fields)
    named = re.sub(rf"\b({arguments})=", lambda found: f"--{found[1].replace('_', '-')} ", message)
    return named.replace(" )", ")")
