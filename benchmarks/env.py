"""How fast the trading environment steps, beside FinRL's, ElegantRL's and TorchTrade's, and beside
the memory.

Everything alternates within one run on one thread and is timed in process CPU time (others may use
the cores). Rates are account decisions a second, of the best round. Ratios ("times") are the
median of the rounds' own ratios, because the two sides of a round meet the same machine; `ranges`
holds the lowest and the highest.

Unless it says otherwise, ours has default settings and default options (`copy=True`, random starts,
autoreset in the same step) with episodes of 1,000 bars and random target weights, on 100 stocks and
8 features: float32 observations of 1,004 numbers, FinRL's has 1,103, ElegantRL's 1,001.

    python -m benchmarks.env [--quick] [--save]

`--quick` has few and short rounds and no policies on factored observations (_env_factored.py). A
figure beside a peer that cannot be had is null.

- FinRL and ElegantRL, the latter as shipped and with its actions and its sales repaired: see
  _env_peers.py. They order shares, not weights.
- TorchTrade's portfolio environment, rebuilt from its contract as it is written (`torchtrade`) and
  tuned (`torchtrade_tuned`): see _env_torchtrade.py. Ours trades fractions at the close at the same
  costs, and observes the same windows.
- `costs` is an impact by order, a least commission and a half-spread beside the proportional costs
  of `plain`. Every side of ours takes at most a tenth of a bar's volume, as by default; the peers
  know no volume.
- `limit` names a price for each order, up to 20 basis points from the close.
- Accounts begin in 16 groups, each on one bar, as by default: what they read of the market is then
  often in a cache. `single_starts` begins each by itself.
- The roofline counts what a step must move at least, each byte once: it reads the market's row of
  the observation, three rows of prices, the shares and the action, and writes the observation and
  the shares (`traffic_bytes`), at the speed at which torch copies a block of observations in the
  same run. That is a harder limit than copying observations alone: market rows are read at random
  places, and the prices, shares and actions come on top.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import torch

from benchmarks import _env_factored, _env_torchtrade
from benchmarks._bench import Figures, Run, alternate, finish, read_arguments
from benchmarks._env_peers import make_peer_runs, make_run, make_single_run
from benchmarks._learning import make_network, make_random_market
from fintrader.envs import EnvSettings, FactoredLinear, TradingEnv
from fintrader.envs.trading import name_engine
from fintrader.market.tensors import MarketTensors

ASSETS = 100
FEATURES = 8
ACCOUNTS = 4096
SMALL_ASSETS = 80
SMALL_ACCOUNTS = 64
WIDTH = 4 + ASSETS + ASSETS * (FEATURES + 1)
"""Numbers of an observation."""
SIZES = (1, 64, 1024, 4096, 16384)
INTERVALS = (1, 5, 30)
FEE = 2e-3
VARIANTS = {
    "plain": {},
    "costs": {"impact_bps": 10.0, "min_commission_usd": 1.0, "half_spread_bps": 1.0},
    "fractional": {"fractional": True},
    "limit": {"action": "limit", "limit_offset_bps": 20.0},
    "short": {
        "short": True,
        "max_leverage": 2.0,
        "borrow_bps_per_year": 50.0,
        "maintenance_margin": 0.25,
    },
}

make_market = partial(make_random_market, 4096, features=FEATURES)
"""Random walks over 4,096 minutes."""


# --- ours -----------------------------------------------------------------------------------------


def make_env(market: MarketTensors, accounts: int, device: Any = "cpu", **changes: Any) -> Any:
    """`TradingEnv` with episodes of 1,000 bars."""
    settings = EnvSettings(**{"episode_bars": 1000, **changes})
    return TradingEnv(market, settings, num_envs=accounts, device=device, copy=device == "cpu")


def run_random(env: Any) -> Run:
    """Random actions."""
    env.reset(seed=0)
    shape = (env.num_envs, env.layout.num_actions)
    actions = [torch.rand(shape, device=env.device) * 2 - 1 for _ in range(4)]
    return make_run(env, actions, env.num_envs)


def run_ours(market: MarketTensors, accounts: int, **changes: Any) -> Run:
    """Random actions through `TradingEnv`."""
    return run_random(make_env(market, accounts, **changes))


def run_policy(env: Any) -> Run:
    """A 128-128 tanh network decides, in the observations' precision."""
    policy = make_network(env.layout.width, env.layout.num_assets).to(env.device)
    obs, _ = env.reset(seed=0)
    if env.settings.observation == "factored":
        policy[0] = FactoredLinear(policy[0], env.market_rows)
    else:
        policy.to(obs.dtype)
    state = {"obs": obs}

    @torch.no_grad()
    def run(steps: int) -> int:
        for _ in range(steps):
            state["obs"], *_ = env.step(policy(state["obs"]))
        return steps * env.num_envs

    return run


def run_single(market: MarketTensors) -> Run:
    """One account through `gymnasium.make`."""
    rules = EnvSettings(start="first")
    env = gymnasium.make("fintrader/Trading-v0", market=market, settings=rules)
    return make_single_run(env, ASSETS)


# --- theirs, and the memory's ---------------------------------------------------------------------


def run_torchtrade(market: MarketTensors, accounts: int, kind: Any) -> Run:
    """TorchTrade's, rebuilt, with our actions."""
    env = kind(market, accounts, fee=FEE, episode=1000)
    env.reset()
    wishes = [torch.rand(accounts, market.num_assets) * 2 - 1 for _ in range(4)]
    return make_run(env, [_env_torchtrade.cash_first(wish) for wish in wishes], accounts)


def copy_rows(rows: int = ACCOUNTS, device: Any = "cpu") -> Run:
    """Copy a block of observations; one account step is one row."""
    source, target = (torch.rand(rows, WIDTH, device=device) for _ in range(2))

    def run(steps: int) -> int:
        for _ in range(steps):
            target.copy_(source)
        return steps * rows

    return run


