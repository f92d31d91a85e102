"""The trading environment next to a plain loop in C that knows one kind of account.

    python -m benchmarks.account_loop [--quick] [--save]

The loop does what an account does at default options and no more: weights become whole shares,
sales come before purchases, purchases shrink to the cash, costs are proportional, an order is at
most a tenth of the bar's volume, and an episode that ends, or an account at a tenth of its capital,
begins anew in the same step. It has no events, no other options, no checks, sums in whichever order
the compiler chooses (`-O3 -march=native -ffast-math`; ours to the same bit in any order), and
overwrites its outputs, of which ours hands out copies. Both alternate in one run on one thread with
random target weights, 4,096 accounts each at its own bar, 100 stocks and 8 features: `flat` writes
the market's row into each observation, `private` only the account's part. Rates are account-steps a
second of the processor's time, of the best round; ratios are medians of the ratios in each round.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks._bench import Figures, Run, alternate, finish, read_arguments
from benchmarks._learning import make_random_market
from fintrader.envs import EnvSettings, TradingEnv
from fintrader.market.tensors import MarketTensors

ACCOUNTS = 4096
EPISODE = 1000
SOURCE = r"""
#include <math.h>
#include <stdint.h>
#include <string.h>

typedef struct { double cash, equity, peak; int64_t bar, end; uint64_t draws; } Account;

static void begin(Account *a, double *shares, int stocks, int64_t bars, int64_t episode) {
    a->draws = a->draws * 6364136223846793005ull + 1442695040888963407ull;
    a->bar = (int64_t)((a->draws >> 33) % (uint64_t)(bars - episode));
    a->end = a->bar + episode;
    a->cash = a->equity = a->peak = 1e6;
    memset(shares, 0, sizeof(double) * stocks);
}

void start(int accounts, int stocks, int64_t bars, int64_t episode, Account *states, double *shares)
{
    for (int b = 0; b < accounts; b++) {
        states[b].draws = b;
        begin(states + b, shares + (size_t)b * stocks, stocks, bars, episode);
    }
}

