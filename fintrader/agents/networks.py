"""Actors and critics: they read the market once for each bar, and each account at that bar adds
what it holds.

All accounts at a bar see the same market. Observations therefore come as `Seen`: what is private to
each sample, the rows of the market that occur, and which of them each sample sees. Three kinds of
network read them:

`market_once`
    A trunk embeds every asset from the market's row alone, with weights that all assets share, and lets them see each
    other through the mean of their embeddings (https://arxiv.org/abs/1703.06114). From an embedding come coefficients:
    latents are linear in what the account shows, values quadratic. An account then costs a few numbers per asset, and
    the trunk, with an encoder of any depth, is paid for once a bar. Permuting the assets permutes the outputs, its size
    does not depend on their number, and what is learned on one asset holds for all.
`per_asset`
    The same trunk, but holdings enter it beside the features: it may do anything with them, once for every account.
`mlp`
    One row of numbers in. Its first layer is applied to market and account apart, to the former once a bar.

Where observations show more than one bar (`env.lookback`), an encoder can sum up each asset's last
bars (`mlp`: the whole market's) in a few numbers, which then stand beside what the newest bar says.
Without one, the bars before are plain further inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from fintrader.agents.fast.onednn import on_cpu
from fintrader.agents.layers import Dense, Hidden
from fintrader.agents.trunks import AccountTrunk, MarketTrunk, Mlp, NetworkSettings, Seen
from fintrader.envs.observation import FlatLayout, Layout, num_actions

COMMON_PACE = 0.25
"""Latents that are no asset's move this much slower than the others. While nothing is known yet,
exploration only costs money, and to hold or trade less of everything is what pays: cash must not be
all there is before it is known what else to hold."""


class Coefficients(NamedTuple):
    """What U bars make of an account, for each of `outputs`: latent = constant + slope · held +
    account · columns."""

    constant: Tensor
    """`[outputs, U, N]`"""
    slope: Tensor | None
    """`[outputs, U, N]`; None where holdings are not read."""
    common: Tensor | None
    """`[outputs, U, C]`: latents that are no asset's; None where there are none."""
    account: Tensor
    """`[outputs, U, A, L]`, A = 0 for networks that do not read the account's columns."""


