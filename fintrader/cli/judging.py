"""The command that judges any strategy's returns."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from fintrader.cli.options import parse
from fintrader.config import Settings
from fintrader.errors import ConfigError, ReturnsError


class JudgeOptions(Settings):
    """Layout of a file of returns, and facts about their strategy."""

    benchmark: str | None = None
    """Column of the file, another file, or cash; by default the file's benchmark, or cash."""
    trials: Annotated[int, Field(ge=1)] | Literal["unknown"] | None = None
    """Number of strategies tried on these returns, or unknown."""
    held_out: bool = False
    """State that the strategy was selected without these returns."""
    kind: Literal["returns", "percent", "log", "equity"] | None = None
    """Meaning of the values; detected by default."""
    column: str | None = None
    """Column or strategy, if the file has several."""
    sessions_a_year: int | None = Field(None, ge=1, le=366)
    """Periods a year; detected from the dates by default."""
    weights: Path | None = None
    """File of target weights, one column per symbol, instead of returns."""
    prices: Path | None = None
    """File of prices at which to trade the weights, one column per symbol."""
    cost_bps: float = Field(0.0, ge=0)
    """Trading costs of the weights, in basis points of turnover."""
    trust: bool = False
    """Open a pickle, which runs the code in it."""
    out: Path | None = None
    """Page to write; NAME-verdict.html in this folder by default."""


def judge(argv: list[str]) -> None:
    """Judge a file of returns; print the verdict and write a page."""
    file = argv[0] if argv and not argv[0].startswith("-") else None
    options = parse(JudgeOptions(), argv[1:] if file else argv, "judge")
    from fintrader.report.judged import judge as judge_returns
    from fintrader.verdict.returns_files import read_record, read_weights

    if (options.weights is None) != (options.prices is None) or (
        (file is None) == (options.weights is None)
    ):
        raise ConfigError("`fintrader judge` needs FILE, or --weights FILE --prices FILE")
    try:
        if options.weights is not None and options.prices is not None:
            record = read_weights(
                options.weights,
                options.prices,
                benchmark=options.benchmark,
                cost_bps=options.cost_bps,
            )
        else:
            record = read_record(
                str(file),
                benchmark=options.benchmark,
                kind=options.kind,
                column=options.column,
                sessions_a_year=options.sessions_a_year,
                trust=options.trust,
            )
        # The name may come from inside the file.
        page = options.out or Path(re.sub(r"[^\w-]+", "_", record.name) + "-verdict.html")
        if page.suffix != ".html":
            raise ConfigError(f"--out {page}: give the page a name that ends in .html")
        command = shlex.join(["fintrader", "judge", *argv])
        print(
            judge_returns(
                record,
                trials=options.trials,
                held_out=options.held_out,
                report=page,
                command=command,
            )
        )
    except ReturnsError as error:
        raise ReturnsError(_name_options(str(error))) from None
    for note in record.notes:
        print(note)
    print(f"The page: {page.resolve()}")


def _name_options(message: str) -> str:
    """Name the options in a message that names arguments: `kind=equity` becomes `--kind equity`."""
    arguments = "|".join(JudgeOptions.model_fields)
    named = re.sub(rf"\b({arguments})=", lambda found: f"--{found[1].replace('_', '-')} ", message)
    return named.replace(" )", ")")