void step(int accounts, int stocks, int width, int64_t bars, int64_t episode, double rate,
          const float *actions, const float *closes, const float *opens, const float *most,
          const float *rows, Account *states, double *held, double *restrict order, float *rewards,
          uint8_t *ended, float *observations)
{
    const int size = 4 + stocks + width;
    for (int b = 0; b < accounts; b++) {
        Account *a = states + b;
        double *restrict shares = held + (size_t)b * stocks;
        const float *action = actions + (size_t)b * stocks;
        const float *mark = closes + a->bar * stocks, *after = mark + stocks;
        const float *fill = opens + (a->bar + 1) * stocks, *room = most + (a->bar + 1) * stocks;
        double total = 0, income = 0, wanted = 0, spent = 0, value = 0;
        for (int i = 0; i < stocks; i++) total += fminf(fmaxf(action[i], 0), 1);
        double unit = a->equity / fmax(total, 1);
        for (int i = 0; i < stocks; i++) {
            double goal = fminf(fmaxf(action[i], 0), 1) * unit / mark[i];
            double shift = fmin(fmax(trunc(goal - shares[i]), -room[i]), room[i]);
            double sold = fmin(fmax(-shift, 0), shares[i]);
            order[i] = fmax(shift, 0);
            shares[i] -= sold;
            income += sold * fill[i];
            wanted += order[i] * fill[i];
        }
        a->cash += income * (1 - rate);
        double scale = fmin(1, fmax(a->cash, 0) / fmax(wanted * (1 + rate), 1e-9));
        for (int i = 0; i < stocks; i++) {
            double bought = trunc(scale * order[i]);
            shares[i] += bought;
            spent += bought * fill[i];
            value += shares[i] * after[i];
        }
        a->cash = fmax(a->cash - spent * (1 + rate), 0);
        double equity = a->cash + value;
        rewards[b] = (float)log(fmax(equity, 1) / fmax(a->equity, 1));
        a->equity = equity;
        a->peak = fmax(a->peak, equity);
        a->bar++;
        ended[b] = equity <= 1e5 || a->bar >= a->end;  // ruined at a tenth
        if (ended[b]) begin(a, shares, stocks, bars, episode);
        float *seen = observations + (size_t)b * size;
        double per_usd = 1 / a->equity;
        const float *now = closes + a->bar * stocks;
        seen[0] = (float)(a->cash * per_usd);
        seen[1] = (float)(a->equity / 1e6 - 1);
        seen[2] = (float)(a->equity / a->peak - 1);
        seen[3] = (float)(a->end - a->bar) / episode;
        for (int i = 0; i < stocks; i++) seen[4 + i] = (float)(shares[i] * now[i] * per_usd);
        if (width) memcpy(seen + 4 + stocks, rows + a->bar * width, sizeof(float) * width);
    }
}
"""


def build_loop(folder: Path) -> ctypes.CDLL:
    """Compile the loop for this processor."""
    source = folder / "loop.c"
    source.write_text(SOURCE)
    library = folder / "loop.so"
    flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, str(source), "-o", str(library), "-lm"], check=True)
    return ctypes.CDLL(str(library))


def list_actions(assets: int) -> list[torch.Tensor]:
    """Draw weights from -1 to 1."""
    return [torch.rand(ACCOUNTS, assets) * 2 - 1 for _ in range(4)]


def run_loop(loop: ctypes.CDLL, market: MarketTensors, rows: np.ndarray) -> Run:
    """Step the accounts in C. `rows`: `[T, W]` of the market in an observation, W may be 0."""
    actions = [wish.numpy() for wish in list_actions(market.num_assets)]
    prices = [
        np.ascontiguousarray(one.numpy(), dtype=np.float32) for one in (market.close, market.open)
    ]
    most = np.floor(0.1 * market.volume.numpy()).astype(np.float32)
    states = np.zeros(ACCOUNTS, dtype="f8,f8,f8,i8,i8,u8")
    shares = np.zeros((ACCOUNTS, market.num_assets))
    order = np.zeros(market.num_assets)
    rewards = np.zeros(ACCOUNTS, dtype=np.float32)
    ended = np.zeros(ACCOUNTS, dtype=np.uint8)
    seen = np.zeros((ACCOUNTS, 4 + market.num_assets + rows.shape[1]), dtype=np.float32)
    sizes = (ACCOUNTS, market.num_assets)
    span = (ctypes.c_int64(market.num_bars), ctypes.c_int64(EPISODE))
    loop.start(*sizes, *span, *map(point_at, (states, shares)))
    others = (*prices, most, rows, states, shares, order, rewards, ended, seen)

    def run(steps: int) -> int:
        for number in range(steps):
            places = map(point_at, (actions[number % len(actions)], *others))
            loop.step(*sizes, rows.shape[1], *span, ctypes.c_double(2e-3), *places)
        return steps * ACCOUNTS

    return run


def point_at(array: np.ndarray) -> ctypes.c_void_p:
    """Return the address of an array's first number."""
    return ctypes.c_void_p(array.ctypes.data)


def run_env(market: MarketTensors, observation: str) -> Run:
    """Step the environment, every account beginning by itself."""
    settings = EnvSettings(episode_bars=EPISODE, start_groups=ACCOUNTS, observation=observation)
    env = TradingEnv(market, settings, num_envs=ACCOUNTS)
    env.reset(seed=0)
    actions = list_actions(market.num_assets)

    def run(steps: int) -> int:
        for number in range(steps):
            env.step(actions[number % len(actions)])
        return steps * ACCOUNTS

    return run


def main() -> None:
    """Measure and print."""
    options = read_arguments(__doc__, seed=0, quick=False)
    rounds = partial(alternate, rounds=3, seconds=0.1)
    if not options.quick:
        rounds = partial(alternate, rounds=12, seconds=0.4)
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    market = make_random_market(4096, 100, 8, seed=options.seed)
    rows = {
        "flat": np.random.default_rng(0).random((market.num_bars, 900), dtype=np.float32),
        "private": np.zeros((market.num_bars, 0), dtype=np.float32),
    }
    figures = Figures(accounts=ACCOUNTS)
    with tempfile.TemporaryDirectory() as folder:
        loop = build_loop(Path(folder))
        runs = {f"loop_{name}": run_loop(loop, market, one) for name, one in rows.items()}
        runs["env_flat"] = run_env(market, "flat")
        runs["env_private"] = run_env(market, "factored")
        rates = rounds(runs)
    figures.add_rates(rates, "{}_steps_per_second")
    for name in rows:
        figures.add_times(f"{name}_times_loop", rates[f"env_{name}"], rates[f"loop_{name}"])
    finish("account_loop", figures, options)


if __name__ == "__main__":
    main()