class Actor(nn.Module):
    """`Seen` of R samples to `outputs` numbers for each latent: a tuple of `outputs` `[R, L]`.

    `L` is the number of actions N and the `common` latents that are no asset's, which stand last
    (see `ActionHead`).
    """

    def __init__(
        self,
        layout: Layout,
        settings: NetworkSettings,
        *,
        common: int,
        outputs: int = 1,
        out_gain: float = 0.01,
    ) -> None:
        super().__init__()
        settings = settings.resolved(layout)
        self.outputs = outputs
        self.kind = settings.kind
        width = settings.hidden[-1]
        if isinstance(layout, FlatLayout) or self.kind == "mlp":
            latents = num_actions(layout) + common
            self.mlp = Mlp(layout, latents * outputs, settings, batch_shape=(), out_gain=out_gain)
            return
        self.num_assets = layout.num_assets
        self.common = common
        self.account = 0
        self.holdings = False
        if self.kind == "per_asset":
            self.trunk: nn.Module = AccountTrunk(layout, settings, batch_shape=())
        else:
            self.trunk = MarketTrunk(layout, settings, batch_shape=())
            self.account = layout.account_width if settings.account else 0
            self.holdings = settings.holdings
        # market_once: see `Coefficients`.
        self.head = Dense(width, outputs * (1 + self.holdings + self.account), gain=out_gain)
        self.common_head = (
            Dense(width, outputs * (1 + self.account) * common, gain=out_gain) if common else None
        )

    @property
    def shares(self) -> bool:
        """Whether accounts at a bar share their outputs."""
        return self.kind == "market_once" and not self.holdings and not self.account

    def first(self, seen: Seen) -> tuple[Tensor, Tensor | None]:
        """The first of the outputs `[R, L]`; where accounts at a bar share theirs, `[U, L]` and
        each one's place."""
        if not self.shares:
            return self(seen)[0], None
        assert isinstance(self.trunk, MarketTrunk)
        h, mean = self.trunk.pooled(seen.rows)
        latent = self.head(h.flatten(0, 1)).view(*h.shape[:2], self.outputs)[..., 0]
        if self.common_head is not None:
            common = COMMON_PACE * self.common_head(mean)
            latent = torch.cat([latent, common[:, : self.common]], dim=-1)
        return latent, seen.place

    def forward(self, seen: Seen) -> tuple[Tensor, ...]:
        if self.kind == "mlp":
            out: Tensor = self.mlp(seen)
            return out.chunk(self.outputs, dim=-1)
        if self.kind == "market_once":
            return self.latents(seen, self.coefficients(seen.rows))
        h = self.trunk(seen)
        latent = self.head(h)
        if self.common_head is not None:
            common = COMMON_PACE * self.common_head(h.mean(dim=-2))
            latent = torch.cat([latent, common.unflatten(-1, (self.common, self.outputs))], dim=-2)
        parts: tuple[Tensor, ...] = latent.unbind(dim=-1)
        return parts

    def coefficients(self, rows: Tensor) -> Coefficients:
        """`market_once`: what the bars in `rows` `[U, L*W]` make latents of."""
        assert isinstance(self.trunk, MarketTrunk)
        h, mean = self.trunk.pooled(rows)
        own = (
            self.head(h.flatten(0, 1))
            .view(*h.shape[:2], self.outputs, -1)
            .permute(2, 3, 0, 1)
            .contiguous()
        )
        account = own[:, 1 + self.holdings :].transpose(1, 2)
        common = None
        if self.common_head is not None:
            both = COMMON_PACE * self.common_head(mean)
            both = both.view(rows.shape[0], self.outputs, -1, self.common).permute(1, 2, 0, 3)
            common = both[:, 0]
            account = torch.cat([account, both[:, 1:].transpose(1, 2)], dim=-1)
        return Coefficients(own[:, 0], own[:, 1] if self.holdings else None, common, account)

    def latents(self, seen: Seen, of: Coefficients) -> tuple[Tensor, ...]:
        """`market_once`: a tuple of `outputs` `[R, L]`."""
        parts = []
        for k in range(self.outputs):
            # What accounts share is put together before it is handed out.
            latent = (
                of.constant[k]
                if of.common is None
                else torch.cat([of.constant[k], of.common[k]], dim=-1)
            )
            latent = seen.spread(latent)
            if of.slope is not None:
                own = seen.spread(of.slope[k]) * seen.private[..., -self.num_assets :]
                latent = latent + nn.functional.pad(own, (0, latent.shape[-1] - self.num_assets))
            if self.account:
                columns = seen.private[..., : self.account].unsqueeze(-2)
                latent = latent + (columns @ seen.spread(of.account[k])).squeeze(-2)
            parts.append(latent)
        return tuple(parts)


