"""Judge a track record: the verdict on external returns.

The window of external returns is `foreign`: they do not show whether they selected the strategy. So
the caller states either that the window was held out (the level is that of the look), or how many
strategies were tried on it (their number divides the level, after Bonferroni). Without either there
is no likely skill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fintrader.errors import BacktestError
from fintrader.files import hash_bytes
from fintrader.numerals import format_count, period_name
from fintrader.verdict import alpha as ev
from fintrader.verdict.bootstrap import intervals
from fintrader.verdict.claims import SHOWN, Registration
from fintrader.verdict.conclusion import (
    NOT_JUDGED,
    UNKNOWN_TRIALS,
    conclude,
    flag_implausible,
    make_evidence,
    measure_sharpe,
    measure_tail,
)
from fintrader.verdict.looks import Look, Window, result_hash
from fintrader.verdict.sketch import Curve, Sketch
from fintrader.verdict.track_record import CASH, TrackRecord
from fintrader.verdict.verdict import ACTIVE_RETURN, FOREIGN, Evidence, Selection, Verdict

FEWEST_ALONE = 250
"""Fewest daily returns without positions: with fewer, a seller of tail risk passes too often. Of
weekly and monthly returns, which span more time, `alpha.FEW` suffice."""


def read_trials(trials: object) -> int | None:
    """Read a number of trials; None for `unknown` and None. Raises BacktestError."""
    if trials is None or trials == "unknown":
        return None
    if isinstance(trials, bool) or not isinstance(trials, int) or not 1 <= trials <= 1e99:
        raise BacktestError(
            "trials is how many strategies were tried, at least 1 and at most 1e99, or unknown; got"
            f" {trials!r}"
        )
    return trials


def judge_record(
    record: TrackRecord,
    *,
    trials: int | None = None,
    is_held_out: bool = False,
    look: int | None = None,
    caveats: Sequence[str] = (),
    claim: Registration | None = None,
) -> Verdict:
    """Judge a strategy by its returns in excess of its benchmark.

    `trials`: number of strategies tried; None if unknown. `is_held_out`: the caller states that no
    strategy was selected by these returns. `look`: number of this look; None if not counted.
    `caveats`: further reasons why real trading could not have reached the result. `claim`: the
    claim that named these returns before they were made, as cut by `claims.restrict`.
    """
    ours = record.returns
    year = record.sessions_a_year
    is_held_out = is_held_out or claim is not None
    among = 1 if is_held_out else trials or 1
    if claim is not None:
        among = claim.sharing
    evidence = make_evidence(
        ours, record.benchmark_returns, record.benchmark_name, look, 0, year, among
    )
    wealth = np.cumprod(1 + ours)
    return conclude(
        Verdict(
            state="no_verdict",
            sentences=(NOT_JUDGED,),
            strategy=record.name,
            window=FOREIGN,
            windows=(),
            is_seen=False,
            is_ruined=bool((wealth <= 0).any()),
            has_traded=bool(np.any(ours)),
            sessions=len(ours),
            sessions_a_year=year,
            caveats=(
                *caveats,
                *record.caveats,
                *([] if is_held_out or trials else [UNKNOWN_TRIALS]),
                *_flag_few(record),
                *flag_implausible(evidence.alpha),
            ),
            evidence=evidence if evidence.alpha is None else _test_timing(evidence, record),
            sharpe=measure_sharpe(ours, year),
            intervals=intervals(ours, sessions_a_year=year),
            excess={},
            random_portfolios=None,
            selection=Selection(trials, None, None, None, None),
            tail=measure_tail(ours, evidence.alpha, year),
            is_stated_held_out=is_held_out,
            question=name_question(claim),
            registered="" if claim is None else claim.describe(),
        )
    )


def name_question(claim: Registration | None) -> str:
    """Return the question under which looks are counted; each claim has its own."""
    return ACTIVE_RETURN if claim is None else f"claim {claim.digest[:SHOWN]}"


def look_of(
    record: TrackRecord, command: str | None = None, claim: Registration | None = None
) -> Look:
    """Describe the look at a track record for the ledger. The benchmark's returns and the
    strategy's identify the window; against cash, the dates do too."""
    seen = {"": record.returns, "benchmark": record.benchmark_returns}
    days = record.dates.astype(np.int64)
    key = hash_bytes(days.tobytes() + record.benchmark_returns.tobytes())
    # Names of columns identify nothing: only returns do.
    name = CASH if record.benchmark is None else f"{record.benchmark_name}-{key[:8]}"
    return Look(
        kind="judge",
        run=record.name,
        created=None,
        folder="",
        seed=None,
        window=FOREIGN,
        bars=Window(
            key,
            (name,),
            str(record.dates[0]),
            str(record.dates[-1]),
            sketch=Sketch.of(np.column_stack(list(seen.values()))),
            curves=tuple(Curve.of(days, returns) for returns in seen.values()),
        ),
        strategies=(record.name,),
        result=result_hash(seen),
        trials=None,
        command=command,
        question=name_question(claim),
    )


def _test_timing(evidence: Evidence, record: TrackRecord) -> Evidence:
    """Add the test of timing, where positions are known."""
    held = record.holdings
    if held is None:
        return evidence
    weights = held.shares * held.prices / np.maximum(held.equity, 1e-9)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        ahead = held.prices[1:] / held.prices[:-1] - 1
    pairs = zip(weights[:-1].T, np.where(np.isfinite(ahead), ahead, 0.0).T, strict=True)
    return replace(evidence, shift=ev.shift_test(pairs, seed=0))


def _flag_few(record: TrackRecord) -> list[str]:
    size = len(record.returns)
    least = FEWEST_ALONE if record.sessions_a_year > 52 else ev.FEW
    if record.holdings is not None or size >= least:
        return []
    return [
        f"{format_count(size, period_name(record.sessions_a_year))} of returns alone, in which rare"
        f" losses may be missing (fewer than {least})"
    ]
