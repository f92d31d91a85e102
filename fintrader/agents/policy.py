"""Policies and their files: networks, head, and the statistics of observations.

A policy file is safetensors with a JSON header and a content hash. `load_policy(path)` returns a
module that maps raw observations `[B, D]` to actions `[B, N]`, deterministically, on any device;
with `universe=market` it trades other symbols than those of its training.
"""

from __future__ import annotations

import copy
import io
import logging
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fintrader.agents.checkpoint import Json, load_module, read_tensors, write_tensors
from fintrader.agents.description import (
    ActorDescription,
    EnsembleDescription,
    EnsembleMode,
    MarketIdentity,
    PolicyDescription,
)
from fintrader.agents.heads import ActionHead
from fintrader.agents.network_kinds import make_actor, resolve_network
from fintrader.agents.normalisation import ObservationNormaliser
from fintrader.agents.settings import ActionHeadSettings, NetworkSettings
from fintrader.agents.transfer import transfer
from fintrader.config import validate
from fintrader.envs.observation import FlatLayout, Layout, layout_from_json, layout_to_json
from fintrader.errors import CheckpointError, ConfigError, check_keywords, install_command
from fintrader.files import write_bytes
from fintrader.market.tensors import MarketTensors

if TYPE_CHECKING:
    from fintrader.agents.fast.members import BoundNetworks

FORMAT = "fintrader-policy-5"


class PolicyModule(nn.Module):
    """Base of all policies: `policy(obs [B, D]) -> action [B, N]` in [-1, 1], deterministic."""

    layout: Layout
    meta: Json
    """Plain JSON given to `save_policy`, e.g. lineage and scores. `market` identifies the training
    market or, for a policy moved to other symbols, their market; `transfer` then names the symbols
    `trained_on` and `traded_on`. `seen` lists the bars that the policy was trained or chosen on
    (`BarSpan.to_json`)."""

    def describe(self) -> PolicyDescription:
        """Describe the module as plain JSON from which it can be built again, without weights."""
        raise TypeError(f"{type(self).__name__} cannot be stored as a policy")

    def bind(self, rows: NDArray[np.float32]) -> BoundNetworks | None:
        """Bind the policy to the market rows `[T, L*W]` of one window, for one account at a time.

        Return None where only the networks themselves can act: off the CPU, on a classic
        environment, with orders that rest, an encoder before an `mlp`, weights that are not finite,
        or for a user's own module.
        """
        whole = self if isinstance(self, EnsemblePolicy) else EnsemblePolicy([self])
        members = [one for one in whole.members if type(one) is ActorPolicy]
        if len(members) < len(whole.members):
            return None
        if isinstance(self.layout, FlatLayout) or self.layout.market_width != rows.shape[1]:
            return None
        networks = [one.network for one in members]
        encodes_rows = any(one.kind == "mlp" and one.encoder != "none" for one in networks)
        if self.layout.resting or encodes_rows:
            return None
        rows = rows if rows.strides[1] == rows.itemsize else np.ascontiguousarray(rows)
        if not all(
            tensor.is_cpu and bool(tensor.isfinite().all()) for tensor in self.state_dict().values()
        ):
            return None
        from fintrader.agents.fast.members import BoundNetworks

        # The median takes no weights.
        shares = whole.weights.numpy().astype(np.float32)[: 0 if whole.mode == "vote" else None]
        return BoundNetworks(members, shares, rows)

    def save(self, path: Path | str, meta: Json | None = None) -> None:
        """Write the policy as one file for `load_policy`; see `save_policy`."""
        save_policy(self, path, meta)

    def check_market(self, market: MarketTensors) -> None:
        """Raises CheckpointError unless `market` has the symbols, columns and standardisation that
        this policy was trained on."""
        if self.meta.get("market") is None:
            return
        trained = MarketIdentity.from_json(self.meta["market"])
        actual = MarketIdentity.of(market)
        differ = next(
            (name for name in vars(actual) if getattr(trained, name) != getattr(actual, name)), None
        )
        if differ in ("normalisation", "normalisation_hash"):
            there = trained.normalisation_hash or "not known"
            here = actual.normalisation_hash or "not known"
            raise CheckpointError(
                f"this policy was trained on rows scaled by other statistics ({there}; this market:"
                f" {here}): build this market with data.features.normalisation set to the training"
                " market (its file, or its build.json), or rescale these rows:"
                " load_policy(path, universe=market)"
            )
        if differ is not None:
            raise CheckpointError(
                f"this policy was trained on another market: its {differ.replace('_', ' ')} differ;"
                " use the market it was trained on, train a policy for this one, or trade this one"
                " with the policy as it is: load_policy(path, universe=market)"
            )


