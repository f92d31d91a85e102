"""`judge`: the verdict on any strategy's returns, printed, and as a page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fintrader.errors import check_keywords
from fintrader.report.html import write_report
from fintrader.results.backtest_files import StoredBacktest, TradeRows, trade_frame
from fintrader.results.backtest_result import BacktestResult
from fintrader.results.context import BacktestContext
from fintrader.results.formatting import is_result
from fintrader.results.market_description import Provenance
from fintrader.results.sections import evidence_table, search_table
from fintrader.results.table import render_notice
from fintrader.results.tabulation import tabulate
from fintrader.verdict.alpha import SHORTEST
from fintrader.verdict.claims import find_registration, restrict
from fintrader.verdict.conclusion import NO_VERDICT, conclude
from fintrader.verdict.judge import judge_record, look_of, read_trials
from fintrader.verdict.looks import DAY, count_look
from fintrader.verdict.track_record import CASH, TrackRecord, make_record
from fintrader.verdict.verdict import FOREIGN, Verdict
from fintrader.verdict.weights_account import CAPITAL_USD, WeightedAccount

MINUTE = 60_000_000_000
"""In ns. Windows open a minute after midnight, and sessions close a minute before it."""


class PrintedVerdict(Verdict):
    """A verdict that prints its sentences and the numbers behind them."""

    def __repr__(self) -> str:
        tables = [evidence_table(self)]
        if self.window != FOREIGN:
            tables.append(search_table(self.selection))
        return "\n".join([*filter(None, [self.notice]), self.text, *map(str, tables)])

    def _repr_html_(self) -> str:
        return (
            render_notice(self.notice)
            + f"<p>{html.escape(self.text)}</p>{evidence_table(self)._repr_html_()}"
        )


@check_keywords
def judge(
    returns: Any,
    benchmark: Any = None,
    trials: int | str | None = None,
    *,
    held_out: bool = False,
    caveats: Sequence[str] = (),
    report: Path | str | None = None,
    command: str | None = None,
    claim: str | None = None,
    **reading: Any,
) -> PrintedVerdict:
    """Judge returns or equity of any strategy against its benchmark.

    `returns`: a pandas or polars Series or DataFrame with dates, a pair of arrays (dates, values),
    the stats of Backtesting.py, a vectorbt portfolio, one result of a backtest, or a `TrackRecord`.
    Periods last up to a month; intraday returns are compounded to days. `benchmark`: the same, a
    column of `returns`, or None for cash. `trials`: number of strategies tried on these returns,
    which divides the level; None or "unknown".
    `held_out`: True states that the strategy was selected without them. A verdict of likely
    skill needs `trials` or `held_out`. `caveats`: reasons against likely skill, each completing
    "with ...".
    `claim`: digest of a claim registered before the returns' window (`fintrader judge register`);
    if it sealed files of a strategy, they are `strategy` among `reading`.
    A result of a backtest keeps its banner and its caveats, and gets no verdict if policies were
    trained or chosen on its bars.
    `report`: a page to write, `command`: the command line that makes it. `reading`: `name`, `kind`,
    `column` and `sessions_a_year` of `track_record.make_record`.

    The look is counted on the user's ledger (`fintrader looks`). Raises BacktestError for wrong
    `trials`, ReturnsError, whose message names the argument that helps, and LedgerError for a
    changed ledger.
    """
    number = read_trials(trials)
    strategy = reading.pop("strategy", None)
    result = returns if isinstance(returns, BacktestResult) else None
    record = returns if result is None else result.returns
    if not isinstance(record, TrackRecord):
        record = make_record(record, benchmark=benchmark, **reading)
    registration = None if claim is None else find_registration(claim)
    if registration is not None:
        record = restrict(record, registration, strategy)
    look = None
    if len(record.returns) >= SHORTEST:  # fewer are not tested: there is no result to count
        look, _ = count_look(look_of(record, command, registration))
    verdict = judge_record(
        record,
        trials=number,
        is_held_out=held_out,
        look=look,
        caveats=caveats,
        claim=registration,
    )
    if result is not None:
        verdict = _carry_over(verdict, result)
    if report is not None:
        market = None if result is None else result.provenance
        write_report(Path(report), tabulate_record(record, verdict, command, market))
    return PrintedVerdict(**vars(verdict))


def _carry_over(verdict: Verdict, result: BacktestResult) -> Verdict:
    """Conclude a verdict again, with a backtest's caveats, notice, ruin and seen bars."""
    from fintrader.backtesting.data_caveats import list_data_caveats  # loads torch

    known = result.provenance
    caveats = [*verdict.caveats, *result.caveats, *list_data_caveats(known)]
    if known.survivorship is not None and known.survivorship.survivors_only:
        caveats.append("a universe of survivors")
    judged = replace(
        verdict,
        state="no_verdict",
        is_seen=result.is_seen or not NO_VERDICT.keys().isdisjoint(result.cut_from),
        is_ruined=verdict.is_ruined or result.ruined,
        caveats=tuple(caveats),
        notice=known.notice,
    )
    return conclude(judged)


