"""`Verdict` and its parts, as they are stored, passed on and shown. Nothing is computed here.

Rates and ratios are annual unless noted; `S` is the number of sessions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["likely_skill", "behind", "not_told_from_luck", "no_verdict"]
"""`likely_skill`: ahead of the benchmark portfolio, with an alpha significantly above 0 at this
look's level, and without a caveat. `no_verdict`: the window allows no conclusion, or there was
nothing to test. `behind`: its alpha is significantly below 0 at the same level; earlier versions
stored `not_told_from_luck`. That is everything else, a bankrupt account included."""
ACTIVE_RETURN = "active return"
"""The usual question: is the strategy ahead of its benchmark? Looks are counted by question."""
HELD_OUT = "test"
FOREIGN = "foreign"
"""Window of external returns; `verdict.judge` has its rules."""


@dataclass(frozen=True)
class Interval:
    """An estimate with its bootstrap percentile interval."""

    estimate: float | None
    low: float | None
    high: float | None
    level: float


@dataclass(frozen=True)
class Intervals:
    """Bootstrap intervals of a strategy's daily returns."""

    sharpe: Interval
    annual_return: Interval | None
    """None for a window that is too short for an annual figure."""
    max_drawdown: Interval
    block_sessions: float
    """Mean length of the blocks that were drawn."""

    def by_metric(self) -> dict[str, Interval]:
        """Return the intervals by the key of their metric in `results.catalogue`."""
        bands = {"sharpe": self.sharpe, "annual_return": self.annual_return}
        bands["max_drawdown"] = self.max_drawdown
        return {name: band for name, band in bands.items() if band is not None}


@dataclass(frozen=True)
class Excess:
    """Paired comparison of one strategy with another on the same days."""

    excess: float
    """Mean daily excess return times the sessions of a year."""
    low: float
    high: float
    level: float
    p_value: float
    """Probability, under no excess, of an excess at least as large (one-sided, recentred
    bootstrap)."""
    block: float


@dataclass(frozen=True)
class Histogram:
    """Counts between edges. Raises ValueError unless there is one edge more than counts."""

    counts: tuple[int, ...]
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.counts or len(self.edges) != len(self.counts) + 1:
            raise ValueError(f"{len(self.counts)} counts between {len(self.edges)} edges")


# --- the held-out window --------------------------------------------------------------------------


@dataclass(frozen=True)
class AlphaTest:
    """A one-sided test that alpha is above zero."""

    sessions: int
    beta: float
    alpha: float
    low: float
    high: float
    """Upper end of alpha's 95 % confidence interval; `low` is the lower end."""
    ratio: float
    """Alpha over the deviation of the hedged returns: the information ratio after hedging beta."""
    p_value: float
    level: float
    """Level of significance of the test."""
    visible: float
    """Smallest true ratio that the test detects at this level with a power of 80 %."""
    sessions_needed: int | None
    """Total sessions after which a true ratio of the measured size is detected with this power;
    None unless the measured ratio is above 0."""
    method: str
    past_sessions: int = 0
    """Number of past sessions of the benchmark that are hedged too, because the returns react to it
    late; `beta` is the sum over them."""


@dataclass(frozen=True)
class ShiftTest:
    """A test of timing: did the moment of the decisions matter?"""

    p_value: float
    """Share of the shifts in time in which the same holdings earned at least as much."""
    shifts: int
    earned: float
    """Return of the active weights over the window, before costs."""
    expected: float
    """Mean of `earned` over the shifts: the return of the weights without any timing."""


@dataclass(frozen=True)
class Betting:
    """Wealth of a bettor who begins with 1 and bets that alpha is above 0; wealth above 1 / level,
    at any time, is evidence at that level."""

    last: float
    most: float
    by_session: tuple[float, ...]
    """`[S]`."""


@dataclass(frozen=True)
class Tail:
    """The worst loss of a window, and a bound on losses too rare for it."""

    worst: float
    """Lowest return of a session."""
    unseen_share: float
    """Largest share of sessions (at 95 % confidence) with a loss beyond any in this window."""
    undoing: float | None
    """Loss, as a share of equity, that cancels the alpha if it occurs in `unseen_share` of
    sessions; None without alpha."""


@dataclass(frozen=True)
class Evidence:
    """Tests of the window's returns against the benchmark portfolio's."""

    against: str
    """The benchmark portfolio's name, or `index`."""
    look: int | None
    """Number of this look at the window, from 1; None if the looks were not counted."""
    level: float
    """Level of significance of this look."""
    active_return: float
    alpha: AlphaTest | None
    """None if there are too few sessions, or if the hedged returns do not vary."""
    shift: ShiftTest | None
    betting: Betting


@dataclass(frozen=True)
class SharpeEstimate:
    """The window's own Sharpe ratio and the probability that it is above zero."""

    sharpe: float
    skew: float
    kurtosis: float
    probabilistic: float
    minimum_track_record_sessions: float | None


