"""Policies bound to one market: the networks' actions for one account in a hundredth of the time.

A backtest asks a policy one observation at a time, and ten small networks are then hundreds of
tensor operations on a few thousand numbers. The coefficients of `market_once` at a bar do not
depend on the account: many bars are embedded at once, and an action then takes a few numbers per
asset. Other networks are run by `agents.fast.forward`, their weights laid out side by side.
Actions agree with the networks' own to float32 rounding.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fintrader.agents.normalisation import CLIP, to_shift_and_scale
from fintrader.envs.observation import FlatLayout, benchmark_of

Numbers = NDArray[np.float32]
Bound = Callable[[int, Numbers], Numbers]
"""`bound(bar, private [A + N]) -> action [N]`, the result of `bind`. The action is overwritten by
the next call."""

BARS_AT_ONCE = 1024
"""Largest number of bars that are embedded together: a bound on memory."""


class Members(Protocol):
    """Some of an ensemble's policies, bound."""

    def act(self, bar: int, private: Numbers) -> Numbers:
        """Act on the private part `[A + N]` of an observation at `bar`: `[K, N]`."""


def bind(members: Sequence[Any], mode: str, weights: Numbers, rows: Numbers) -> Bound | None:
    """Bind K `ActorPolicy` as one (see `EnsemblePolicy`) to the market rows `[T, L*W]` of a window.

    None where the networks themselves must act: off the CPU, on a classic environment, with
    networks other than `market_once` that observe several bars or a benchmark, or with weights
    that are not finite.
    """
    layout = members[0].layout
    if isinstance(layout, FlatLayout) or layout.market_width != rows.shape[1]:
        return None
    tensors = [tensor for member in members for tensor in member.state_dict().values()]
    if not all(tensor.device.type == "cpu" and bool(tensor.isfinite().all()) for tensor in tensors):
        return None
    once = [k for k, member in enumerate(members) if member.actor.kind == "market_once"]
    others = [k for k in range(len(members)) if k not in once]
    if others and layout.benchmark:
        return None
    parts: list[tuple[list[int], Members]] = []
    if once:
        parts.append((once, _MarketOnce([members[k] for k in once], rows)))
    if others:
        if layout.lookback > 1:
            return None
        from fintrader.agents.fast.members import NumbaMembers

        parts.append((others, NumbaMembers([members[k] for k in others], rows)))
    return _Ensemble(parts, mode, weights, layout.num_assets)


