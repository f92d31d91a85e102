"""Networks by the name of their kind: `market_once`, `per_asset`, `mlp`.

Where observations show more than one bar (`env.lookback`), an encoder can sum up each asset's last
bars (`mlp`: the whole market's) in a few numbers, next to the newest bar. Without an encoder,
earlier bars are plain further inputs.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from fintrader.agents.encoders import make_encoder
from fintrader.agents.heads import ActionHead
from fintrader.agents.latent_critic import MarketOnceLatentCritic
from fintrader.agents.mlp import MlpActor, MlpCritic
from fintrader.agents.networks import Actor, Blueprint, MarketOnceActor, MarketOnceCritic
from fintrader.agents.per_asset import PerAssetActor, PerAssetCritic
from fintrader.agents.settings import NetworkSettings
from fintrader.envs.observation import FlatLayout, Layout
from fintrader.errors import ConfigError


def resolve_network(settings: NetworkSettings, layout: Layout, head: ActionHead) -> NetworkSettings:
    """Replace the kind `auto` by the kind that suits layout and head.

    Raises ConfigError for a network that cannot read the layout, or lacks the trade rates that the
    head needs.
    """
    suited = "market_once" if head.targets_weights else "per_asset"
    obstacle = ""
    if isinstance(layout, FlatLayout):
        obstacle = "reads a market's assets; set it to mlp or auto here"
    elif layout.resting:
        obstacle = (
            "does not read resting orders; set it to mlp or auto with env.action limit or quote"
        )
    elif head.kind == "weights":
        obstacle = (
            "has no trade rate for each asset, which agent.head.kind weights needs; set the network"
            " to mlp or auto"
        )
    if obstacle:
        suited = "mlp"
    if settings.kind == "auto":
        return settings.model_copy(update={"kind": suited})
    if obstacle and settings.kind != "mlp":
        raise ConfigError(f"agent.network.kind {settings.kind} {obstacle}")
    return settings


_ACTORS: dict[str, Callable[..., Actor]] = {
    "market_once": MarketOnceActor,
    "per_asset": PerAssetActor,
    "mlp": MlpActor,
}
_CRITICS: dict[str, Callable[..., nn.Module]] = {
    "market_once": MarketOnceLatentCritic,
    "per_asset": PerAssetCritic,
    "mlp": MlpCritic,
}


def make_actor(
    layout: Layout,
    settings: NetworkSettings,
    *,
    extra: int,
    outputs: int = 1,
    out_gain: float = 0.01,
) -> Actor:
    """Make the actor that resolved `settings` describe, with `outputs` numbers for each latent: one
    latent per action, and `extra` more."""
    plan = Blueprint(settings, make_encoder(layout, settings))
    kind = _ACTORS[settings.kind]
    return kind(layout, plan, extra=extra, outputs=outputs, out_gain=out_gain)


def make_critic(
    layout: Layout, settings: NetworkSettings, *, latents: int = 0, members: int | None = None
) -> nn.Module:
    """Make the critic that resolved `settings` describe. It maps a batch to values `[R]`; with
    `latents`, a batch and latents `[R, L]`. `members`: K critics as one network, `[K, R]`."""
    batch_shape = () if members is None else (members,)
    plan = Blueprint(settings, make_encoder(layout, settings, batch_shape), batch_shape)
    if settings.kind == "market_once" and not latents:
        assert members is None, "`members` needs `latents` here"
        assert not isinstance(layout, FlatLayout)
        return MarketOnceCritic(layout, plan)
    return _CRITICS[settings.kind](layout, plan, latents=latents)
