"""Traders with one signal in one market, in plain Python: each buys once, at a price that all orders
have moved, and is paid a known return; a Cournot game of dollars.

Slow and obvious: best responses are searched for on ever finer grids, one trader (or team) after
the other, until none moves.
"""

from __future__ import annotations


def profits(
    bought: list[float], expected_return: float, kappa: float, limit: float = 0.1
) -> list[float]:
    """USD that each trader gains who buys for these USD at the price before any order."""
    move = max(-limit, min(limit, kappa * sum(bought)))
    return [usd * (expected_return - move) for usd in bought]


def share(own: list[float], teams: list[int], cooperation: float) -> list[float]:
    """Rewards of the traders, team by team."""
    rewards = []
    first = 0
    for size in teams:
        members = own[first : first + size]
        others = own[:first] + own[first + size :]
        team = sum(members) / size
        if cooperation >= 0.0:
            reward = (1.0 - cooperation) * team + cooperation * sum(own) / len(own)
        else:
            reward = team + cooperation * (sum(others) / len(others) if others else 0.0)
        rewards += [reward] * size
        first += size
    return rewards


def find_equilibrium(
    teams: list[int], cooperation: float, expected_return: float, kappa: float
) -> list[float]:
    """USD that each trader buys once no team gains by another amount, equal for its members."""
    amounts = [0.0] * len(teams)

    def reward_of(team: int, usd: float) -> float:
        tried = amounts[:team] + [usd] + amounts[team + 1 :]
        bought = [each for each, size in zip(tried, teams, strict=True) for _ in range(size)]
        own = profits(bought, expected_return, kappa)
        return share(own, teams, cooperation)[sum(teams[:team])]

    for _ in range(200):
        before = list(amounts)
        for team in range(len(teams)):
            low, high = 0.0, expected_return / kappa
            while high - low > 1e-9 * expected_return / kappa:
                step = (high - low) / 10.0
                best = max(range(11), key=lambda k: reward_of(team, low + k * step))
                middle = low + best * step
                low, high = max(0.0, middle - step), middle + step
            amounts[team] = 0.5 * (low + high)
        if max(abs(a - b) for a, b in zip(amounts, before, strict=True)) < 1e-7 * sum(before):
            break
    return [each for each, size in zip(amounts, teams, strict=True) for _ in range(size)]