class ActorPolicy(PolicyModule):
    """Standardise the observation, ask the actor, decode its latent."""

    def __init__(
        self,
        layout: Layout,
        network: NetworkSettings,
        head: ActionHeadSettings,
        *,
        outputs: int = 1,
        squash: bool = False,
    ) -> None:
        super().__init__()
        self.layout = layout
        self.outputs = outputs
        self.squash = squash
        self.head = ActionHead(layout, head)
        self.network = resolve_network(network, layout, self.head)
        self.meta = {}
        self.actor = make_actor(
            layout,
            self.network,
            extra=self.head.extra,
            outputs=outputs,
            out_gain=self.head.out_gain,
        )
        self.normaliser = ObservationNormaliser(layout)

    def forward(self, obs: Tensor) -> Tensor:
        latent = self.actor(self.normaliser.normalise(obs))[0]
        return self.head.decode(obs, torch.tanh(latent) if self.squash else latent)

    def describe(self) -> ActorDescription:
        return {
            "kind": "actor",
            "layout": layout_to_json(self.layout),
            "network": self.network.model_dump(mode="json"),
            "head": self.head.settings.model_dump(mode="json"),
            "outputs": self.outputs,
            "squash": self.squash,
        }


class EnsemblePolicy(PolicyModule):
    """K policies as one.

    `mean` averages the members' actions, `weighted` averages by `weights` (e.g. validation scores;
    normalised to sum to 1), and `vote` takes each asset's median action, which no single member
    can move far (mean of the middle two when K is even).
    """

    weights: Tensor

    def __init__(
        self,
        members: Sequence[PolicyModule],
        weights: Sequence[float] | None = None,
        mode: EnsembleMode = "mean",
    ) -> None:
        super().__init__()
        if not members:
            raise ConfigError("an ensemble needs at least one member")
        if mode not in ("mean", "weighted", "vote"):
            raise ConfigError(f"unknown ensemble mode {mode!r}; choose mean, weighted or vote")
        first = members[0].layout
        if any(member.layout != first for member in members):
            raise CheckpointError(
                "the members of an ensemble must share one market layout; leave out the others"
            )
        shares = [1.0] * len(members)
        if weights is not None and mode != "mean":
            shares = [float(weight) for weight in weights]
        is_valid = len(shares) == len(members) and all(share >= 0 for share in shares)
        if not is_valid or not sum(shares) > 0:
            raise ConfigError(
                "ensemble weights: one non-negative number for each member, not all zero"
            )
        self.layout = first
        self.mode = mode
        self.meta = {}
        for member in members:
            add_seen(self.meta, getattr(member, "meta", {}).get("seen", ()))
        self.members = nn.ModuleList(members)
        self.register_buffer("weights", torch.tensor(shares, dtype=torch.float64) / sum(shares))

    def forward(self, obs: Tensor) -> Tensor:
        actions = torch.stack([member(obs) for member in self.members])
        if self.mode == "vote":
            # The median; the mean of the middle two when K is even.
            return actions.quantile(0.5, dim=0)
        weights = self.weights.to(actions.dtype).view(-1, *[1] * (actions.ndim - 1))
        return (actions * weights).sum(dim=0)

    def describe(self) -> EnsembleDescription:
        members = [member.describe() for member in self.members if isinstance(member, PolicyModule)]
        return {"kind": "ensemble", "mode": self.mode, "members": members}


def add_seen(meta: dict[str, Any], spans: Iterable[Mapping[str, Any]]) -> None:
    """Add bars that a policy has learned from to its meta, each of them once."""
    seen = list(meta.get("seen", ()))
    for span in spans:
        if span not in seen:
            seen.append(dict(span))
    if seen:
        meta["seen"] = seen


@check_keywords
def save_policy(
    policy: Any,
    path: Path | str,
    meta: Json | None = None,
    *,
    market: MarketTensors | None = None,
) -> None:
    """Write a `PolicyModule`, or the `policy` of an agent or a training's result, as one file.

    `meta` is plain JSON without NaN; with `market` its symbols and columns are stored, so that the
    file refuses another market (see `load_policy`). Equal policies and meta give equal bytes.

    Raises CheckpointError for a policy of another kind.
    """
    module = getattr(policy, "policy", policy)
    if not isinstance(module, PolicyModule):
        order = "; write save_policy(policy, path)" if isinstance(policy, str | Path) else ""
        raise CheckpointError(
            f"{type(policy).__name__} holds no policy of fintrader's agents, the only kind that is"
            f" stored{order}"
        )
    merged = {**module.meta, **(meta or {})}
    if market is not None:
        merged["market"] = MarketIdentity.of(market).to_json()
    header = {"format": FORMAT, "policy": module.describe(), "meta": merged}
    write_tensors(Path(path), module.state_dict(), header)


