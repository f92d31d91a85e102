"""Action heads: the map from an actor's latents to actions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fintrader.agents.rebalancing import approach, tilt
from fintrader.agents.settings import ActionHeadSettings
from fintrader.envs.observation import (
    FlatLayout,
    Layout,
    MarketTable,
    ObservationLayout,
    select_benchmark,
    select_holdings,
)
from fintrader.errors import ConfigError

EXTRA_LATENT_SCALE = 0.25
"""Scale of the latents that belong to no asset, such as cash (not in an `mlp`). Early exploration only pays costs, so
an unscaled cash logit runs away before the network has learned which assets to hold."""


class ActionHead:
    """`decode(obs, latent) -> action` in [-1, 1]; differentiable in both.

    `direct`
        `a = clip(z, -1, 1)`. For classic environments and for the environment's `trade` actions.
    `aim`
        For target weights. The latents are logits of an *aim* portfolio that includes cash:
        `a = softmax(scale · z + bias)`, with a bias of log N + `cash_logit` for cash. The
        environment decides how much of the way is traded at each decision (`env.trade_rate`); below 1,
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

    For the environment's `limit` actions the last latents are limit prices (and stops), clipped to
    [-1, 1]; `quote` actions are prices alone, and `direct`.
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
        """Number of latents between those of weights and prices: cash (`aim`); the trade rate, then
        cash (`tilt`); the trade rate of each asset (`weights`)."""
        self.latents = layout.num_actions + self.extra
        """L: width of the latent."""
        self.out_gain = 0.0 if self.kind == "tilt" else 0.01
        """Gain of an actor's last layer: an untrained `tilt` holds the benchmark."""

    def decode(self, obs: Tensor, latent: Tensor, table: MarketTable | None = None) -> Tensor:
        """Turn raw `obs` and `latent [B, L]` into an action `[B, num_actions]`. `obs`: `[B, D]`, or
        the private part and the bar's number `[B, P + 1]`, with the market's rows, `table`."""
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
        held = select_holdings(obs, layout)
        if self.kind == "weights":
            return approach(held, latent, self.settings, short=layout.short)
        if obs.shape[-1] == layout.width:
            benchmark = select_benchmark(obs, layout)
        else:
            assert table is not None
            bar = obs[..., -1].detach().long()
            benchmark = table.parts[-2].index_select(0, bar)
        return tilt(benchmark.to(latent.dtype), held, latent, self.settings)

    def aim(self, latent: Tensor) -> Tensor:
        """Compute the `aim` head's action `[B, N]` from latents `[B, L]`."""
        settings = self.settings
        assets = latent.shape[-1] - 1
        # Without log N, cash would weigh less the more assets there are.
        bias = torch.zeros(assets + 1, dtype=latent.dtype, device=latent.device)
        bias[assets:].fill_(math.log(assets) + settings.cash_logit)
        return torch.softmax(torch.add(bias, latent, alpha=settings.scale), dim=-1)[..., :assets]