@dataclass(frozen=True)
class ShareAbove:
    """Share of random portfolios that did better; None if unknown."""

    cumulative_return: float | None
    sharpe: float | None


@dataclass(frozen=True)
class RandomDraws:
    """Outcomes of random static portfolios over the window, in quantiles."""

    count: int
    quantiles: tuple[float, ...]
    """Percent; the two fields below have a value for each."""
    cumulative_return: tuple[float, ...]
    sharpe: tuple[float, ...] | None
    share_above: ShareAbove
    histogram: Histogram
    """Counts of their cumulative returns."""


# --- the search -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class SelectedSharpe:
    """The chosen trial's Sharpe ratio on its selection window, and the best expected by luck."""

    sharpe: float
    probabilistic: float
    deflated: float
    expected_best: float
    trial_variance: float
    trial_variance_source: str
    trial_correlation: float
    effective_trials: float
    deflated_effective: float
    expected_best_effective: float


@dataclass(frozen=True)
class WindowOverfitting:
    """Probability of backtest overfitting in one selection window."""

    probability: float
    trials: int


@dataclass(frozen=True)
class OverfittingEstimate:
    """Probability of backtest overfitting (PBO), a mean over the selection windows."""

    probability: float
    loss_probability: float
    slope: float | None
    blocks: int
    splits: int
    trials: int
    windows: tuple[WindowOverfitting, ...]
    logits: Histogram


@dataclass(frozen=True)
class StepdownCount:
    """Trials ahead of the benchmark on the selection window, all tested together."""

    ahead: int
    trials: int
    best_p_value: float


@dataclass(frozen=True)
class NullSearch:
    """Best selection scores of the same search with and without information."""

    free: float | None
    """Best score on features that hold no information."""
    real: float | None
    metric: str
    """Name of the score."""

    @property
    def is_as_good(self) -> bool:
        """True where the search without information found a score at least as good."""
        return self.free is not None and self.real is not None and self.free >= self.real


@dataclass(frozen=True)
class Selection:
    """A diagnosis of the search on its selection window; no verdict rests on it."""

    trials: int | None
    """Number of strategies that were tried; None if unknown."""
    sharpe: SelectedSharpe | None
    overfitting: OverfittingEstimate | None
    romano_wolf: StepdownCount | None
    null_model: NullSearch | None
    sentence: str = ""


# --- the verdict ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """The judgement of one strategy's result over one window: likely skill or not, and why."""

    state: State
    sentences: tuple[str, ...]
    """The finding, the power of the test, and the evidence that would change the verdict."""
    strategy: str
    window: str
    """`train`, `validation`, `test`, `whole` for bars that were never split, or `foreign` for
    returns that came from elsewhere."""
    windows: tuple[str, ...]
    """Windows of the split that contain the bars."""
    is_seen: bool
    """The policy was trained or chosen on some of these bars."""
    is_ruined: bool
    has_traded: bool
    sessions: int
    sessions_a_year: int
    caveats: tuple[str, ...]
    """Assumptions that rule out likely skill; each completes "with ..."."""
    evidence: Evidence
    sharpe: SharpeEstimate | None
    intervals: Intervals
    excess: dict[str, Excess]
    """Excess over each baseline."""
    random_portfolios: RandomDraws | None
    selection: Selection
    tail: Tail | None = None
    is_stated_held_out: bool = False
    """The caller states that the strategy was chosen without these returns."""
    question: str = ACTIVE_RETURN
    """Question asked of the window; each registered claim is a question of its own."""
    registered: str = ""
    """The claim that named this window before it began (`verdict.claims`), as a clause."""
    trusted_columns: tuple[str, ...] = ()
    """Features that others computed; no test shows when their values were known."""
    notice: str = ""
    """Banner of a synthetic market."""
    survivors_bound: float | None = None
    """Alpha a year that a universe of survivors may have added; None for other universes."""

    def __post_init__(self) -> None:
        if not self.sentences:
            raise ValueError("has no sentence")
        if self.is_likely_skill and not self.shows_skill:
            raise ValueError("state is likely_skill, which its tests or caveats do not allow")

    @property
    def shows_skill(self) -> bool:
        """True if the tests are passed and nothing rules skill out."""
        alpha = self.evidence.alpha
        is_ahead = alpha is not None and alpha.p_value <= self.evidence.level
        is_excluded = self.is_seen or self.is_ruined or not self.has_traded or bool(self.caveats)
        is_held_out = self.window in (HELD_OUT, FOREIGN)
        return is_ahead and self.evidence.active_return > 0 and is_held_out and not is_excluded

    @property
    def text(self) -> str:
        """All sentences."""
        return " ".join(self.sentences)

    @property
    def is_likely_skill(self) -> bool:
        return self.state == "likely_skill"
