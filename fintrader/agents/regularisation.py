"""Regularisation: features that are hidden or noisy for a while keep an agent from overfitting its
training window."""

from __future__ import annotations

import torch
from torch import Tensor

from fintrader.agents.settings import BaseSettings
from fintrader.envs.observation import FlatLayout, Layout, ObservationLayout

POOL = 1009
"""Rows in the pool of noise: a prime, so that no cycle of the market has the noise's period."""


class Perturbation:
    """Transform of standardised market rows: hides whole features, adds noise to others.

    The hidden features and the noise of each bar change only after an update: acting and learning
    see the same. Features are hidden for all assets and bars, and the others enlarged to make up
    for them (https://jmlr.org/papers/v15/srivastava14a.html).
    """

    def __init__(
        self, layout: ObservationLayout, dropout: float, noise: float, generator: torch.Generator
    ) -> None:
        self.layout = layout
        self.dropout = dropout
        self.noise = noise
        self.generator = generator
        self.drawn = torch.zeros(layout.num_features + 2)
        """`[F + 2]`: factor of each feature; the pool row of bar 0, and the noise's sign."""
        self._pool: Tensor | None = None
        self.redraw()

    def redraw(self) -> None:
        """Draw anew which features are hidden, and the noise of the bars."""
        features = len(self.drawn) - 2
        uniform = torch.rand(features + 2, generator=self.generator, device=self.generator.device)
        factor = (uniform[:-2] >= self.dropout) / (1 - self.dropout)
        offset = (uniform[-2] * POOL).floor()
        sign = 1 - 2 * (uniform[-1] < 0.5).float()
        self.drawn = torch.cat([factor, offset.view(1), sign.view(1)])

    def __call__(self, rows: Tensor, bars: Tensor | None) -> Tensor:
        """Perturb `rows [U, L*W]` of `bars [U]`; if None, row i counts as bar i."""
        layout = self.layout
        width = layout.num_assets * layout.num_features
        shown = rows.view(len(rows), layout.lookback, -1)
        drawn = self.drawn.to(rows.device)
        features = shown[..., :width] * drawn[:-2].repeat(layout.num_assets)
        if self.noise:
            back = torch.arange(layout.lookback - 1, -1, -1, device=rows.device)
            numbers = torch.arange(len(rows), device=rows.device) if bars is None else bars
            places = (numbers.unsqueeze(1) - back + drawn[-2].long()) % POOL
            features = features + self.noise * drawn[-1] * self._draw_pool(rows)[places]
        return torch.cat([features, shown[..., width:]], dim=-1).flatten(1)

    def _draw_pool(self, rows: Tensor) -> Tensor:
        """Get the noise `[POOL, N*F]`: equal for all seeds; `drawn` has offset and sign."""
        if self._pool is None:
            stream = torch.Generator().manual_seed(0)
            width = self.layout.num_assets * self.layout.num_features
            self._pool = torch.randn(POOL, width, generator=stream).to(rows)
        return self._pool


def make_perturbation(
    layout: Layout, settings: BaseSettings, generator: torch.Generator
) -> Perturbation | None:
    """Make the perturbation that `settings` ask for; None where there is nothing to hide."""
    if isinstance(layout, FlatLayout) or not layout.num_features:
        return None
    if not settings.feature_dropout and not settings.feature_noise:
        return None
    return Perturbation(layout, settings.feature_dropout, settings.feature_noise, generator)