@check_keywords
def load_policy(
    path: Path | str,
    *,
    market: MarketTensors | None = None,
    universe: MarketTensors | None = None,
    device: torch.device | str = "cpu",
) -> PolicyModule:
    """Read a file of `save_policy`, in evaluation mode and without gradients.

    `market`: the market that the policy was trained on, or a window of it; any other is refused.
    `universe`: the market to trade instead, with other symbols in any number; its columns and bar
    length must equal the training market's. Its rows are rescaled to the training market's
    statistics (both markets name theirs in `meta["normalisation"]`), and `meta["transfer"]` names
    both sets of symbols.

    Raises CheckpointError when the file is missing, truncated, tampered with or of another version,
    when it was trained on other symbols, columns or statistics (`market`), or when it cannot
    trade such rows (`universe`): `mlp` networks know symbols by position and never can. Raises
    ConfigError when both a market and a universe are given.
    """
    if market is not None and universe is not None:
        raise ConfigError(
            "load_policy: `market` is the one that the policy was trained on, `universe` another"
            " one to trade; give one"
        )
    tensors, header = read_tensors(Path(path), FORMAT)
    description = header["policy"]
    meta = header["meta"]
    if universe is not None:
        try:
            description, tensors, meta = transfer(
                description, tensors, meta, MarketIdentity.of(universe)
            )
        except CheckpointError as error:
            raise CheckpointError(f"{path}: {error}") from None
    module = _build(description, sum(tensor.numel() for tensor in tensors.values()))
    load_module(module, tensors, str(path))
    module.meta = meta
    if market is not None:
        module.check_market(market)
        assets = module.layout.num_assets
        if assets != market.num_assets:
            raise CheckpointError(
                f"{path} trades {assets} assets, the market has {market.num_assets}"
            )
    return module.to(device).eval().requires_grad_(False)


def _build(description: PolicyDescription, stored: int) -> PolicyModule:
    """Build the module of a description; `stored` is the count of numbers in the file."""
    try:
        if description["kind"] == "ensemble":
            members = []
            for member in description["members"]:
                module = _build(member, stored)
                # Each stored number belongs to one member.
                stored -= sum(tensor.numel() for tensor in module.state_dict().values())
                members.append(module)
            return EnsemblePolicy(members, [1.0] * len(members), description["mode"])
        layout = layout_from_json(description["layout"])
        network = validate(NetworkSettings, description["network"], "policy")
        head = validate(ActionHeadSettings, description["head"], "policy")
        outputs = int(description["outputs"])
        squash = bool(description["squash"])
        # On the meta device a network takes no memory until its stored weights are known to fit.
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            decoder = ActionHead(layout, head)
            network = resolve_network(network, layout, decoder)
            actor = make_actor(layout, network, extra=decoder.extra, outputs=outputs)
        described = sum(weight.numel() for weight in actor.parameters())
        if described > stored:
            raise CheckpointError(
                f"it describes networks of {described:,} numbers, and {stored:,} are stored"
            )
        # Initial weights are overwritten; leave the global stream alone.
        with torch.random.fork_rng(devices=[]):
            return ActorPolicy(layout, network, head, outputs=outputs, squash=squash)
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(
            f"the stored policy cannot be rebuilt ({error}); it is damaged, or of another version:"
            " train again"
        ) from None


def export_onnx(policy: PolicyModule, path: Path | str, *, tolerance: float = 1e-5) -> float:
    """Write `policy` as an ONNX model, for programs without PyTorch (extra `onnx`).

    Its input is `obs [B, D]` float32, its output `action [B, N]`, B free. Before the file is
    written, the model is run in onnxruntime on random observations and compared; returns the
    largest difference. Raises ConfigError when onnx and onnxruntime are not installed,
    CheckpointError when the difference exceeds `tolerance`.
    """
    try:
        import onnx  # noqa: F401
        import onnxruntime  # type: ignore[import-untyped,unused-ignore]
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"ONNX export needs {error.name}: {install_command('onnx')}") from None
    draw = torch.Generator().manual_seed(0)
    obs = torch.randn(7, policy.layout.width, generator=draw)
    policy = copy.deepcopy(policy).cpu().eval()  # the caller's stays on its device
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for library in ("torch.onnx", "onnxscript"):
            logging.getLogger(library).setLevel(logging.ERROR)
        program = torch.onnx.export(
            policy,
            (obs,),
            dynamo=True,
            input_names=["obs"],
            output_names=["action"],
            opset_version=18,
            dynamic_shapes={"obs": {0: torch.export.Dim("accounts")}},
            verbose=False,
        )
    assert program is not None
    buffer = io.BytesIO(program.model_proto.SerializeToString())
    session = onnxruntime.InferenceSession(buffer.getvalue(), providers=["CPUExecutionProvider"])
    worst = 0.0
    for rows in (1, 7, 64):
        obs = torch.randn(rows, policy.layout.width, generator=draw)
        with torch.no_grad():
            expected = policy(obs).numpy()
        (action,) = session.run(["action"], {"obs": obs.numpy()})
        worst = max(worst, float(np.abs(np.asarray(action) - expected).max()))
    if not worst <= tolerance:
        raise CheckpointError(
            f"the ONNX model differs from the policy by {worst:.2e}, more than {tolerance:.0e}"
        )
    write_bytes(Path(path), buffer.getvalue())
    return worst
