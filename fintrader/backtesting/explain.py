"""What moved a policy's decisions: one input at a time is taken away, and the policy asked again.

Taken away means: a feature is shown at its mean over the window, for all symbols and all bars that
are shown; a column of context likewise; cash and holdings as those of an account that has just been
opened. What the policy would have held otherwise is what that input moved (occlusion: Zeiler and
Fergus, 2014, arXiv 1311.2901; the family: Covert, Lundberg and Lee, 2021, arXiv 2011.14878). It is
no cause: inputs that say the same share what they move, or hide one another.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fintrader.backtesting.account import BacktestAccount
from fintrader.envs import EnvSettings, ObservationLayout, Policy
from fintrader.market.tensors import MarketTensors
from fintrader.results.explanation import ExplainedDecision, Explanation

MOST_DECISIONS = 48
"""Decisions that are looked at, evenly spread over a backtest."""
MOST_NUMBERS = 20_000_000
"""Numbers in all observations that the policy is shown for that: with wide ones fewer decisions are
looked at."""
SYMBOLS = 5
"""Symbols told of each decision, those that its inputs moved most."""
OWN = "cash and holdings"
"""What the account shows of itself, taken away together."""


class Explainer:
    """Looks at decisions of a policy while a backtest makes them (`simulate(...,
    watch=explainer.look)`)."""

    def __init__(
        self, policy: Policy, market: MarketTensors, settings: EnvSettings, *, share: float = 1.0
    ) -> None:
        """`share`: this window's part of MOST_DECISIONS, where several windows make one
        backtest."""
        self.policy = policy
        self.names = (*market.feature_names, *market.context_names, OWN)
        self.bars = np.arange(0, market.num_bars - 1, settings.decision_interval)
        self._neutral = _means(market)
        layout = ObservationLayout.of(market, settings.lookback, benchmark=True)
        fit = MOST_NUMBERS // ((len(self.names) + 1) * layout.width)
        count = max(1, min(len(self.bars), round(share * MOST_DECISIONS), fit))
        self._due = {
            int(self.bars[k]) for k in np.linspace(0, len(self.bars) - 1, count).round().astype(int)
        }
        self.explained: list[ExplainedDecision] = []

    def look(self, account: BacktestAccount) -> None:
        """Note what moves the decision that the account stands at, if it is one of those to be
        looked at."""
        rows = account.rows
        if account.bar not in self._due or rows is None:  # factored observations cannot be changed
            return
        seen = torch.from_numpy(np.concatenate((account.private(), rows[account.bar])))
        nothing = torch.empty(0, dtype=torch.long), torch.empty(0)
        without = [nothing, *self._taken_away(account.layout)]
        at_once = max(1, MOST_NUMBERS // (len(self._due) * len(seen)))
        parts = [
            self._asked(seen, without[k : k + at_once]) for k in range(0, len(without), at_once)
        ]
        actions = np.concatenate(parts)
        if not np.isfinite(actions).all():  # said where the decision is carried out
            return
        worth = account.prices / account.equity
        weights = np.stack([account.holdings(action, exact=True) * worth for action in actions])
        raised = (
            weights[0] - weights[1:]
        )  # [I, N]: by how much each input raised each symbol's weight
        moved = 0.5 * (
            np.abs(raised).sum(axis=1) + np.abs(raised.sum(axis=1))
        )  # cash moves the other way
        time = np.datetime_as_string(
            account.market.minutes[account.bar].numpy().astype("M8[ns]"), unit="s"
        )
        first = np.argsort(-np.abs(raised).sum(axis=0), kind="stable")[:SYMBOLS]
        self.explained.append(
            ExplainedDecision(
                time=f"{time}Z",
                moved=_rounded(moved),
                symbols=tuple(account.market.symbols[k] for k in first),
                weights=_rounded(weights[0, first]),
                raised=tuple(_rounded(raised[:, k]) for k in first),
            )
        )

    def _asked(self, seen: Tensor, without: Sequence[tuple[Tensor, Tensor]]) -> NDArray[np.float32]:
        """`[K, N]`: the policy's actions, each with some columns of `seen` `[D]` showing something
        else."""
        shown = seen.repeat(len(without), 1)
        for row, (columns, values) in zip(shown, without, strict=True):
            row[columns] = values
        with torch.no_grad():
            return np.asarray(self.policy(shown).cpu().numpy(), dtype=np.float32)

    def _taken_away(self, layout: ObservationLayout) -> Sequence[tuple[Tensor, Tensor]]:
        """Of each input its columns in an observation, and what stands there instead."""
        assets = layout.num_assets
        features = layout.num_features
        context = layout.num_context
        parts = layout.slices
        width = layout.row_width
        # Where the bars that are shown begin: a history's rows, then the newest bar's, which is
        # laid out as they are.
        begins = torch.tensor(
            [parts["features"].start - back * width for back in range(layout.lookback)]
        )
        found = []
        for k in range(features):
            columns = (begins[:, None] + torch.arange(assets) * features + k).flatten()
            found.append((columns, self._neutral[k].expand(len(columns))))
        for k in range(context):
            columns = begins + width - context + k
            found.append((columns, self._neutral[features + k].expand(len(columns))))
        account = parts["account"]
        holdings = parts["holdings"]
        own = torch.cat(
            (
                torch.arange(account.start, account.start + 3),
                torch.arange(holdings.start, holdings.stop),
            )
        )
        opened = torch.zeros(len(own))
        opened[0] = 1.0  # all cash, no growth, no drawdown; the clock stays
        return [*found, (own, opened)]


def explain(strategy: str, explainers: Sequence[Explainer]) -> Explanation | None:
    """Put together what was examined, window after window; None where nothing was."""
    decisions = tuple(decision for explainer in explainers for decision in explainer.explained)
    if not decisions or len({explainer.names for explainer in explainers}) != 1:
        return None
    return Explanation(
        strategy=strategy,
        num_decisions=sum(len(explainer.bars) for explainer in explainers),
        inputs=explainers[0].names,
        decisions=decisions,
    )


def _means(market: MarketTensors) -> Tensor:
    """`[F + M]`: each feature's mean over what can be traded, each context column's over the
    window."""
    open_ = market.tradable.to(torch.bool)
    features = market.features[open_] if bool(open_.any()) else market.features.flatten(0, 1)
    parts = [features.to(torch.float64).mean(dim=0), market.context.to(torch.float64).mean(dim=0)]
    return torch.cat(parts).nan_to_num().to(torch.float32).cpu()


def _rounded(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(round(float(value), 6) for value in values)
