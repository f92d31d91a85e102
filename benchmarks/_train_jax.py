"""The default PPO in JAX: the peer of `training.py` that wastes no time between operations.

One compiled call is a whole update: acting, the account, advantages and all gradient steps, with
the same networks (`market_once`), `aim` head, lasting noise, scaled rewards, baseline of the
accounts at a bar and minibatches of bars as `fintrader.agents.PPO()`. The account is the simple
core of ours: long-only target weights, whole shares, costs in proportion, a share of the bar's
volume at most, the next open or close. It has no splits, dividends, short positions, orders that
rest or checks of numbers. Money is in float64, networks in float32, as with us.

Import it by `load_jax` of _train_peers.py, which fetches jax.
"""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fintrader.agents import PPO
from fintrader.envs import EnvSettings
from fintrader.market.tensors import MarketTensors

jax.config.update("jax_enable_x64", True)
GROUPS = 16
"""Bars that accounts stand at: `env.start_groups` of the default."""


class Bars(NamedTuple):
    """A market: prices and the most that an order may trade `[T, N]`, standardised features and
    tradability `[T, N, P]`."""

    close: Array
    fill: Array
    most: Array
    own: Array


class Account(NamedTuple):
    """G groups of K accounts: where each group stands, `[G]`, and what accounts own, `[G, K(, N)]`."""

    bar: Array
    end: Array
    cash: Array
    shares: Array
    equity: Array


def stack_features(market: MarketTensors) -> np.ndarray:
    """Put each asset's features and tradability together: `[T, N, P]`."""
    tradable = market.tradable.float().numpy()[..., None]
    return np.concatenate([market.features.numpy(), tradable], axis=2)


def merge(count, mean, var, values):
    """Merge the count, mean and variance so far with those of `values`."""
    total = count + values.size
    delta = values.mean() - mean
    squares = var * count + values.var() * values.size
    var = (squares + delta**2 * count * values.size / total) / total
    return total, mean + delta * values.size / total, var


def make_network(keys, sizes, gains, outputs):
    """Make a trunk and its two heads."""

    def make(wide_in: int, wide_out: int, gain: float):
        weight = jax.nn.initializers.orthogonal(gain)(next(keys), (wide_in, wide_out), jnp.float32)
        return weight, jnp.zeros(wide_out, jnp.float32)

    layers = []
    shared = 1
    for wide_in, wide_out in itertools.pairwise(sizes):
        layers.append((make(wide_in, wide_out, 2**0.5), make(shared, wide_out, 1.0)))
        shared = wide_out
    return layers, [make(shared, out, gain) for out, gain in zip(outputs, gains, strict=True)]


def run_network(network, own: Array) -> tuple[Array, Array]:
    """Map `[..., N, P]` to what the heads make of each asset and of their mean."""
    layers, heads = network
    mean = jnp.zeros((*own.shape[:-2], 1), jnp.float32)
    for (weight, bias), (common, shift) in layers:
        shared = (mean @ common + shift)[..., None, :]
        own = jax.nn.relu(own @ weight + bias + shared)
        mean = own.mean(-2)
    (first, bias), (second, shift) = heads
    return own @ first + bias, mean @ second + shift


def find_means(weights, own: Array) -> Array:
    """Compute the means of the latents, `[..., N + 1]`."""
    each, top = run_network(weights["actor"], own)
    return jnp.tanh(jnp.concatenate([each[..., 0], 0.25 * top], -1))


def find_values(weights, own: Array, held: Array, holdings) -> Array:
    """Compute the values of accounts `[..., K]` that hold `held [..., K, N]`, which are
    standardised by the count, mean and variance of `holdings`."""
    _, centre, var = holdings
    held = jnp.clip((held - centre) / jnp.sqrt(var + 1e-8), -10, 10)
    each, top = run_network(weights["critic"], own)
    linear = each[..., None, :, 0]
    square = each[..., None, :, 1]
    return top + ((linear + square * held) * held).mean(-1)


def weigh(account: Account, market: Bars) -> Array:
    """Compute the weights held."""
    price = market.close[account.bar][:, None]
    return (account.shares * price / account.equity[..., None]).astype(jnp.float32)


