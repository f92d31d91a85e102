"""Action heads: the map from an actor's latents to actions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fintrader.agents.settings import ActionHeadSettings
from fintrader.envs.observation import (
    FlatLayout,
    Layout,
    MarketTable,
    ObservationLayout,
    benchmark_of,
    holdings_of,
)
from fintrader.errors import ConfigError

EXTRA_LATENT_SCALE = 0.25
"""Scale of the latents that belong to no asset, such as cash. Early exploration only pays costs, so
an unscaled cash logit runs away before the network has learned which assets to hold."""
FOLLOWING_SHARE = 0.005
"""Active share of an aim (`tilt`) below which the account trades to it almost at once, whatever the
learned rate, so that it reaches the benchmark instead of only approaching it."""
RATE_PER_LATENT = 2.0
"""Logits of the trade rate per unit of latent (`tilt`): latents of -1 and 1 turn a rate of 0.2
into 0.03 and 0.65."""


class ActionHead:
    """`decode(obs, latent) -> action` in [-1, 1]; differentiable in both.

    `direct`
        `a = clip(z, -1, 1)`. For classic environments and for the environment's `trade` actions.
    `aim`
        For target weights. The latents are logits of an *aim* portfolio that includes cash:
        `a = softmax(scale · z + bias)`, with a bias for cash (`cash_logit`). The environment
        decides how much of the way is traded at each decision (`env.trade_rate`); below 1,
        exploration noise moves the account slowly instead of paying costs every bar.
    `tilt`
        For target weights around the benchmark's, b:
        `aim ∝ b · exp(max_log_tilt · tanh((z − Σ b z) / max_log_tilt))`. The action is part of the
        way from the holdings w to the aim, `a = w + rate · (aim − w)`; the rate is learned.
        Latents of 0 hold the benchmark: without evidence there is no bet. Idle money (cash, symbols
        that left the benchmark) goes into the aim at once. If the aim is the benchmark, the rate is
        1, so that the account holds it exactly.
    `weights`
        For weights that may be negative: `a = w + rate · (aim − w)`, with a learned rate for each
        asset. The aim is clip(z, -1, 1). Without shorts it is clip((1 + z) / 2, 0, 1), because an
        aim that began at 0 would clip away half of the exploration, and soon all of it.

    For the environment's `limit` actions the latents after those of the weights are limit prices
    (and stops), clipped to [-1, 1]; `quote` actions are prices alone, and `direct`.
    """

    def __init__(self, layout: Layout, settings: ActionHeadSettings) -> None:
        """Raises ConfigError for a `tilt` without a benchmark or without features to tilt by, and
        for weights where actions are only prices."""
        self.layout = layout
        self.settings = settings
        self.kind = settings.kind
        if isinstance(layout, FlatLayout):
            self.kind = "direct"
        elif layout.has_quotes:
            if self.kind not in ("auto", "direct"):
                raise ConfigError(
                    f"agent.head.kind {self.kind} makes weights, and env.action quote takes prices;"
                    " set agent.head.kind to auto or direct"
                )
            self.kind = "direct"
        elif self.kind == "auto":
            self.kind = "tilt" if layout.benchmark and layout.num_features else "aim"
        elif self.kind == "tilt" and not layout.benchmark:
            raise ConfigError(
                "agent.head.kind tilt needs a benchmark to tilt away from: set env.benchmark to"
                " equal_weight, or the head to aim"
            )
        elif self.kind == "tilt" and not layout.num_features:
            raise ConfigError(
                "agent.head.kind tilt needs features to tilt by: name some in data.features.names"
            )
        self.targets_weights = self.kind != "direct"
        extra = {"direct": 0, "weights": layout.num_assets, "aim": 1}
        self.extra = extra.get(self.kind, 2 - settings.fully_invested)
        """Number of latents after those of the actions: cash (`aim`); the trade rate, then cash
        (`tilt`); the trade rate of each asset (`weights`)."""
        self.latents = layout.num_actions + self.extra
        """L: width of the latent."""
        self.out_gain = 0.0 if self.kind == "tilt" else 0.01
        """Gain of an actor's last layer: an untrained `tilt` holds the benchmark."""

    def decode(self, obs: Tensor, latent: Tensor, table: MarketTable | None = None) -> Tensor:
        """Turn raw `obs`, flat `[B, D]` or clocked `[B, A + N + 1]`, and `latent [B, L]` into an
        action `[B, A]`; clocked observations need `table` `[T, L*W]`, the market's rows."""
        if self.kind == "direct":
            return latent.clamp(-1.0, 1.0)
        assert not isinstance(self.layout, FlatLayout)
        if not self.layout.resting:
            return self._decode_weights(self.layout, obs, latent, table)
        num_prices = self.layout.num_actions - self.layout.num_assets
        own, prices = latent.tensor_split([-num_prices], dim=-1)
        weights = self._decode_weights(self.layout, obs, own, table)
        return torch.cat([weights, prices.clamp(-1.0, 1.0)], dim=-1)

    def _decode_weights(
        self, layout: ObservationLayout, obs: Tensor, latent: Tensor, table: MarketTable | None
    ) -> Tensor:
        """Turn raw `obs` and the latents of weights into weights `[B, N]`."""
        if self.kind == "aim":
            return self.aim(latent)
        held = holdings_of(obs, layout)
        if self.kind == "weights":
            return self.approach(held, latent, layout.short)
        if obs.shape[-1] == layout.width:
            benchmark = benchmark_of(obs, layout)
        else:
            assert table is not None
            bar = obs[..., -1].detach().long()
            benchmark = table.parts[-2].index_select(0, bar)
        return self.tilt(benchmark.to(latent.dtype), held, latent)

    def aim(self, latent: Tensor) -> Tensor:
        """Compute the `aim` head's action `[B, N]` from latents `[B, L]`."""
        settings = self.settings
        assets = latent.shape[-1] - 1
        # Without log N, cash would weigh less the more assets there are.
        bias = torch.zeros(assets + 1, dtype=latent.dtype, device=latent.device)
        bias[assets:].fill_(math.log(assets) + settings.cash_logit)
        return torch.softmax(torch.add(bias, latent, alpha=settings.scale), dim=-1)[..., :assets]

    def tilt(self, benchmark: Tensor, held: Tensor, latent: Tensor) -> Tensor:
        """Compute the `tilt` head's action `[B, N]` from the benchmark's weights and the weights
        held, both `[B, N]`, and latents `[B, L]`."""
        settings = self.settings
        assets = benchmark.shape[-1]
        z = latent[..., :assets]
        z = (z - (benchmark * z).sum(-1, keepdim=True)) / settings.max_log_tilt
        tilted = benchmark * torch.exp(settings.max_log_tilt * torch.tanh(z))
        active = settings.tilt_scale * (_normalise(tilted) - benchmark)
        if settings.tilt_scale > 1:
            active = _normalise((benchmark + active).clamp_min(0.0)) - benchmark
        active_share = 0.5 * active.abs().sum(-1, keepdim=True)
        limit = settings.max_active_tilt
        active = active * (limit / active_share.clamp_min(limit))
        aim = benchmark + active
        if not settings.fully_invested:
            aim = aim * (1 - latent[..., assets + 1 :].clamp(0.0, 1.0))

        rate = self._decode_rate(latent[..., assets : assets + 1])
        rate = rate + (1 - rate) * torch.exp(-active_share / FOLLOWING_SHARE)

        held = torch.where(benchmark > 0, held, 0.0)
        idle = aim.sum(-1, keepdim=True) - held.sum(-1, keepdim=True)
        held = held + idle * _normalise(aim)
        return (held + rate * (aim - held)).clamp(0.0, 1.0)

    def approach(self, held: Tensor, latent: Tensor, short: int) -> Tensor:
        """Compute the `weights` head's action `[B, N]` from the weights held `[B, N]` and latents
        `[B, 2 N]`, aims and rates; `short` as in the layout."""
        aim, pace = latent.chunk(2, dim=-1)
        rate = self._decode_rate(pace)
        aim = clip_aim(aim)
        if not short:
            aim = 0.5 + 0.5 * aim
        return (held + rate * (aim - held)).clamp(-1.0, 1.0)

    def _decode_rate(self, latent: Tensor) -> Tensor:
        """Turn latents into trade rates; 0 gives `trade_rate`."""
        start = math.log(self.settings.trade_rate / (1 - self.settings.trade_rate))
        return torch.sigmoid(start + RATE_PER_LATENT * latent)


def clip_aim(aim: Tensor) -> Tensor:
    """Clip to [-1, 1]. Outside this range only gradients that lead back inside are passed on:
    without them, a latent that noise moved outside would never return."""
    clipped = aim.clamp(-1.0, 1.0)
    if not aim.requires_grad:
        return clipped
    beyond = (aim - clipped).detach()
    passing = aim - beyond
    passing.register_hook(  # type: ignore[no-untyped-call]
        lambda grad: torch.where(grad * beyond < 0, 0.0, grad)
    )
    return passing


def _normalise(weights: Tensor) -> Tensor:
    """Scale `weights [B, N]` to sum 1; all zero stays all zero."""
    return weights / weights.sum(-1, keepdim=True).clamp_min(1e-12)
