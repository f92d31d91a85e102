"""How fast agents train: the default PPO by accounts, and an equal network beside its peers.

    python -m benchmarks.training [--quick] [--save]

One thread; the sides alternate within one run and are timed in process CPU time. Rates are
environment steps a second of whole updates, acting and learning included, of the best round. Ratios
are the median of the rounds' own ratios; `ranges` holds the lowest and the highest. 100 stocks and
8 features, episodes of 1,000 bars.

- `default`: `PPO()` as it is, with 64, 256, 1,024 and 4,096 accounts.
- `mlp`: networks of 128-128 with tanh, learned independent noise, no normalisation, 16 steps of 256
  accounts, two passes of two minibatches, one step size, discount and clip, the same actions (the
  `aim` head), everything in our environment. Ours beside Stable-Baselines3's PPO and a
  CleanRL-style loop; see _train_peers.py and _train_clean.py.
- `jax`: `PPO()` beside the same algorithm in JAX, one compiled call an update (_train_jax.py), with
  10 and 100 stocks. Each side has compiled before; the seconds of JAX's first update are noted.
- `micro`: the rate of ours with one thing changed over that without, alternating on one agent: fused
  Adam taken away, the default's gradient steps by torch.

`--quick`: one short round with 64 and 256 accounts, without `micro`; otherwise `--rounds` of the
default and twice as many of the others. A figure beside a peer that cannot be had is null.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

from benchmarks._bench import (
    Figures,
    Run,
    alternate,
    finish,
    read_arguments,
    skip_absent_peer,
)
from benchmarks._train_clean import Recipe
from benchmarks._train_peers import load_jax, make_peer
from benchmarks.env import ASSETS, FEATURES, make_market
from fintrader.agents import PPO, Budget, make_agent, on_policy, train
from fintrader.agents.off_policy import REPORT_STEPS
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.market.tensors import MarketTensors

ACCOUNTS = (64, 256, 1024, 4096)
MLP_ACCOUNTS = 256
JAX_SIZES = ((64, 10), (256, 10), (256, 100), (4096, 100))
"""Accounts and stocks."""
SETTINGS = EnvSettings(episode_bars=1000)
SAME = Recipe(accounts=MLP_ACCOUNTS, hidden=(128, 128), activation="tanh", reward_scale=1.0)
"""Common to every side of `mlp`."""


def make_mlp_settings() -> PPO:
    """Our settings of the hyper-parameters in `SAME`."""
    equal = (
        *("num_steps", "update_epochs", "num_minibatches", "learning_rate", "gamma"),
        *("gae_lambda", "clip_coef", "ent_coef", "max_grad_norm", "noise"),
    )
    return PPO.model_validate(
        {
            **{name: getattr(SAME, name) for name in equal},
            "network": {"kind": "mlp", "hidden": SAME.hidden, "activation": SAME.activation},
            "vf_coef": 2 * SAME.vf_coef,  # ours counts half of the squared error
            "noise_persistence": 0.0,
            "noise_decay": "learned",
            "normalise": [],
        }
    )


def run_ours(market: MarketTensors, settings: Any, accounts: int, seed: int) -> tuple[Any, Run]:
    """One of our agents on the market's device, and its updates, rollouts included."""
    env = TradingEnv(market, SETTINGS, num_envs=accounts, seed=seed)
    agent = make_agent(settings, env.layout, device=market.device, seed=seed)
    prepared = agent.prepare_env(env)  # once, not for every update
    steps = accounts * getattr(settings, "num_steps", REPORT_STEPS)

    def update(updates: int) -> int:
        return train(agent, prepared, Budget(env_steps=steps * updates)).env_steps

    return agent, update


def make_peers(market: MarketTensors, seed: int) -> dict[str, Run]:
    """The peers under `SAME`; those that can be had."""
    runs = {"clean": repeat_updates(make_peer("clean", market, SETTINGS, SAME, seed))}
    with skip_absent_peer():
        model = make_peer("sb3", market, SETTINGS, SAME, seed)

        def learn(updates: int) -> int:
            steps = updates * SAME.accounts * SAME.num_steps
            model.learn(steps, reset_num_timesteps=False)
            return steps

        runs["sb3"] = learn
    return runs


def repeat_updates(peer: Any) -> Run:
    """Updates of a peer whose `update` returns its env-steps."""
    return lambda updates: sum(peer.update() for _ in range(updates))