class Critic(nn.Module):
    """Value `[R]` (`[K, R]` with `members`) of what is `Seen`, or of that with a latent `[R, L]`.

    `market_once` without latents: V = c + Σ_j (d_j + e_j x_j) x_j + mean_i (a_i + b_i h_i) h_i with
    the holdings h and, with `account`, the account's columns x; all coefficients are the bar's.
    With latents, which act on what is held in ways that no square describes, embeddings of the bar
    pass one more layer with them.
    """

    def __init__(
        self,
        layout: Layout,
        settings: NetworkSettings,
        *,
        latents: int = 0,
        members: int | None = None,
    ) -> None:
        super().__init__()
        settings = settings.resolved(layout)
        self.kind = settings.kind
        width = settings.hidden[-1]
        batch_shape = () if members is None else (members,)
        if isinstance(layout, FlatLayout) or self.kind == "mlp":
            self.mlp = Mlp(
                layout, 1, settings, latents=latents, batch_shape=batch_shape, out_gain=1.0
            )
            return
        self.num_assets = layout.num_assets
        if self.kind == "per_asset":
            self.trunk: nn.Module = AccountTrunk(
                layout, settings, latents=latents, batch_shape=batch_shape
            )
            self.head = Dense(width, 1, batch_shape=batch_shape, gain=1.0)
            return
        self.trunk = MarketTrunk(layout, settings, batch_shape=batch_shape)
        self.account = layout.account_width if settings.account else 0
        self.judges = latents > 0
        if self.judges:
            own = 2
            common = latents - layout.num_assets + self.account
            self.embedding = Dense(width, width, batch_shape=batch_shape)
            self.own = Dense(own, width, batch_shape=batch_shape)
            self.common = Dense(max(common, 1), width, batch_shape=batch_shape, gain=1.0)
            self.last = Hidden(width, settings.activation, layer_norm=settings.layer_norm)
            self.head = Dense(width, 1, batch_shape=batch_shape, gain=1.0)
        else:
            self.head = Dense(width, 2, batch_shape=batch_shape, gain=1.0)
            self.top = Dense(width, 1 + 2 * self.account, batch_shape=batch_shape, gain=1.0)

    def forward(self, seen: Seen, latent: Tensor | None = None) -> Tensor:
        if self.kind == "mlp":
            value: Tensor = self.mlp(seen, latent)
            return value.squeeze(-1)
        if self.kind == "per_asset":
            out: Tensor = self.head(self.trunk(seen, latent).mean(dim=-2)).squeeze(-1)
            return out
        return self._square(seen) if latent is None else self._judge(seen, latent)

    def _square(self, seen: Seen) -> Tensor:
        assert isinstance(self.trunk, MarketTrunk)
        count, (h, mean) = self.num_assets, self.trunk.pooled(seen.rows)
        # As `self.head(h)`, what belongs together side by side.
        each = torch.addmm(self.head.bias.unsqueeze(1), self.head.weight.t(), h.flatten(0, 1).t())
        each = each.view(2, *h.shape[:2])
        top = self.top(mean)
        private = seen.private
        if on_cpu(private) and private.ndim == 2 and not private.requires_grad:
            from fintrader.agents.fast.value import Quadratic

            place = torch.arange(len(private)) if seen.place is None else seen.place
            value: Tensor = Quadratic.apply(each, top, place, private)  # type: ignore[no-untyped-call]
        else:
            held = private[..., -count:]
            by_held = torch.addcmul(seen.spread(each[0]), seen.spread(each[1]), held)
            value = seen.spread(top[..., 0]) + torch.linalg.vecdot(by_held, held) / count
        if self.account:
            x = seen.private[..., : self.account]
            linear, square = seen.spread(top[..., 1:]).chunk(2, dim=-1)
            value = value + ((linear + square * x) * x).sum(-1)
        return value

    def _judge(self, seen: Seen, latent: Tensor) -> Tensor:
        count = self.num_assets
        h = self.embedding_of(seen.rows)
        h = seen.spread(h, h.ndim - 3)
        own = torch.stack(
            [seen.private[..., -count:].expand_as(latent[..., :count]), latent[..., :count]], dim=-1
        )
        common = torch.cat([seen.private[..., : self.account], latent[..., count:]], dim=-1)
        common = common if common.shape[-1] else torch.zeros_like(latent[..., :1])
        moved = self.own(own.flatten(-3, -2)).unflatten(-2, own.shape[-3:-1])
        h = self.last(h + moved + self.common(common).unsqueeze(-2))
        value: Tensor = self.head(h.mean(dim=-2)).squeeze(-1)
        return value

    def embedding_of(self, rows: Tensor) -> Tensor:
        """`[*batch_shape, U, N, H]`: what the bar adds to the last hidden layer."""
        h = self.trunk(rows)
        out: Tensor = self.embedding(h.flatten(-3, -2)).unflatten(-2, h.shape[-3:-1])
        return out
