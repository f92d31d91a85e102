"""What turns what an actor says (a latent) into an action."""

from __future__ import annotations

import math
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from fintrader.config import Settings
from fintrader.envs.observation import FlatLayout, Layout, benchmark_of, holdings_of, num_actions
from fintrader.errors import ConfigError

STILL = 0.005
"""Active share of an aim at which most of its drift is still corrected at once (`tilt`)."""
RATE_PACE = 2.0
"""Logits of the trade rate per unit of latent (`tilt`)."""


MOST_CONVICTION = 4.0
"""Times a learned tilt that a portfolio may hold: beyond, it is no longer what was learned."""


class ActionHeadSettings(Settings):
    """How latents become actions."""

    kind: Literal["auto", "direct", "aim", "tilt"] = "auto"
    """`tilt` and `aim` suit the environment's `target` actions, `direct` everything; `auto`: on
    markets `tilt` where there is a benchmark (`env.benchmark`), else `aim`."""
    scale: float = Field(default=4.0, gt=0)
    """Logits per unit of latent (`aim`): at 4, latents of ±1 concentrate almost all weight."""
    cash_logit: float = -1.0
    """Cash's logit at the start relative to all assets together (`aim`): -1 leaves about a quarter
    in cash."""
    band: float = Field(default=0.0, ge=0)
    """Gaps below `band / N` of equity are left alone (`aim`): the no-trade region of proportional
    costs."""
    trust: float = Field(default=1.0, gt=0)
    """Most that a weight's logarithm departs from its benchmark's (`tilt`), before weights are made
    to sum to 1."""
    max_active_tilt: float = Field(default=1.0, gt=0, le=1)
    """Most of the portfolio that lies elsewhere than the benchmark's (`tilt`): the active share ½
    Σ|w − b|."""
    fully_invested: bool = True
    """Hold no cash (`tilt`); else how much of it is learned, from none."""
    trade_rate: float = Field(default=0.2, gt=0, lt=1)
    """Part of the way to its aim that a decision trades, at the start; then it is learned
    (`tilt`)."""
    conviction: float = Field(default=1.0, ge=0, le=MOST_CONVICTION)
    """Times the aim's distance to the benchmark that is taken (`tilt`), as far as no weight becomes
    negative: what evidence leaves of it, or makes of it."""


