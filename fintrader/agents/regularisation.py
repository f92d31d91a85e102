"""What keeps an agent from learning its training window by heart: features that are hidden or noisy
for a while."""

from __future__ import annotations

import torch
from torch import Tensor

from fintrader.envs.observation import FlatLayout, Layout

POOL = 1009
"""Rows of noise that bars draw from: a prime, so that no rhythm of the market is one of the
noise."""


class Perturbation:
    """Standardised rows of the market with whole features hidden and noise on the others.

    What is hidden, and which noise a bar has, is drawn anew after every update and stays until
    then: acting and learning see the same. Features are hidden for all assets and bars, and the
    others enlarged to make up for them (https://jmlr.org/papers/v15/srivastava14a.html).
    """

    def __init__(
        self, layout: Layout, dropout: float, noise: float, generator: torch.Generator
    ) -> None:
        self.layout = layout
        self.dropout = dropout
        self.noise = noise
        self.generator = generator
        self.features = 0 if isinstance(layout, FlatLayout) else layout.num_features
        self.active = bool(self.features) and (dropout > 0 or noise > 0)
        self.drawn = torch.zeros(self.features + 2)
        """`[F + 2]`: factor of each feature; where in the pool bar 0 draws from, and the noise's
        sign."""
        self.pool: Tensor | None = None
        if self.active:
            self.redraw()

    def redraw(self) -> None:
        """Hide other features, and give bars other noise."""
        if not self.active:
            return
        kept = torch.rand(self.features + 2, generator=self.generator, device=self.generator.device)
        factor = (kept[:-2] >= self.dropout) / (1 - self.dropout)
        offset = (kept[-2] * POOL).floor()
        sign = 1 - 2 * (kept[-1] < 0.5).float()
        self.drawn = torch.cat([factor, offset.view(1), sign.view(1)])

    def __call__(self, rows: Tensor, bars: Tensor | None) -> Tensor:
        """`rows [U, L*W]` of the bars `[U]`; without their numbers, row i is taken for bar i."""
        layout = self.layout
        if not self.active or isinstance(layout, FlatLayout):
            return rows
        width = layout.num_assets * layout.num_features
        shown = rows.view(len(rows), layout.lookback, -1)
        drawn = self.drawn.to(rows.device)
        features = shown[..., :width] * drawn[:-2].repeat(layout.num_assets)
        if self.noise:
            back = torch.arange(layout.lookback - 1, -1, -1, device=rows.device)
            numbers = torch.arange(len(rows), device=rows.device) if bars is None else bars
            place = (numbers.unsqueeze(1) - back + drawn[-2].long()) % POOL
            features = features + self.noise * drawn[-1] * self._noise(rows)[place]
        return torch.cat([features, shown[..., width:]], dim=-1).flatten(1)

    def _noise(self, rows: Tensor) -> Tensor:
        """`[POOL, N*F]`: the same for every seed; which of it a bar gets is not."""
        if self.pool is None:
            own = torch.Generator().manual_seed(0)
            width = self.layout.num_assets * self.features  # type: ignore[union-attr]
            self.pool = torch.randn(POOL, width, generator=own).to(rows)
        return self.pool