class JaxPPO:
    """One agent in one market."""

    def __init__(
        self, market: MarketTensors, env: EnvSettings, agent: PPO, accounts: int, seed: int
    ) -> None:
        self.env = env
        self.agent = agent
        self.shape = (GROUPS, accounts // GROUPS, market.num_assets)
        self.steps = accounts * agent.num_steps
        filled = market.close if env.fill == "next_close" else market.open
        close, fill, volume = (
            np.nan_to_num(one.double().numpy()) for one in (market.close, filled, market.volume)
        )
        own = stack_features(market)
        self.centre = own.mean((0, 1))
        self.scale = np.sqrt(own.var((0, 1)) + 1e-8)
        most = np.trunc(volume * env.participation)
        self.market = Bars(*map(jnp.asarray, (close, fill, most)), self.describe(market))
        self.last_start = market.num_bars - env.episode_bars
        self._update = jax.jit(self.update_once, donate_argnums=0)
        self._weigh_bars = jax.jit(lambda weights, own: self.aim(find_means(weights, own)))
        self.restart(seed)

    def restart(self, seed: int) -> None:
        """Begin again with new weights and accounts; what is compiled stays."""
        agent = self.agent
        keys = iter(jax.random.split(jax.random.key(seed), 64))
        sizes = [len(self.centre), *agent.network.hidden]
        weights = {
            "actor": make_network(keys, sizes, (0.01, 0.01), (1, 1)),
            "critic": make_network(keys, sizes, (1.0, 1.0), (2, 1)),
        }
        moments = [jax.tree.map(jnp.zeros_like, weights) for _ in range(2)]
        account = self.open_accounts(next(keys))
        groups, accounts, assets = self.shape
        noise = jax.random.normal(next(keys), (groups, accounts, assets + 1), jnp.float32)
        scale = (jnp.zeros((groups, accounts), jnp.float32), *map(jnp.float32, (0, 0, 0)))
        holdings = tuple(map(jnp.float32, (math.prod(self.shape), 0, 0)))  # of accounts in cash
        log_std = jnp.float32(math.log(agent.noise))
        adam = (*moments, jnp.float32(0))
        self.state = (weights, adam, account, noise, log_std, scale, holdings, next(keys))

    def describe(self, market: MarketTensors) -> Array:
        """Standardise the features by the training market's moments."""
        return jnp.asarray((stack_features(market) - self.centre) / self.scale, jnp.float32)

    def decide(self, market: MarketTensors) -> np.ndarray:
        """Compute the target weights `[T, N]` at all bars of a market of as many assets, without
        noise."""
        return np.array(self._weigh_bars(self.state[0], self.describe(market)))

    def update(self) -> int:
        """Make one update; return its env-steps."""
        self.state = jax.block_until_ready(self._update(self.state, self.market))
        return self.steps

    def aim(self, latent: Array) -> Array:
        """Turn latents `[..., N + 1]`, the last one for cash, into target weights `[..., N]`."""
        head = self.agent.head
        logits = head.scale * latent
        logits = logits.at[..., -1].add(math.log(latent.shape[-1] - 1) + head.cash_logit)
        return jax.nn.softmax(logits, -1)[..., :-1]

    # The account

    def open_accounts(self, key) -> Account:
        """Open accounts in cash at bars drawn for each group."""
        start = jax.random.randint(key, (GROUPS,), 0, self.last_start)
        # Each has memory of its own, which an update overwrites. A type by name is not a weak one,
        # with which the first update and the second would be compiled apart.
        full = partial(jnp.full, dtype=jnp.float64)
        cash, equity = (full(self.shape[:2], self.env.initial_cash_usd) for _ in range(2))
        shares = full(self.shape, 0.0)
        return Account(start, start + self.env.episode_bars, cash, shares, equity)

    def step(self, account: Account, action: Array, key, market: Bars):
        """Trade once: the account after the step, then after a new start, reward and end."""
        rate = (self.env.cost_bps + self.env.half_spread_bps) / 1e4
        price = market.close[account.bar][:, None]
        target = jnp.trunc(action * account.equity[..., None] / jnp.where(price > 0, price, 1))
        gap = jnp.trunc(self.env.trade_rate * (target - account.shares))
        bar = jnp.minimum(account.bar + 1, account.end)
        fill = market.fill[bar][:, None]
        most = market.most[bar][:, None]
        order = jnp.where(fill > 0, jnp.clip(gap, -most, most), 0)
        sold = jnp.minimum(jnp.maximum(-order, 0), account.shares)
        cash = account.cash + (1 - rate) * (sold * fill).sum(-1)
        wanted = jnp.maximum(order, 0)
        cost = (1 + rate) * (wanted * fill).sum(-1)
        affordable = jnp.minimum(1, cash / jnp.maximum(cost, 1e-9))
        bought = jnp.trunc(affordable[..., None] * wanted)
        cash = jnp.maximum(cash - (1 + rate) * (bought * fill).sum(-1), 0)
        shares = account.shares - sold + bought
        equity = cash + (shares * market.close[bar][:, None]).sum(-1)
        reward = self.env.reward_scale * jnp.log(equity / account.equity)
        after = Account(bar, account.end, cash, shares, equity)
        done = bar >= account.end

        def start_again(fresh: Array, old: Array) -> Array:
            return jnp.where(done.reshape(-1, *[1] * (old.ndim - 1)), fresh, old)

        following = jax.tree.map(start_again, self.open_accounts(key), after)
        return (
            after,
            following,
            reward.astype(jnp.float32),
            jnp.broadcast_to(done[:, None], reward.shape),
        )

    # An update

    def update_once(self, state, market: Bars):
        """Collect a rollout and learn from it."""
        agent = self.agent
        weights, adam, account, noise, log_std, scale, holdings, key = state
        key, *drawn = jax.random.split(key, 4)
        fresh = jax.random.normal(drawn[0], (agent.num_steps, *noise.shape), jnp.float32)
        ends = jax.random.split(drawn[1], agent.num_steps)

        def value_of(account: Account, held: Array) -> Array:
            return find_values(weights, market.own[account.bar], held, holdings)

        def act(carry, given):
            account, noise = carry
            noise = 0.9 * noise + (1 - 0.9**2) ** 0.5 * given[0]
            mean = find_means(weights, market.own[account.bar])
            latent = mean[:, None] + jnp.exp(log_std) * noise
            held = weigh(account, market)
            after, following, reward, done = self.step(account, self.aim(latent), given[1], market)
            value = value_of(account, held)
            last = jax.lax.cond(
                done.any(),
                lambda: value_of(after, weigh(after, market)),
                lambda: jnp.zeros_like(value),
            )
            log_prob = -0.5 * noise**2 - log_std
            kept = (account.bar, held, latent, log_prob, reward, done, value, last)
            return (following, noise), kept

        (account, noise), kept = jax.lax.scan(act, (account, noise), (fresh, ends))
        bar, held, latent, log_prob, reward, done, value, last = kept
        reward, scale = self.scale_rewards(reward, done, scale)
        final = value_of(account, weigh(account, market))
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
        holdings = merge(*holdings, held)
        return weights, adam, account, noise, log_std, scale, holdings, key

    def scale_rewards(self, reward: Array, done: Array, scale):
        """Divide by the deviation of the discounted returns so far."""
        running, *moments = scale

        def add(running, given):
            total = running + given[0]
            return total * self.agent.gamma * (1 - given[1]), total

        running, returns = jax.lax.scan(add, running, (reward, done.astype(jnp.float32)))
        moments = merge(*moments, returns)
        return jnp.clip(reward / jnp.sqrt(moments[2] + 1e-16), -10, 10), (running, *moments)

    def estimate(self, reward: Array, done: Array, value: Array, following: Array) -> Array:
        """Estimate advantages with GAE."""
        decay = self.agent.gamma * self.agent.gae_lambda
        delta = reward + self.agent.gamma * following - value

        def go_back(trace, given):
            trace = given[0] + decay * (1 - given[1]) * trace
            return trace, trace

        pair = (delta, done.astype(delta.dtype))
        return jax.lax.scan(go_back, jnp.zeros_like(delta[0]), pair, reverse=True)[1]

    def descend(self, carry, order: Array, *, rows, log_std: Array, market: Bars, holdings):
        """Take one step of Adam on the bars `order`."""
        agent = self.agent
        weights, (first, second, steps) = carry
        bar, held, latent, log_prob, advantage, target = (one[order] for one in rows)
        own = market.own[bar]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)

        def find_loss(weights) -> Array:
            mean = find_means(weights, own)[:, None]
            distance = (latent - mean) * jnp.exp(-log_std)
            ratio = jnp.exp(-0.5 * distance**2 - log_std - log_prob)
            near = jnp.clip(ratio, 1 - agent.clip_coef, 1 + agent.clip_coef)
            gain = advantage[..., None]
            surrogate = jnp.minimum(ratio * gain, near * gain).sum(-1).mean()
            error = find_values(weights, own, held, holdings) - target
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