def measure_default(
    market: MarketTensors, accounts: tuple[int, ...], seed: int, turns: Any
) -> Figures:
    """The default PPO by accounts."""
    rates = turns({f"{count}": run_ours(market, PPO(), count, seed)[1] for count in accounts})
    figures = Figures()
    figures.add_rates(rates, "default_{}_steps_per_second")
    least = f"{accounts[0]}"
    for count in rates:
        if count != least:
            figures.add_times(f"default_{count}_times_{least}", rates[count], rates[least])
    return figures


def measure_mlp(market: MarketTensors, seed: int, turns: Any) -> Figures:
    """Same everything, ours beside the peers."""
    _, ours = run_ours(market, make_mlp_settings(), MLP_ACCOUNTS, seed)
    rates = turns({"ours": ours, **make_peers(market, seed)})
    figures = Figures()
    figures.add_rates(rates, "mlp_{}_steps_per_second")
    for name in ("sb3", "clean"):
        figures.add_times(f"mlp_times_{name}", rates["ours"], rates.get(name))
    return figures


def measure_jax(sizes: tuple[tuple[int, int], ...], seed: int, turns: Any) -> Figures:
    """The default PPO and the same in JAX, by accounts and stocks."""
    figures = Figures()
    for accounts, assets in sizes:
        market = make_market(assets, seed=seed)
        sides = {"ours": run_ours(market, PPO(), accounts, seed)[1]}
        name = f"{accounts}_{assets}"
        with skip_absent_peer():
            peer = load_jax().JaxPPO(market, SETTINGS, PPO(), accounts, seed)
            begun = time.perf_counter()
            peer.update()
            figures[f"jax_compile_seconds_{name}"] = time.perf_counter() - begun
            sides["jax"] = repeat_updates(peer)
        rates = turns(sides)
        figures.add_rates(rates, f"jax_{{}}_{name}_steps_per_second")
        figures.add_times(f"times_jax_{name}", rates["ours"], rates.get("jax"))
    return figures


@contextmanager
def replace_for_now(target: Any, name: str, value: Any) -> Iterator[None]:
    """Replace an attribute within the block; unlike `patch.object`, also that of a property."""
    before = getattr(target, name)
    setattr(target, name, value)
    try:
        yield
    finally:
        setattr(target, name, before)


def measure_micro(market: MarketTensors, seed: int, turns: Any) -> Figures:
    """One change at a time, on the MLP (wide products) and on the default (narrow ones)."""
    sides = {
        "mlp": run_ours(market, make_mlp_settings(), MLP_ACCOUNTS, seed),
        "default": run_ours(market, PPO(), MLP_ACCOUNTS, seed),
    }
    by_torch = on_policy.take_passes.__wrapped__  # type: ignore[attr-defined]
    plain = {"fused": False, "foreach": False}
    adam = {name: agent.optimisers["adam"].param_groups[0] for name, (agent, _) in sides.items()}
    changes = {
        "mlp_plain_adam": ("mlp", lambda: patch.dict(adam["mlp"], plain)),
        "default_steps_by_torch": (
            "default",
            lambda: replace_for_now(on_policy, "take_passes", by_torch),
        ),
    }
    figures = Figures()
    for name, (side, change) in changes.items():

        def run_changed(updates: int, run: Run = sides[side][1], change: Any = change) -> int:
            with change():
                return run(updates)

        rates = turns({"as_it_is": sides[side][1], "changed": run_changed})
        figures.add_times(f"micro_{name}", rates["changed"], rates["as_it_is"])
    return figures


def main() -> None:
    """Measure and print."""
    options = read_arguments(__doc__, seed=0, quick=False, rounds=5)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    market = make_market(ASSETS, seed=options.seed)
    accounts = ACCOUNTS
    turns = partial(alternate, rounds=2 * options.rounds, seconds=1.0)
    if options.quick:
        accounts = ACCOUNTS[:2]
        turns = partial(alternate, rounds=1, seconds=0.2)
    figures = Figures(assets=ASSETS, features=FEATURES)
    figures.merge(measure_mlp(market, options.seed, turns))
    some = turns if options.quick else partial(turns, rounds=options.rounds)
    figures.merge(measure_default(market, accounts, options.seed, some))
    figures.merge(measure_jax(JAX_SIZES[:1] if options.quick else JAX_SIZES, options.seed, some))
    if not options.quick:
        figures.merge(measure_micro(market, options.seed, turns))
    finish("training", figures, options)


if __name__ == "__main__":
    main()