def tabulate_record(
    record: TrackRecord, verdict: Verdict, command: str | None, market: Provenance | None = None
) -> StoredBacktest:
    """Make the backtest that a page shows from a track record, its verdict and its market."""
    name = record.name if is_result(record.name) else f"own {record.name}"
    rival = CASH if record.benchmark is None else "benchmark"
    closes = record.dates.astype("datetime64[ns]").astype(np.int64) + DAY - MINUTE
    fields: dict[str, Any] = {
        "minutes": np.append(closes[0] - DAY + 2 * MINUTE, closes),
        "session": np.append(0, np.arange(len(closes))),
        "benchmark": _compound(record.benchmark_returns),
        "sessions_a_year": record.sessions_a_year,
        "benchmark_name": record.benchmark_name,
        "portfolio": _compound(record.benchmark_returns),
        "portfolio_name": rival,
    }
    notes = " ".join(record.notes)
    curve = _compound(record.returns)
    results = {
        name: BacktestResult.of_curve(name, curve, note=notes, **fields)
        if record.holdings is None
        else _make_account(record.holdings, name=name, note=notes, **fields),
        rival: BacktestResult.of_curve(
            rival, _compound(record.benchmark_returns), note=record.benchmark_name, **fields
        ),
    }
    context = BacktestContext(
        run="Returns from elsewhere",
        window=FOREIGN,
        trials=verdict.selection.trials,
        look=verdict.evidence.look,
        command=command,
        market=market or Provenance(),
    )
    return tabulate(results, context, verdict)


def _compound(returns: Any) -> Any:
    return CAPITAL_USD * np.cumprod(np.append(1.0, 1 + returns))


def _make_account(held: WeightedAccount, minutes: Any, **fields: Any) -> BacktestResult:
    """Make the result of a strategy whose positions are known."""
    changes = held.changes
    rows, assets = np.nonzero(changes)
    notional = np.abs(changes * held.prices)
    share = held.costs_usd / np.maximum(notional.sum(axis=1), 1e-9)
    fills = TradeRows(
        kind=np.full(len(rows), "order", dtype=object),
        decided=rows - 1,
        filled=rows,
        asset=assets,
        shares=changes[rows, assets],
        price=held.prices[rows, assets],
        cost=(notional * share[:, None])[rows, assets],
    )
    return BacktestResult(
        minutes=minutes,
        symbols=held.symbols,
        equity=held.equity,
        shares=held.shares,
        mark=held.prices,
        costs_usd=held.costs_usd,
        turnover_usd=notional.sum(axis=1),
        income_usd=np.zeros(len(held.equity)),
        trades=trade_frame(fills, held.symbols, minutes[rows - 1], minutes[rows]),
        **fields,
    )
