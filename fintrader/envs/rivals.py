"""`RivalsEnv`: games in which policies that do not learn play all teams but the first.

Learners that take turns, each against the others' last policies, find an equilibrium of several
policies where there is one (iterated best responses).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from fintrader.envs.account import Account
from fintrader.envs.episodes import observe
from fintrader.envs.games import lay_out_teams
from fintrader.envs.observation import MarketTable, ResetReturn, StateDict, StepReturn
from fintrader.envs.settings import EnvSettings
from fintrader.envs.trading import Policy, TradingEnv
from fintrader.errors import EnvError


class RivalsEnv:
    """The first team's traders of all games of `env`, as one `TrainingEnvironment`.

    Observations `[B, D]` (or factored, as those of `env`), actions `[B, N]`, rewards `[B]`: with m
    traders in the first team, each m consecutive accounts trade in one game. A stored state does
    not hold the rivals: resume with the same ones.
    """

    def __init__(self, env: TradingEnv, rivals: Sequence[Policy]) -> None:
        """Let one policy play each team from the second on.

        Raises EnvError for another number of policies, or one that reads other observations.
        """
        traders = env.settings.traders
        teams = () if traders is None else traders.teams
        if len(teams) != len(rivals) + 1:
            raise EnvError(
                f"{len(rivals)} rivals play against {len(teams)} teams; give one policy for each"
                " team of env.traders.teams but the first"
            )
        for policy in rivals:
            if getattr(policy, "layout", env.layout) != env.layout:
                raise EnvError(
                    "a rival reads other observations; give one trained on these symbols and"
                    " features"
                )
        self.env = env
        self.rivals = rivals
        self.settings = env.settings
        self.layout = env.layout
        self.market = env.market
        self.device = env.device
        self.autoreset_mode = env.autoreset_mode
        _, team = lay_out_teams(teams, env.device)
        team = team.repeat(env.num_envs // len(team))
        self._rows = [torch.nonzero(team == number).flatten() for number in range(len(teams))]
        self.num_traders = teams[0]
        self.num_envs = len(self._rows[0])

    @property
    def table(self) -> MarketTable:
        """Rows of the market, as of `env`."""
        return self.env.table

    def with_settings(self, settings: EnvSettings) -> RivalsEnv:
        """Make an environment like this one with other settings, before its first reset."""
        return RivalsEnv(self.env.with_settings(settings), self.rivals)

    def reset(self, *, seed: int | None = None) -> ResetReturn:
        """Begin all games; a seed restarts their random streams."""
        return self._select(self.env.reset(seed=seed)[0]), {}

    def step(self, actions: Tensor) -> StepReturn:
        """Carry out one decision of every trader (see `TradingEnv.step`)."""
        account = self.env.account
        shape = (self.num_envs, self.layout.num_actions)
        if not isinstance(actions, Tensor) or tuple(actions.shape) != shape:
            raise EnvError(f"actions must be a tensor of shape {shape}")
        whole = actions.new_zeros(self.env.num_envs, shape[1])
        whole[self._rows[0]] = actions
        with torch.no_grad():
            for rows, policy in zip(self._rows[1:], self.rivals, strict=True):
                team = Account(*(part[rows] for part in account))
                whole[rows] = policy(observe(self.env.view, team, torch.float32))
        obs, reward, terminated, truncated, info = self.env.step(whole)
        own = self._rows[0]
        shown = {name: self._select(info[name]) for name in ("final_obs", "_final_obs")}
        return self._select(obs), reward[own], terminated[own], truncated[own], shown

    def state_dict(self) -> StateDict:
        """Collect the state for a bit-exact continuation (without rivals, market and settings)."""
        return self.env.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Continue from `state_dict`. Raises CheckpointError unless it fits."""
        self.env.load_state_dict(state)

    def _select(self, shown: Any) -> Any:
        """Select the first team's rows."""
        if isinstance(shown, Mapping):
            return {name: part[self._rows[0]] for name, part in shown.items()}
        return shown[self._rows[0]]
