"""What turns what an actor says (a latent) into an action."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fintrader.config import Settings
from fintrader.envs.observation import FlatLayout, Layout, holdings_of, num_actions


class ActionHeadSettings(Settings):
    """How latents become actions."""

    kind: Literal["auto", "direct", "aim"] = "auto"
    """`aim` suits the environment's `target` actions, `direct` everything; `auto`: `aim` on markets."""
    scale: float = Field(default=4.0, gt=0)
    """Logits per unit of latent (`aim`): at 4, latents of ±1 concentrate almost all weight."""
    cash_logit: float = -1.0
    """Cash's logit at the start relative to all assets together (`aim`): -1 leaves about a quarter in cash."""
    band: float = Field(default=0.0, ge=0)
    """Gaps below `band / N` of equity are left alone (`aim`): the no-trade region of proportional costs."""
    shrinkage: float = Field(default=1.0, ge=0, le=1)
    """Part of the aim's distance to the benchmark that is taken (`tilt`): evidence below 1 shrinks towards the
    benchmark."""


class ActionHead:
    """`decode(obs, latent) -> action` in [-1, 1]; differentiable in both.

    `direct`
        `a = clip(z, -1, 1)`. For classic environments and for the environment's `trade` actions.
    `aim`
        For target weights. The latents are logits of an *aim* portfolio with cash in it, and the action is the aim, or
        the edge of a no-trade region around it: `a = w + shrink(softmax(scale · z) − w, band)` with the weights held
        w. How much of the way there is traded at each decision is the environment's to say (`env.trade_rate`); below
        1, exploration noise moves the account slowly instead of paying costs every bar.
    """

    def __init__(self, layout: Layout, settings: ActionHeadSettings) -> None:
        self.layout, self.settings = layout, settings
        self.targets_weights = settings.kind != "direct" and not isinstance(layout, FlatLayout)
        self.latents = num_actions(layout) + self.targets_weights
        """L: width of the latent."""

    def decode(self, obs: Tensor, latent: Tensor) -> Tensor:
        """Raw `obs [B, D]` and `latent [B, L]` to an action `[B, N]`."""
        if not self.targets_weights:
            return latent.clamp(-1.0, 1.0)
        assert not isinstance(self.layout, FlatLayout)
        settings, assets = self.settings, self.layout.num_assets
        # Without log N, cash would weigh less the more assets there are.
        bias = torch.zeros(assets + 1, dtype=latent.dtype, device=latent.device)
        bias[assets] = math.log(assets) + settings.cash_logit
        aim = torch.softmax(torch.add(bias, latent, alpha=settings.scale), dim=-1)[..., :assets]
        if settings.band == 0:
            return aim
        held = holdings_of(obs, self.layout)
        return (held + torch.nn.functional.softshrink(aim - held, settings.band / assets)).clamp(0.0, 1.0)
