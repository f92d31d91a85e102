"""How fast agents train: the default PPO by accounts, an equal network beside its peers, and where
the time goes.

    python benchmarks/training.py [--quick] [--save]

One thread; the sides alternate within one run and are timed in process CPU time. Rates are
environment steps a second of whole updates, acting and learning included, of the best round. Ratios
are the median of the rounds' own ratios; `ranges` holds the lowest and the highest. 100 stocks and
8 features, episodes of 1,000 bars.

- `default`: `PPO()` as it is, with 64, 256, 1,024 and 4,096 accounts.
- `mlp`: networks of 128-128 with tanh, learned independent noise, no normalisation, 16 steps of 256
  accounts, two passes of two minibatches, one step size, discount and clip, the same actions (the
  `aim` head), everything in our environment. Ours beside Stable-Baselines3's PPO and a
  CleanRL-style loop; see _train_peers.py and _train_clean.py.
- `micro`: the rate of ours with one thing changed over that without, alternating on one agent:
  products by oneDNN and fused Adam taken away, products in bfloat16 put in, the default's trunk by
  torch alone and compiled by torch.
- `profile`: which share of ours goes to the environment, to acting and to learning (wall time, from
  train's metrics).

The last line is one JSON object; `table` in it holds the figures that have a target, null where a
peer cannot be had ("no peer") or `--quick` leaves it out (1,024 and 4,096 accounts).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._train_clean import Recipe
from benchmarks._train_peers import NoPeer, make_clean, make_sb3
from benchmarks.common import finish
from benchmarks.env import ASSETS, FEATURES, Figures, make_market
from fintrader.agents import PPO, Budget, TrainProgress, make_agent, networks, train
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.market.tensors import MarketTensors

ACCOUNTS = (64, 256, 1024, 4096)
MLP_ACCOUNTS = 256
SETTINGS = EnvSettings(episode_bars=1000)
SAME = Recipe(accounts=MLP_ACCOUNTS, hidden=(128, 128), activation="tanh", reward_scale=1.0)
"""What every side of `mlp` has."""
PARTS = ("env", "inference", "learning")
TARGETS: dict[str, float] = {
    "default_256_steps_per_second": 30_000,
    "default_4096_steps_per_second": 80_000,
    "default_4096_times_64": 1.5,
    "mlp_times_sb3": 3,
    "mlp_times_clean": 2,
}
"""The least that each figure of `table` should be."""

Update = Callable[[], int]
"""Makes one update, rollout included; returns its environment steps."""


def our_mlp() -> PPO:
    """Ours with what `SAME` says."""
    return PPO.model_validate(
        {
            "network": {"kind": "mlp", "hidden": SAME.hidden, "activation": SAME.activation},
            "num_steps": SAME.num_steps,
            "update_epochs": SAME.update_epochs,
            "num_minibatches": SAME.num_minibatches,
            "learning_rate": SAME.learning_rate,
            "gamma": SAME.gamma,
            "gae_lambda": SAME.gae_lambda,
            "clip_coef": SAME.clip_coef,
            "ent_coef": SAME.ent_coef,
            "vf_coef": 2 * SAME.vf_coef,  # ours counts half of the squared error
            "max_grad_norm": SAME.max_grad_norm,
            "noise": SAME.noise,
            "noise_persistence": 0.0,
            "learn_noise": True,
            "normalise_observations": False,
            "normalise_rewards": False,
        }
    )


class Ours:
    """One of our agents, an update at a time, and what its metrics say of the time."""

    def __init__(self, market: MarketTensors, settings: PPO, accounts: int, seed: int) -> None:
        env = TradingEnv(market, SETTINGS, num_envs=accounts, seed=seed)
        self.agent = make_agent(settings, env.layout, seed=seed)
        self.env = self.agent.prepare_env(env)  # once, not for every update
        self.steps = accounts * settings.num_steps
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def __call__(self) -> int:
        """One update."""
        return train(
            self.agent, self.env, Budget(env_steps=self.steps), on_progress=self._note
        ).env_steps

    def forget(self) -> None:
        """Begin to count the time anew."""
        self.seconds = dict.fromkeys(PARTS, 0.0)

    def _note(self, progress: TrainProgress) -> None:
        for part in PARTS:
            self.seconds[part] += self.steps / progress.metrics[f"steps_per_second_{part}"]

    def shares(self) -> dict[str, float]:
        """Of the time of all updates so far."""
        total = sum(self.seconds.values())
        return {part: round(seconds / total, 4) for part, seconds in self.seconds.items()}


def theirs(market: MarketTensors, seed: int) -> dict[str, Update]:
    """The peers under `SAME`; those that can be had."""
    runs: dict[str, Update] = {"clean": make_clean(market, SETTINGS, SAME, seed).update}
    try:
        model = make_sb3(market, SETTINGS, SAME, seed)
    except NoPeer as error:
        print(f"no peer: {error}", file=sys.stderr)
        return runs
    steps = SAME.accounts * SAME.num_steps

    def update() -> int:
        model.learn(steps, reset_num_timesteps=False)
        return steps

    return {"sb3": update, **runs}


def alternate(runs: dict[str, Update], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Steps a second of each run in each round: as many updates as `seconds` hold, at least one."""
    for run in runs.values():
        run()  # compiles, and finds its memory
        if isinstance(run, Ours):
            run.forget()
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            begun = time.process_time()
            steps = 0
            used = 0.0
            while used < seconds:
                steps += run()
                used = time.process_time() - begun
            rates[name].append(steps / used)
    return rates