class ActionHead:
    """`decode(obs, latent) -> action` in [-1, 1]; differentiable in both.

    `direct`
        `a = clip(z, -1, 1)`. For classic environments and for the environment's `trade` actions.
    `aim`
        For target weights. The latents are logits of an *aim* portfolio with cash in it, and the action is the aim, or
        the edge of a no-trade region around it: `a = w + shrink(softmax(scale · z) − w, band)` with the weights held
        w. How much of the way there is traded at each decision is the environment's to say (`env.trade_rate`); below
        1, exploration noise moves the account slowly instead of paying costs every bar.
    `tilt`
        For target weights around the benchmark's, b: `aim ∝ b · exp(trust · tanh((z − Σ b z) / trust))`, and the action
        lies part of the way from what is held to the aim, `a = w + rate · (aim − w)`, where the rate is learned, too.
        Latents of 0 hold the benchmark: where there is no evidence nothing is bet. What is idle (cash, names that left
        the benchmark) goes into the aim at once, and an aim that is the benchmark itself is followed at a rate of 1, so
        that it is held exactly.
    """

    def __init__(self, layout: Layout, settings: ActionHeadSettings) -> None:
        """Raises ConfigError for a `tilt` without a benchmark or without features to tilt by."""
        self.layout = layout
        self.settings = settings
        self.kind = settings.kind
        if isinstance(layout, FlatLayout):
            self.kind = "direct"
        elif self.kind == "auto":
            self.kind = "tilt" if layout.benchmark and layout.num_features else "aim"
        if self.kind == "tilt" and not isinstance(layout, FlatLayout):
            if not layout.benchmark:
                raise ConfigError(
                    "agent.head.kind tilt needs a benchmark to tilt away from: set env.benchmark to"
                    " equal_weight, or the head to aim"
                )
            if not layout.num_features:
                raise ConfigError(
                    "agent.head.kind tilt needs features to tilt by: name some in"
                    " data.features.names"
                )
        self.targets_weights = self.kind != "direct"
        self.common = {"direct": 0, "aim": 1, "tilt": 2 - settings.fully_invested}[self.kind]
        """Latents that are no asset's and stand last: cash; or the trade rate, and cash where it
        may be held."""
        self.latents = num_actions(layout) + self.common
        """L: width of the latent."""
        self.out_gain = 0.0 if self.kind == "tilt" else 0.01
        """Gain of an actor's last layer: what is untrained holds the benchmark."""

    def decode(self, obs: Tensor, latent: Tensor, table: Tensor | None = None) -> Tensor:
        """Raw `obs`, flat `[B, D]` or clocked `[B, A + N + 1]`, and `latent [B, L]` to an action
        `[B, N]`; `table` `[T, L*W]` belongs to clocks."""
        if self.kind == "direct":
            return latent.clamp(-1.0, 1.0)
        assert not isinstance(self.layout, FlatLayout)
        held = holdings_of(obs, self.layout)
        if self.kind == "tilt":
            if obs.shape[-1] == self.layout.width:
                benchmark = benchmark_of(obs, self.layout)
            else:
                assert table is not None
                benchmark = benchmark_of(table, self.layout).index_select(
                    0, obs[..., -1].detach().long()
                )
            return self.tilt(benchmark.to(latent.dtype), held, latent)
        settings = self.settings
        assets = self.layout.num_assets
        # Without log N, cash would weigh less the more assets there are.
        bias = torch.zeros(assets + 1, dtype=latent.dtype, device=latent.device)
        bias[assets] = math.log(assets) + settings.cash_logit
        aim = torch.softmax(torch.add(bias, latent, alpha=settings.scale), dim=-1)[..., :assets]
        if settings.band == 0:
            return aim
        return (held + torch.nn.functional.softshrink(aim - held, settings.band / assets)).clamp(
            0.0, 1.0
        )

    def tilt(self, benchmark: Tensor, held: Tensor, latent: Tensor) -> Tensor:
        """`[B, N]`, from the benchmark's weights and those held, both `[B, N]`, and latents `[B,
        L]`."""
        settings = self.settings
        assets = benchmark.shape[-1]
        z = latent[..., :assets]
        z = (z - (benchmark * z).sum(-1, keepdim=True)) / settings.trust
        raised = benchmark * torch.exp(settings.trust * torch.tanh(z))
        active = settings.conviction * (_shares(raised) - benchmark)
        if settings.conviction > 1:
            active = _shares((benchmark + active).clamp_min(0.0)) - benchmark
        share = 0.5 * active.abs().sum(-1, keepdim=True)
        active = active * (settings.max_active_tilt / share.clamp_min(settings.max_active_tilt))
        aim = benchmark + active
        if not settings.fully_invested:
            aim = aim * (1 - latent[..., assets + 1 :].clamp(0.0, 1.0))
        start = math.log(settings.trade_rate / (1 - settings.trade_rate))
        rate = torch.sigmoid(start + RATE_PACE * latent[..., assets : assets + 1])
        rate = rate + (1 - rate) * torch.exp(-share / STILL)
        held = torch.where(benchmark > 0, held, torch.zeros_like(held))
        idle = aim.sum(-1, keepdim=True) - held.sum(-1, keepdim=True)
        held = held + idle * _shares(aim)
        return (held + rate * (aim - held)).clamp(0.0, 1.0)


def _shares(weights: Tensor) -> Tensor:
    """`weights [B, N]` in proportion, with sum 1; 0 where all are 0."""
    return weights / weights.sum(-1, keepdim=True).clamp_min(1e-12)