class _Ensemble:
    """The members' actions as one."""

    def __init__(
        self, parts: list[tuple[list[int], Members]], mode: str, weights: Numbers, assets: int
    ) -> None:
        self.parts = parts
        self.mode = mode
        self.weights = weights
        self.all = np.zeros((sum(len(places) for places, _ in parts), assets), np.float32)

    def __call__(self, bar: int, private: Numbers) -> Numbers:
        if len(self.parts) == 1:
            actions = self.parts[0][1].act(bar, private)
        else:
            actions = self.all
            for places, members in self.parts:
                actions[places] = members.act(bar, private)
        combined: Numbers = actions[0]
        if self.mode == "vote":
            # As torch.quantile: the lower of the middle two plus half their distance.
            ordered = np.sort(actions, axis=0)
            middle = (len(actions) - 1) // 2
            upper = ordered[len(actions) // 2]
            combined = ordered[middle] + np.float32(0.5) * (upper - ordered[middle])
        elif len(actions) > 1:
            combined = self.weights @ actions
        return combined


class _MarketOnce:
    """K actors of the kind `market_once`, and their coefficients at some bars."""

    def __init__(self, members: Sequence[Any], rows: Numbers) -> None:
        self.members = members
        self.rows = torch.from_numpy(rows)
        # In float64, and rounded once: an action must not depend on how many bars were embedded
        # together with its own.
        self.exact = [copy.deepcopy(member).double() for member in members]
        layout = members[0].layout
        count = len(members)
        self.width = layout.account_width
        self.assets = layout.num_assets
        self.bars = range(0)
        self.asked = -1
        """The last bar asked for; `bars` are those with known coefficients."""
        statistics = [
            to_shift_and_scale(member.normaliser.mean, member.normaliser.var) for member in members
        ]
        columns = members[0].normaliser.groups[: layout.private_width]
        self.mean, self.scale = (
            np.stack([pair[k][columns].numpy() for pair in statistics]) for k in (0, 1)
        )

        def each(value: Callable[[Any], float], kind: type = np.float32) -> Any:
            return np.array([[value(member)] for member in members], kind)

        self.squash = each(lambda m: m.squash, bool)
        self.targets = each(lambda m: m.head.targets_weights, bool)
        self.steep = each(lambda m: m.head.settings.scale)
        self.bias = np.zeros((count, self.assets + 1), np.float32)
        self.tilts = [k for k, member in enumerate(members) if member.head.kind == "tilt"]
        self.benchmark = benchmark_of(self.rows, layout)
        width = self.assets + max(1, *(member.head.extra for member in members))
        self.bias[:, -1:] = each(lambda m: math.log(self.assets) + m.head.settings.cash_logit)
        self.reads_account = any(member.network.reads_account for member in members)
        self.constant = np.zeros((BARS_AT_ONCE, count, width), np.float32)
        self.slope = np.zeros((BARS_AT_ONCE, count, self.assets), np.float32)
        self.columns = np.zeros((BARS_AT_ONCE, count, self.width, width), np.float32)

    def act(self, bar: int, private: Numbers) -> Numbers:
        if bar not in self.bars:
            self._embed(bar)
        place = self.bars.index(bar)
        self.asked = bar
        standard = ((private - self.mean) * self.scale).clip(-CLIP, CLIP)
        latent = self.constant[place].copy()
        latent[:, : self.assets] += self.slope[place] * standard[:, self.width :]
        if self.reads_account:
            latent += (standard[:, : self.width, None] * self.columns[place]).sum(axis=1)
        latent = np.where(self.squash, np.tanh(latent), latent)
        if len(self.tilts) == len(latent):
            action = np.empty((len(latent), self.assets), np.float32)
        else:
            action = self._aim(latent[:, : self.assets + 1])
        for k in self.tilts:
            head = self.members[k].head
            held = torch.from_numpy(private[None, self.width :])
            own = torch.from_numpy(latent[k : k + 1, : head.latents])
            action[k] = head.tilt(self.benchmark[bar : bar + 1], held, own)[0].numpy()
        return action.astype(np.float32, copy=False)

    def _aim(self, latent: Numbers) -> Numbers:
        """Decode latents as `ActionHead.decode` does for heads that do not tilt: `[K, N]`."""
        logits = self.steep * latent + self.bias
        exponential = np.exp(logits - logits.max(axis=1, keepdims=True))
        action = exponential[:, :-1] / exponential.sum(axis=1, keepdims=True)
        if not self.targets.all():
            action = np.where(self.targets, action, latent[:, :-1].clip(-1.0, 1.0))
        aimed: Numbers = action
        return aimed

    @torch.no_grad()
    def _embed(self, bar: int) -> None:
        """Embed this bar and further ones, spaced like the last two requested bars.

        The number of bars doubles each time that all embedded bars were passed in order. After a
        jump only this bar is embedded, so that random access wastes no work.
        """
        goes_on = len(self.bars) > 0 and self.bars[-1] == self.asked < bar
        step, count = (
            (bar - self.asked, min(2 * len(self.bars), BARS_AT_ONCE)) if goes_on else (1, 1)
        )
        self.bars = range(bar, min(bar + count * step, len(self.rows)), step)
        rows = self.rows[self.bars.start : self.bars.stop : step].double()
        for k, member in enumerate(self.exact):
            terms = member.actor.predict_coefficients(member.normaliser.normalise_rows(rows))
            bars = len(rows)
            width = self.assets
            self.constant[:bars, k, :width] = terms.constant[0].numpy()
            if terms.slope is not None:
                self.slope[:bars, k] = terms.slope[0].numpy()
            if terms.extra is not None:
                stop = width + terms.extra.shape[-1]
                self.constant[:bars, k, width:stop] = terms.extra[0].numpy()
            if terms.account.shape[2]:
                self.columns[:bars, k, :, : terms.account.shape[3]] = terms.account[0].numpy()
