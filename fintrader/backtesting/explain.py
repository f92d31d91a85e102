"""Influence of each input on a policy's decisions, by occlusion: remove one input and ask again.

A removed feature or context column shows its mean over the window, for all symbols and bars;
removed cash and holdings are those of a new account. The influence is the change of the target
weights (occlusion: Zeiler and Fergus, 2014, arXiv 1311.2901; the family: Covert, Lundberg and Lee,
2021, arXiv 2011.14878). It is not causation: redundant inputs share their influence or hide each
other's.
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
"""Decisions to examine, evenly spread over a backtest."""
MOST_NUMBERS = 20_000_000
"""Numbers in all altered observations together: wide observations allow fewer decisions."""
SYMBOLS = 5
"""Symbols listed for each decision: those with the largest changes."""
OWN = "cash and holdings"
"""Name of the account's own columns, which are removed together."""


class Explainer:
    """An examiner of decisions during a backtest: `simulate(..., watch=explainer.look)`."""

    def __init__(
        self, policy: Policy, market: MarketTensors, settings: EnvSettings, *, share: float = 1.0
    ) -> None:
        """Choose the decisions to examine; `share` is this window's part of MOST_DECISIONS, if
        several windows make one backtest."""
        self.policy = policy
        self.names = (*market.feature_names, *market.context_names, OWN)
        self.bars = np.arange(0, market.num_bars - 1, settings.decision_interval)
        self._neutral = _average_columns(market)
        layout = ObservationLayout.of(market, settings.lookback, benchmark=True)
        fit = MOST_NUMBERS // ((len(self.names) + 1) * layout.width)
        count = max(1, min(len(self.bars), round(share * MOST_DECISIONS), fit))
        self._due = {
            int(self.bars[k]) for k in np.linspace(0, len(self.bars) - 1, count).round().astype(int)
        }
        self.explained: list[ExplainedDecision] = []

    def look(self, account: BacktestAccount) -> None:
        """Examine the account's present decision, if it is a chosen one."""
        rows = account.rows
        if account.bar not in self._due or rows is None:  # factored observations cannot be changed
            return
        seen = torch.from_numpy(np.concatenate((account.private(), rows[account.bar])))
        removed = range(-1, len(self.names))  # nothing, then each input
        at_once = max(1, MOST_NUMBERS // (len(self._due) * len(seen)))
        parts = [
            self._ask(account.layout, seen, removed[k : k + at_once])
            for k in range(0, len(removed), at_once)
        ]
        actions = np.concatenate(parts)
        if not np.isfinite(actions).all():  # `trade` raises the error
            return
        worth = account.prices / account.equity
        weights = np.stack([account.holdings(action, exact=True) * worth for action in actions])
        # Rise of each symbol's weight by each input, [I, N]; cash moves the other way.
        raised = weights[0] - weights[1:]
        moved = 0.5 * (np.abs(raised).sum(axis=1) + np.abs(raised.sum(axis=1)))
        time = np.datetime_as_string(account.market.timestamps()[account.bar], unit="s")
        first = np.argsort(-np.abs(raised).sum(axis=0), kind="stable")[:SYMBOLS]
        self.explained.append(
            ExplainedDecision(
                time=f"{time}Z",
                moved=_round(moved),
                symbols=tuple(account.market.symbols[k] for k in first),
                weights=_round(weights[0, first]),
                raised=tuple(_round(raised[:, k]) for k in first),
            )
        )

    def _ask(
        self, layout: ObservationLayout, seen: Tensor, removed: Sequence[int]
    ) -> NDArray[np.float32]:
        """Ask the policy for actions `[K, N]`, each on an observation `seen` `[D]` without one
        input."""
        shown = torch.stack([self._remove(layout, seen, k) for k in removed])
        with torch.no_grad():
            return np.asarray(self.policy(shown).cpu().numpy(), dtype=np.float32)

    def _remove(self, layout: ObservationLayout, seen: Tensor, k: int) -> Tensor:
        """Copy an observation with the neutral value in place of input number k, in all bars
        shown."""
        shown = seen.clone()
        parts = layout.split(shown)
        history = parts.get("history", shown.new_empty(0, layout.row_width))
        count = layout.num_features
        if k < 0:
            return shown
        if k < count:
            parts["features"][:, k] = self._neutral[k]
            history[:, k : layout.num_assets * count : count] = self._neutral[k]
        elif k < len(self._neutral):
            parts["context"][k - count] = self._neutral[k]
            history[:, k - len(self._neutral)] = self._neutral[k]  # from a row's end
        else:
            # all cash, no growth, no drawdown; the clock stays
            parts["account"][:3] = torch.tensor([1.0, 0.0, 0.0])
            parts["holdings"][:] = 0.0
        return shown


def explain(strategy: str, explainers: Sequence[Explainer]) -> Explanation | None:
    """Join all windows' examined decisions; None without any, or if their inputs differ."""
    decisions = tuple(decision for explainer in explainers for decision in explainer.explained)
    if not decisions or len({explainer.names for explainer in explainers}) != 1:
        return None
    return Explanation(
        strategy=strategy,
        num_decisions=sum(len(explainer.bars) for explainer in explainers),
        inputs=explainers[0].names,
        decisions=decisions,
    )


def _average_columns(market: MarketTensors) -> Tensor:
    """Compute means `[F + M]`: of features over the tradable symbols and bars, of context over the
    window."""
    open_ = market.tradable.to(torch.bool)
    shown = open_ if bool(open_.any()) else torch.ones_like(open_)
    # Some bars at a time: a copy of all features would take as much memory as the market.
    total = torch.zeros(market.num_features, dtype=torch.float64, device=market.device)
    for part, which in zip(
        torch.split(market.features, 4096), torch.split(shown, 4096), strict=True
    ):
        total += part[which].sum(dim=0, dtype=torch.float64)
    means = (total / shown.sum(), market.context.mean(dim=0, dtype=torch.float64))
    return torch.cat(means).nan_to_num().to(torch.float32).cpu()


def _round(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(round(float(value), 6) for value in values)
