"""Files of a backtest.

    metrics.json       {strategy: {metric: number or null}}
    equity.parquet     long: strategy, bar, minute (start of the bar, UTC), session, equity_usd,
                       cash_usd, cost_usd, turnover_usd, exposure; one row a bar and strategy;
                       the index is the strategy `benchmark`
    positions.parquet  long: strategy, minute, session, symbol, shares, price_usd, weight at each
                       session's close, only positions held
    prices.parquet     long: minute, session, symbol, close_usd at each session's close, where
                       there is a price
    trades.parquet     long: strategy, then the columns of `backtest_files.TRADE_COLUMNS`
    context.json       origin of the backtest: trials, seed, hashes, command (`results.context`)
    verdict.json       the verdict (`assessment.assess`)
    analysis.json      attribution, execution, factors (`results.analysis.Analysis`); null without
                       the market
    explanation.json   influence of the inputs on some decisions (`results.explanation`); null if
                       none was examined
    sensitivity.json   the result with one choice changed at a time (`results.analysis.Variation`);
                       [] if not run
    seal.json          SHA-256 of the files above, so that opening the backtest detects a change;
                       drawing a report or recording a look seals again (`backtest_files.make_seal`)
    report.html        the report to read; written later by `report.html.write_report`

Equal results give equal bytes; every file is replaced atomically, metrics.json last, so that a
folder with a metrics.json holds a complete backtest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from fintrader.backtesting.analysis import analyse
from fintrader.backtesting.assessment import assess
from fintrader.backtesting.result import Results
from fintrader.files import dump_json, hash_bytes, hash_file, remove, write_bytes, write_json
from fintrader.records import to_plain
from fintrader.results.analysis import Variation
from fintrader.results.backtest_files import (
    FILES,
    RECORDS,
    SEAL,
    TABLES,
    StoredBacktest,
    make_seal,
)
from fintrader.results.context import BacktestContext
from fintrader.results.explanation import Explanation
from fintrader.results.tabulation import NO_CONTEXT
from fintrader.results.tabulation import tabulate as tabulate


def write_backtest(
    folder: Path,
    results: Results,
    *,
    context: BacktestContext = NO_CONTEXT,
    sensitivity: Sequence[Variation] = (),
    explanation: Explanation | None = None,
    **evidence: Any,
) -> StoredBacktest:
    """Write the data files of a backtest below `folder`, and return them.

    `evidence`: further arguments of `assessment.assess`; trials and look are those of the
    `context`. Raises BacktestError if results cover different bars.
    """
    tabulate(results)  # raises before anything is computed or written
    verdict = assess(results, trials=context.trials or None, look=context.look, **evidence)
    stored = tabulate(
        results,
        context,
        verdict,
        sensitivity,
        analyse(results, evidence.get("market")),
        explanation,
    )
    for name in ("metrics.json", "report.html"):  # of an earlier backtest, now overwritten
        remove(folder / name)
    for name in TABLES:
        table: pd.DataFrame = getattr(stored, name)
        write_bytes(
            folder / f"{name}.parquet",
            table.to_parquet(engine="pyarrow", compression="zstd", index=False),
        )
    for name in RECORDS:
        write_json(folder / f"{name}.json", to_plain(getattr(stored, name)))
    last = dump_json(to_plain(stored.metrics)).encode()
    hashes = {name: hash_file(folder / name) for name in FILES} | {"metrics.json": hash_bytes(last)}
    write_bytes(folder / SEAL, make_seal(hashes))
    write_bytes(folder / "metrics.json", last)
    return stored