def measure_default(
    market: MarketTensors, accounts: tuple[int, ...], rounds: int, seconds: float, seed: int
) -> Figures:
    """The default PPO by accounts."""
    sides = {f"{count}": Ours(market, PPO(), count, seed) for count in accounts}
    rates = alternate(dict(sides), rounds, seconds)
    figures = Figures()
    figures.rates(rates, **{name: f"default_{name}_steps_per_second" for name in rates})
    for count in accounts[1:]:
        figures.times(
            f"default_{count}_times_{accounts[0]}", rates[f"{count}"], rates[f"{accounts[0]}"]
        )
    figures["profile"] = {f"default_{name}": side.shares() for name, side in sides.items()}
    return figures


def measure_mlp(market: MarketTensors, rounds: int, seconds: float, seed: int) -> Figures:
    """Same everything, ours beside the peers."""
    ours = Ours(market, our_mlp(), MLP_ACCOUNTS, seed)
    rates = alternate({"ours": ours, **theirs(market, seed)}, rounds, seconds)
    figures = Figures()
    figures.rates(rates, **{name: f"mlp_{name}_steps_per_second" for name in rates})
    for name in ("sb3", "clean"):
        figures.setdefault(f"mlp_{name}_steps_per_second", None)
        figures.times(f"mlp_times_{name}", rates["ours"], rates.get(name))
    figures["profile"] = {"mlp": ours.shares()}
    return figures


@contextmanager
def put(target: Any, name: str, value: Any) -> Iterator[None]:
    """An attribute with another value for a while."""
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)


@contextmanager
def plain_adam(side: Ours) -> Iterator[None]:
    """Adam a tensor at a time."""
    group = side.agent.optimisers["adam"].param_groups[0]
    group.update(fused=False, foreach=False)
    try:
        yield
    finally:
        group.update(fused=True, foreach=None)


def measure_micro(market: MarketTensors, rounds: int, seconds: float, seed: int) -> Figures:
    """One change at a time, on the MLP (wide products) and on the default (narrow ones)."""
    sides = {
        "mlp": Ours(market, our_mlp(), MLP_ACCOUNTS, seed),
        "default": Ours(market, PPO(), MLP_ACCOUNTS, seed),
    }
    by_torch = networks.shared_layer.__wrapped__  # type: ignore[attr-defined]
    mkldnn = torch.backends.mkldnn
    compiled = torch.compile(by_torch, dynamic=True)
    changes: dict[str, tuple[str, Callable[[], AbstractContextManager[None]]]] = {
        "mlp_without_onednn": ("mlp", lambda: put(mkldnn, "enabled", False)),
        "mlp_bfloat16_products": ("mlp", lambda: put(mkldnn.matmul, "fp32_precision", "bf16")),
        "mlp_plain_adam": ("mlp", lambda: plain_adam(sides["mlp"])),
        "default_plain_adam": ("default", lambda: plain_adam(sides["default"])),
        "default_trunk_by_torch": (
            "default",
            lambda: put(networks, "shared_layer", by_torch),
        ),
        "default_trunk_compiled_by_torch": (
            "default",
            lambda: put(networks, "shared_layer", compiled),
        ),
    }
    figures = Figures()
    for name, (side, change) in changes.items():

        def changed(run: Ours = sides[side], change: Any = change) -> int:
            with change():
                return run()

        rates = alternate({"as_it_is": sides[side], "changed": changed}, rounds, seconds)
        figures.times(f"micro_{name}", rates["changed"], rates["as_it_is"])
    return figures


def show(figures: dict[str, Any]) -> None:
    """The table and the profile."""
    for name, least in TARGETS.items():
        found = figures["table"][name]
        low, high = figures["ranges"].get(name, (None, None))
        span = "" if low is None else f" ({low:,.2f} to {high:,.2f})"
        missing = "no peer" if name == "mlp_times_sb3" else "not measured"
        print(
            f"{name:34} {missing if found is None else f'{found:,.2f}':>12}{span:20} at least"
            f" {least:,}"
        )
    for name in (name for name in figures if name.startswith("micro_")):
        low, high = figures["ranges"][name]
        print(f"{name:34} {figures[name]:.2f} ({low:.2f} to {high:.2f})")
    for name, shares in figures["profile"].items():
        print(f"{name:34} " + ", ".join(f"{part} {share:.0%}" for part, share in shares.items()))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one short round, 64 and 256 accounts")
    parser.add_argument(
        "--save", action="store_true", help="write benchmarks/results/training.json"
    )
    parser.add_argument("--json", action="store_true", help="the last line is JSON in any case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--rounds", type=int, default=5, help="of the default PPO; twice as many of the others"
    )
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)
    market = make_market(arguments.seed)
    accounts, rounds, seconds = (
        (ACCOUNTS[:2], 1, 0.2) if arguments.quick else (ACCOUNTS, arguments.rounds, 1.0)
    )
    figures: dict[str, Any] = {"assets": ASSETS, "features": FEATURES, "ranges": {}, "profile": {}}
    parts = (
        measure_mlp(market, rounds if arguments.quick else 2 * rounds, seconds, arguments.seed),
        measure_default(market, accounts, rounds, seconds, arguments.seed),
        Figures() if arguments.quick else measure_micro(market, rounds, seconds, arguments.seed),
    )
    for part in parts:
        figures["ranges"] |= part.pop("ranges", {})
        figures["profile"] |= part.pop("profile", {})
        figures |= part
    figures["table"] = {name: figures.get(name) for name in TARGETS}
    show(figures)
    finish("training", figures, seed=arguments.seed, save=arguments.save)


if __name__ == "__main__":
    main()