def count_traffic() -> tuple[int, int]:
    """Bytes an account step must move, and those a copied row moves.

    It reads the market's row, four rows of prices and volume, shares (float64) and action, and
    writes the observation and the shares.
    """
    row = 4 * ASSETS * (FEATURES + 1)
    return row + 4 * 4 * ASSETS + (8 + 4 + 8) * ASSETS + 4 * WIDTH, 2 * 4 * WIDTH


# --- sections -------------------------------------------------------------------------------------


def measure_peers(market: MarketTensors, turns: Any) -> Figures:
    """4,096 accounts beside FinRL's one and ElegantRL's 4,096, and beside the memory."""
    rates = turns(
        {
            "env_only": run_ours(market, ACCOUNTS),
            "single_starts": run_ours(market, ACCOUNTS, start_groups=ACCOUNTS),
            "env_and_policy": run_policy(make_env(market, ACCOUNTS)),
            "copy": copy_rows(),
            "single": run_single(market),
            **make_peer_runs(market, ACCOUNTS),
        }
    )
    figures = Figures(observation_width=WIDTH)
    figures.add_rates(rates, "{}_steps_per_second")
    moved, copied = count_traffic()
    figures["copy_gb_per_second"] = figures.pop("copy_steps_per_second") * copied / 1e9
    figures["roofline_steps_per_second"] = figures["copy_gb_per_second"] * 1e9 / moved
    for prefix, side in (("", "env_only"), ("single_starts_", "single_starts")):
        name = f"{prefix}share_of_copy_roofline"
        figures.add_times(name, rates[side], rates["copy"], moved / copied)
        for peer in ("finrl", "elegantrl_shipped", "elegantrl_repaired"):
            figures.add_times(f"{prefix}times_{peer}", rates[side], rates.get(peer))
    figures.add_times("single_times_finrl", rates["single"], rates.get("finrl"))
    return figures


def measure_torchtrade(market: MarketTensors, turns: Any) -> Figures:
    """Fractions of shares, like for like, 64 and 4,096 accounts."""
    windowed = _env_torchtrade.windowed(market)
    difference = _env_torchtrade.equity_difference(windowed)
    figures = Figures(torchtrade_equity_difference=difference)
    kinds = {
        "torchtrade": _env_torchtrade.PortfolioEnv,
        "torchtrade_tuned": _env_torchtrade.TunedPortfolioEnv,
    }
    for accounts in (SMALL_ACCOUNTS, ACCOUNTS):
        rules = _env_torchtrade.settings_like_torchtrade(FEE).model_dump(exclude_unset=True)
        runs = {"fractional": run_ours(windowed, accounts, **rules)}
        runs |= {name: run_torchtrade(windowed, accounts, kind) for name, kind in kinds.items()}
        rates = turns(runs)
        figures.add_rates(rates, f"{{}}_{accounts}_steps_per_second")
        for name in kinds:
            figures.add_times(
                f"times_{name}_fractional_{accounts}", rates["fractional"], rates[name]
            )
    return figures


def measure_sizes(markets: dict[int, MarketTensors], turns: Any) -> Figures:
    """Accounts by decision intervals: `decisions_per_second[stocks][accounts][interval]`."""
    figures = Figures(decisions_per_second={}, interval_times_interval_1={})
    for assets, market in markets.items():
        best = figures["decisions_per_second"][f"{assets}"] = {}
        for accounts in SIZES if assets == ASSETS else (SMALL_ACCOUNTS, ACCOUNTS):
            rates = turns(
                {f"{k}": run_ours(market, accounts, decision_interval=k) for k in INTERVALS}
            )
            best[f"{accounts}"] = {interval: max(values) for interval, values in rates.items()}
            for k in INTERVALS[1:]:
                name = f"interval_{k}_times_interval_1_{assets}_stocks_{accounts}_accounts"
                figures.add_times(name, rates[f"{k}"], rates["1"])
                figures["interval_times_interval_1"][name] = figures.pop(name)
    return figures


def measure_variants(market: MarketTensors, turns: Any) -> Figures:
    """What each setting costs, against plain."""
    figures = Figures()
    for accounts in (SMALL_ACCOUNTS, ACCOUNTS):
        for interval in (1, INTERVALS[-1]):
            rates = turns(
                {
                    name: run_ours(market, accounts, **changes, decision_interval=interval)
                    for name, changes in VARIANTS.items()
                }
            )
            place = f"{accounts}_accounts_interval_{interval}"
            figures.add_rates(rates, f"{{}}_{place}_steps_per_second")
            for name in tuple(VARIANTS)[1:]:
                figures.add_times(f"{name}_times_plain_{place}", rates[name], rates["plain"])
    return figures


def main() -> None:
    """Measure and print."""
    options = read_arguments(__doc__, seed=0, quick=False)
    turns = partial(alternate, rounds=3, seconds=0.05)
    if not options.quick:
        turns = partial(alternate, rounds=12, seconds=0.2)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    market = make_market(ASSETS, seed=options.seed)
    markets = {SMALL_ASSETS: make_market(SMALL_ASSETS, seed=options.seed), ASSETS: market}
    figures = Figures(engine=name_engine(EnvSettings(), "cpu"), accounts=ACCOUNTS)
    figures.merge(measure_peers(market, turns))
    figures.merge(measure_torchtrade(market, turns))
    figures.merge(measure_sizes(markets, turns))
    figures.merge(measure_variants(market, turns))
    if not options.quick:
        figures["factored_policy"] = _env_factored.measure(market, turns)
    finish("env", figures, options)


if __name__ == "__main__":
    main()
