"""The default PPO in JAX: the peer of `training.py` that wastes no time between operations.

One compiled call is a whole update: acting, the account, advantages and all gradient steps, with
the same networks (`market_once`), `aim` head, lasting noise, scaled rewards, baseline of the
accounts at a bar and minibatches of bars as `fintrader.agents.PPO()`. The account is the simple
core of ours: long-only target weights, whole shares, costs in proportion, a share of the bar's
volume at most, the next open or close. It has no splits, dividends, short positions, orders that
rest or checks of numbers. Money is in float64, networks in float32, as with us.

Needs jax and jaxlib, which `install_peer` fetches with what they need.
"""

from __future__ import annotations

import itertools
import math
import os
import sys
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from benchmarks._bench import NoPeer, install_peer
from fintrader.agents import PPO
from fintrader.envs import EnvSettings
from fintrader.market.tensors import MarketTensors

PACKAGES = {"jax": "0.10.2", "jaxlib": "0.10.2", "ml_dtypes": "0.6.0", "opt_einsum": "3.4.0"}
GROUPS = 16
"""Bars that accounts stand at: `env.start_groups` of the default."""


def load_jax() -> Any:
    """The package, on one thread. Raises NoPeer."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    for name, version in PACKAGES.items():
        sys.path.append(str(install_peer(name, version)))
    try:
        import jax
    except ImportError as error:
        raise NoPeer(f"jax cannot be imported here: {error}") from None
    jax.config.update("jax_enable_x64", True)
    return jax


class Account(NamedTuple):
    """G groups of K accounts: where each group stands, `[G]`, and what accounts own, `[G, K(, N)]`."""

    bar: Any
    end: Any
    cash: Any
    shares: Any
    equity: Any


class JaxPPO:
    """One agent in one market."""

    def __init__(
        self, market: MarketTensors, env: EnvSettings, agent: PPO, accounts: int, seed: int
    ) -> None:
        """Raises NoPeer."""
        self.jax = jax = load_jax()
        self.jnp = jnp = jax.numpy
        self.env = env
        self.agent = agent
        self.accounts = accounts
        self.shape = (GROUPS, accounts // GROUPS, market.num_assets)
        filled = market.close if env.fill == "next_close" else market.open
        dollars = {"close": market.close, "open": filled, "volume": market.volume}
        arrays = {name: np.nan_to_num(one.double().numpy()) for name, one in dollars.items()}
        own = self.describe(market)
        self.centre = own.mean((0, 1))
        self.scale = np.sqrt(own.var((0, 1)) + 1e-8)
        own = (own - self.centre) / self.scale
        most = np.trunc(arrays["volume"] * env.participation)
        market_arrays = (arrays["close"], arrays["open"], most, own.astype(np.float32))
        self.market = tuple(map(jnp.asarray, market_arrays))
        self.bars = market.num_bars
        self._update = jax.jit(self.update_once, donate_argnums=0)
        self._weigh_bars = jax.jit(self.find_weights)
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """Begin again with new weights and accounts; what is compiled stays."""
        jax = self.jax
        jnp = self.jnp
        env, agent = self.env, self.agent
        keys = iter(jax.random.split(jax.random.key(seed), 64))
        sizes = [len(self.centre), *agent.network.hidden]
        weights = {
            "actor": self.make_network(keys, sizes, (0.01, 0.01), (1, 1)),
            "critic": self.make_network(keys, sizes, (1.0, 1.0), (2, 1)),
        }
        moments = [jax.tree.map(jnp.zeros_like, weights) for _ in range(2)]
        money = np.full(self.shape[:2], env.initial_cash_usd)
        start = self.draw_starts(next(keys))
        empty = jnp.zeros(self.shape, jnp.float64)
        account = Account(
            start, start + env.episode_bars, jnp.array(money), empty, jnp.array(money)
        )
        noise = jax.random.normal(next(keys), (*self.shape[:2], self.shape[2] + 1), jnp.float32)
        scale = (jnp.zeros(self.shape[:2], jnp.float32), *map(jnp.float32, (0, 0, 0)))
        holdings = tuple(map(jnp.float32, (math.prod(self.shape), 0, 0)))  # of accounts in cash
        log_std = jnp.float32(math.log(agent.noise))
        adam = (*moments, jnp.float32(0))
        self.state = (weights, adam, account, noise, log_std, scale, holdings, next(keys))

    @staticmethod
    def describe(market: MarketTensors) -> np.ndarray[Any, Any]:
        """Put each asset's features and tradability together: `[T, N, P]`."""
        tradable = market.tradable.float().numpy()[..., None]
        return np.concatenate([market.features.numpy(), tradable], axis=2)

    def decide(self, market: MarketTensors) -> np.ndarray[Any, Any]:
        """Compute the target weights `[T, N]` at all bars of a market of as many assets, without
        noise."""
        own = (self.describe(market) - self.centre) / self.scale
        return np.array(self._weigh_bars(self.state[0], self.jnp.asarray(own, self.jnp.float32)))

    def update(self) -> int:
        """Make one update; return its env-steps."""
        self.state = self.jax.block_until_ready(self._update(self.state, self.market))
        return self.accounts * self.agent.num_steps

    # Networks

    def make_network(self, keys: Any, sizes: Any, gains: Any, outputs: Any) -> Any:
        """Make a trunk and its two heads."""

        def make(wide_in: int, wide_out: int, gain: float) -> Any:
            draw = self.jax.nn.initializers.orthogonal(gain)
            weight = draw(next(keys), (wide_in, wide_out), self.jnp.float32)
            return weight, self.jnp.zeros(wide_out, self.jnp.float32)

        layers = []
        shared = 1
        for wide_in, wide_out in itertools.pairwise(sizes):
            layers.append((make(wide_in, wide_out, 2**0.5), make(shared, wide_out, 1.0)))
            shared = wide_out
        heads = [make(shared, out, gain) for out, gain in zip(outputs, gains, strict=True)]
        return layers, heads

    def run_network(self, network: Any, own: Any) -> tuple[Any, Any]:
        """Map `[..., N, P]` to what the heads make of each asset and of their mean."""
        layers, heads = network
        mean = self.jnp.zeros((*own.shape[:-2], 1), self.jnp.float32)
        for (weight, bias), (common, shift) in layers:
            shared = (mean @ common + shift)[..., None, :]
            own = self.jax.nn.relu(own @ weight + bias + shared)
            mean = own.mean(-2)
        (first, bias), (second, shift) = heads
        return own @ first + bias, mean @ second + shift

    def find_means(self, weights: Any, own: Any) -> Any:
        """Compute the means of the latents, `[..., N + 1]`."""
        each, top = self.run_network(weights["actor"], own)
        return self.jnp.tanh(self.jnp.concatenate([each[..., 0], 0.25 * top], -1))

    def find_weights(self, weights: Any, own: Any) -> Any:
        """Compute the target weights of the means, `[..., N]`."""
        return self.aim(self.find_means(weights, own))

    def aim(self, latent: Any) -> Any:
        """Turn latents `[..., N + 1]`, the last one for cash, into target weights `[..., N]`."""
        head = self.agent.head
        logits = head.scale * latent
        logits = logits.at[..., -1].add(math.log(latent.shape[-1] - 1) + head.cash_logit)
        return self.jax.nn.softmax(logits, -1)[..., :-1]

    def find_values(self, weights: Any, own: Any, held: Any, holdings: Any) -> Any:
        """Compute the values of accounts `[..., K]` that hold `held [..., K, N]`, which are
        standardised by the count, mean and variance of `holdings`."""
        _, centre, var = holdings
        held = self.jnp.clip((held - centre) / self.jnp.sqrt(var + 1e-8), -10, 10)
        each, top = self.run_network(weights["critic"], own)
        linear = each[..., None, :, 0]
        square = each[..., None, :, 1]
        return top + ((linear + square * held) * held).mean(-1)

    # The account

    def draw_starts(self, key: Any) -> Any:
        """Draw a first bar for each group."""
        last = self.bars - self.env.episode_bars
        return self.jax.random.randint(key, (GROUPS,), 0, last)

    def weigh(self, account: Account, market: Any) -> Any:
        """Compute the weights held."""
        price = market[0][account.bar][:, None]
        share = account.shares * price / account.equity[..., None]
        return share.astype(self.jnp.float32)

    def step(self, account: Account, action: Any, key: Any, market: Any) -> Any:
        """Trade once: the account after the step, then after a new start, reward and end."""
        jnp = self.jnp
        close, opens, volumes, _ = market
        rate = (self.env.cost_bps + self.env.half_spread_bps) / 1e4
        price = close[account.bar][:, None]
        target = jnp.trunc(action * account.equity[..., None] / jnp.where(price > 0, price, 1))
        gap = jnp.trunc(self.env.trade_rate * (target - account.shares))
        bar = jnp.minimum(account.bar + 1, account.end)
        fill = opens[bar][:, None]
        most = volumes[bar][:, None]
        order = jnp.where(fill > 0, jnp.clip(gap, -most, most), 0)
        sold = jnp.minimum(jnp.maximum(-order, 0), account.shares)
        cash = account.cash + (1 - rate) * (sold * fill).sum(-1)
        wanted = jnp.maximum(order, 0)
        cost = (1 + rate) * (wanted * fill).sum(-1)
        affordable = jnp.minimum(1, cash / jnp.maximum(cost, 1e-9))
        bought = jnp.trunc(affordable[..., None] * wanted)
        cash = jnp.maximum(cash - (1 + rate) * (bought * fill).sum(-1), 0)
        shares = account.shares - sold + bought
        equity = cash + (shares * close[bar][:, None]).sum(-1)
        reward = self.env.reward_scale * jnp.log(equity / account.equity)
        after = Account(bar, account.end, cash, shares, equity)
        done = bar >= account.end
        start = jnp.where(done, self.draw_starts(key), bar)
        money = jnp.full_like(cash, self.env.initial_cash_usd)
        over = done[:, None]
        fresh = Account(
            start,
            jnp.where(done, start + self.env.episode_bars, account.end),
            jnp.where(over, money, cash),
            jnp.where(over[..., None], 0, shares),
            jnp.where(over, money, equity),
        )
        return after, fresh, reward.astype(jnp.float32), jnp.broadcast_to(over, reward.shape)

    # An update

    def update_once(self, state: Any, market: Any) -> Any:
        """Collect a rollout and learn from it."""
        jax = self.jax
        jnp = self.jnp
        agent = self.agent
        weights, adam, account, noise, log_std, scale, holdings, key = state
        key, *drawn = jax.random.split(key, 4)
        fresh = jax.random.normal(drawn[0], (agent.num_steps, *noise.shape), jnp.float32)
        ends = jax.random.split(drawn[1], agent.num_steps)

        def act(carry: Any, given: Any) -> Any:
            account, noise = carry
            own = market[3][account.bar]
            noise = 0.9 * noise + (1 - 0.9**2) ** 0.5 * given[0]
            latent = self.find_means(weights, own)[:, None] + jnp.exp(log_std) * noise
            action = self.aim(latent)
            held = self.weigh(account, market)
            after, next_account, reward, done = self.step(account, action, given[1], market)
            value = self.find_values(weights, own, held, holdings)
            last = jax.lax.cond(
                done.any(),
                lambda: self.find_values(
                    weights, market[3][after.bar], self.weigh(after, market), holdings
                ),
                lambda: jnp.zeros_like(value),
            )
            log_prob = -0.5 * noise**2 - log_std
            kept = (account.bar, held, latent, log_prob, reward, done, value, last)
            return (next_account, noise), kept

        (account, noise), kept = jax.lax.scan(act, (account, noise), (fresh, ends))
        bar, held, latent, log_prob, reward, done, value, last = kept
        reward, scale = self.scale_rewards(reward, done, scale)
        final = self.find_values(
            weights, market[3][account.bar], self.weigh(account, market), holdings
        )
        following = jnp.where(done, last, jnp.concatenate([value[1:], final[None]]))
        advantage = self.estimate(reward, done, value, following)
        target = advantage + value
        others = self.shape[1]
        advantage = (advantage - advantage.mean(2, keepdims=True)) * others / (others - 1)
        rows = (bar, held, latent, log_prob, advantage, target)
        count = agent.num_steps * GROUPS
        rows = tuple(one.reshape(count, *one.shape[2:]) for one in rows)
        orders = [
            jax.random.permutation(one, count).reshape(agent.num_minibatches, -1)
            for one in jax.random.split(drawn[2], agent.update_epochs)
        ]
        descend = partial(
            self.descend, rows=rows, log_std=log_std, market=market, holdings=holdings
        )
        (weights, adam), _ = jax.lax.scan(descend, (weights, adam), jnp.concatenate(orders))
        floor = jnp.minimum(log_std, math.log(0.2))
        log_std = jnp.maximum(log_std + math.log1p(-agent.noise_decay), floor)
        holdings = self.merge(*holdings, held)
        return weights, adam, account, noise, log_std, scale, holdings, key

    @staticmethod
    def merge(count: Any, mean: Any, var: Any, values: Any) -> tuple[Any, Any, Any]:
        """Merge the count, mean and variance so far with those of `values`."""
        total = count + values.size
        delta = values.mean() - mean
        squares = var * count + values.var() * values.size
        var = (squares + delta**2 * count * values.size / total) / total
        return total, mean + delta * values.size / total, var

    def scale_rewards(self, reward: Any, done: Any, scale: Any) -> Any:
        """Divide by the deviation of the discounted returns so far."""
        jnp = self.jnp
        running, count, mean, var = scale

        def add(running: Any, given: Any) -> Any:
            total = running + given[0]
            return total * self.agent.gamma * (1 - given[1]), total

        running, returns = self.jax.lax.scan(add, running, (reward, done.astype(jnp.float32)))
        count, mean, var = self.merge(count, mean, var, returns)
        return jnp.clip(reward / jnp.sqrt(var + 1e-16), -10, 10), (running, count, mean, var)

    def estimate(self, reward: Any, done: Any, value: Any, following: Any) -> Any:
        """Estimate advantages with GAE."""
        decay = self.agent.gamma * self.agent.gae_lambda
        delta = reward + self.agent.gamma * following - value

        def go_back(trace: Any, given: Any) -> Any:
            trace = given[0] + decay * (1 - given[1]) * trace
            return trace, trace

        zeros = self.jnp.zeros_like(delta[0])
        pair = (delta, done.astype(delta.dtype))
        return self.jax.lax.scan(go_back, zeros, pair, reverse=True)[1]

    def descend(
        self, carry: Any, order: Any, *, rows: Any, log_std: Any, market: Any, holdings: Any
    ) -> Any:
        """Take one step of Adam on the bars `order`."""
        jax = self.jax
        jnp = self.jnp
        agent = self.agent
        weights, (first, second, steps) = carry
        bar, held, latent, log_prob, advantage, target = (one[order] for one in rows)
        own = market[3][bar]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

        def find_loss(weights: Any) -> Any:
            mean = self.find_means(weights, own)[:, None]
            distance = (latent - mean) * jnp.exp(-log_std)
            ratio = jnp.exp(-0.5 * distance**2 - log_std - log_prob)
            near = jnp.clip(ratio, 1 - agent.clip_coef, 1 + agent.clip_coef)
            gain = advantage[..., None]
            surrogate = jnp.minimum(ratio * gain, near * gain).sum(-1).mean()
            error = self.find_values(weights, own, held, holdings) - target
            return agent.vf_coef * 0.5 * (error**2).mean() - surrogate

        grads = jax.grad(find_loss)(weights)
        norm = jnp.sqrt(sum((one**2).sum() for one in jax.tree.leaves(grads)))
        share = jnp.minimum(1, agent.max_grad_norm / (norm + 1e-6))
        steps = steps + 1
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * share * g, first, grads)
        second = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * (share * g) ** 2, second, grads)
        rate = agent.learning_rate / (1 - 0.9**steps)
        root = jnp.sqrt(1 - 0.999**steps)
        weights = jax.tree.map(
            lambda w, m, v: w - rate * m / (jnp.sqrt(v) / root + 1e-5), weights, first, second
        )
        return (weights, (first, second, steps)), None
