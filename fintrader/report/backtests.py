"""`backtest` and `walk_forward`: a policy and its baselines over one window, or over the test
windows of all folds, as an object with a table, plots, a verdict and a report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from fintrader.agents.training import TrainResult
from fintrader.backtesting.all_baselines import Baselines, simulate_all_baselines
from fintrader.backtesting.analysis import analyse
from fintrader.backtesting.assessment import assess
from fintrader.backtesting.desk import OrderRule
from fintrader.backtesting.look_record import look_at
from fintrader.backtesting.policy_strategy import Predictor, is_predictor
from fintrader.backtesting.result import BacktestResult, Results, measured_against
from fintrader.backtesting.settings import WalkForwardSettings
from fintrader.backtesting.simulation import simulate
from fintrader.backtesting.walk_forward import cut_fold, make_folds, stitch
from fintrader.config import Settings
from fintrader.envs.benchmark import lay_out
from fintrader.envs.observation import FlatLayout, ObservationLayout
from fintrader.envs.settings import EnvSettings
from fintrader.envs.trading import Policy, TradingEnv
from fintrader.errors import BacktestError, check_keywords
from fintrader.market.tensors import MarketTensors, Split
from fintrader.numerals import significance
from fintrader.report.html import write_report
from fintrader.report.judged import PrintedVerdict
from fintrader.report.recipe import describe_software
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.context import BacktestContext
from fintrader.results.formatting import is_result
from fintrader.results.tabulation import tabulate
from fintrader.verdict.alpha import level_of_look
from fintrader.verdict.judge import read_trials
from fintrader.verdict.looks import HELD_OUT, count_look


@check_keywords
def backtest(
    policy: Policy | Predictor | OrderRule | TrainResult,
    market: MarketTensors,
    settings: EnvSettings | None = None,
    *,
    name: str = "policy",
    train: MarketTensors | None = None,
    validation: MarketTensors | None = None,
) -> Backtests:
    """Simulate `policy` on the whole of `market`, and baselines on the same bars at the same costs.

    The keys are `name`, `buy_and_hold`, `equal_weight`, `benchmark`, and the portfolio named by
    `settings.benchmark` if it is another. `settings` define the execution and cost of orders; pass
    those that the policy was trained with (`TradingEnv.settings`). `train=market.split().train`
    adds `ridge`: a linear regression on the same features, fitted on that window, with horizon,
    penalty and trade rate chosen on `validation`.

    A policy is any callable from observations `[B, D]`, as tensors or, if it fails on these, as
    numpy arrays, to actions `[B, N]` or `[N]` in any form that numpy reads. The verdict names a
    policy that gives two actions for one observation. A result of `train` counts as its policy.

    A model of Stable-Baselines3 or sb3-contrib can be passed directly. It is called by
    `predict(..., deterministic=True)` and keeps its recurrent state. Its VecNormalize, if it has
    one, normalises observations and is frozen. A stored model does not contain its VecNormalize;
    attach it by `PPO.load(path, env=VecNormalize.load(statistics, env))`.

    `backtesting.OrderRule(rule)` makes a policy of a rule that places orders: limits, stops,
    trailing stops and brackets.

    The result is recorded as a look at these bars on the user's ledger (`fintrader looks`), like
    the backtest of a run; `.look` is its number.

    Raises BacktestError for arguments of another kind or in another order, a policy made for
    another market, a window of fewer than two bars, and an output that cannot be traded; EnvError
    for a benchmark this market cannot make; LedgerError for a ledger that was changed.
    """
    _check_market(policy, market)
    settings = _check_settings(settings, name)
    settings = policy.adapt(settings) if isinstance(policy, OrderRule) else settings
    own = _trade(policy, market, settings, name)
    baselines = simulate_all_baselines(market, settings, train=train, validation=validation)
    results = baselines.join({name: own})
    look = _count_look("policy", [market], name, own)
    return Backtests(results, (market,), settings, baselines, look)


@check_keywords
def walk_forward(
    make_agent: Callable[[MarketTensors, MarketTensors], object],
    market: MarketTensors,
    settings: EnvSettings | None = None,
    *,
    folds: int | WalkForwardSettings = 5,
    name: str = "policy",
) -> Backtests:
    """Train and test fold by fold: all test windows in a row are one backtest, each bar tested
    once.

    `make_agent(train, validation)` gets those two windows of a fold, never its test window, and
    returns anything that `backtest` takes. `market`: the whole market; its training window is the
    first fold's. `folds`: the lengths of the windows, or the number of test windows; then these and
    one validation window have equal lengths. `settings` and `name` as for `backtest`. Every
    baseline is simulated in the same windows, ridge fitted anew on each fold.

    The look at all test windows is counted once. Raises BacktestError as `backtest` does, for a
    market too short for the folds, and when the strategy loses its capital before the last fold.
    """
    if isinstance(make_agent, MarketTensors | Settings) or not callable(make_agent):
        raise BacktestError(
            "the first argument makes a fold's policy: def make_agent(train, validation): return"
            " fintrader.train(fintrader.agents.PPO(), fintrader.TradingEnv(train), seconds=30)."
            f" It is no {type(make_agent).__name__}"
        )
    try:
        signature(make_agent).bind(market, market)
    except TypeError as error:
        raise BacktestError(
            f"make_agent is called with two windows, make_agent(train, validation): {error}"
        ) from None
    _check_market(make_agent, market)
    settings = _check_settings(settings, name)
    own = []
    rivals = []
    windows = []
    for fold in make_folds(market, folds):
        part = cut_fold(market, fold).split()
        policy = make_agent(part.train, part.validation)
        settings = policy.adapt(settings) if isinstance(policy, OrderRule) else settings
        own.append(_trade(policy, part.test, settings, name))
        rivals.append(
            simulate_all_baselines(
                part.test, settings, train=part.train, validation=part.validation
            )
        )
        windows.append(part.test)
    names = [key for key in rivals[0].results if all(key in one.results for one in rivals)]
    baselines = Baselines(
        {key: stitch([one.results[key] for one in rivals], name=key) for key in names},
        stitch([one.portfolio for one in rivals]),
        {key: reason for one in rivals for key, reason in one.left_out.items()},
    )
    whole = stitch(own, name=name)
    look = _count_look("walkforward", windows, name, whole)
    return Backtests(baselines.join({name: whole}), tuple(windows), settings, baselines, look)


def _check_settings(settings: EnvSettings | None, name: str) -> EnvSettings:
    if not is_result(name):
        raise BacktestError(
            f"name={name!r} is the name of a baseline; choose another name for the policy"
        )
    if settings is None or isinstance(settings, EnvSettings):
        return settings or EnvSettings()
    hint = "; pass its .env" if isinstance(getattr(settings, "env", None), EnvSettings) else ""
    raise BacktestError(
        "settings must be EnvSettings, such as those of the environment trained in"
        f" (env.settings), not {type(settings).__name__}{hint}"
    )


def _trade(
    policy: object, market: MarketTensors, settings: EnvSettings, name: str
) -> BacktestResult:
    """Simulate a policy on one window. Raises BacktestError if it is no policy, or made for
    another market."""
    if isinstance(policy, TrainResult):
        policy = policy.policy
    _check_policy(policy)
    _check_width(policy, lay_out(market, settings), name)
    return simulate(cast(Policy, policy), market, settings, name=name)


def _count_look(
    kind: str, windows: Sequence[MarketTensors], name: str, result: BacktestResult
) -> int | None:
    # Bars of several windows count as a look at the last window, which is held out longest.
    window = windows[0].cut_from[-1] if windows[0].cut_from else windows[0].window_name
    if window not in HELD_OUT:
        return None
    given = {"kind": kind, "run": name, "folder": "", "window": window}
    unknown = dict.fromkeys(("created", "seed", "trials", "command"))
    number, _ = count_look(look_at(windows, {name: result}, [name], **given, **unknown))
    return number


@dataclass(eq=False, repr=False)
class Backtests(Mapping[str, BacktestResult]):
    """Strategies over one window, ours first: name -> BacktestResult. Printed, it is the paper's
    table."""

    _results: dict[str, BacktestResult]
    windows: tuple[MarketTensors, ...]
    """The window that was traded, or the test windows of all folds."""
    settings: EnvSettings
    _baselines: Baselines
    look: int | None = None
    """Number of this look at the bars; None if not counted."""

    def __getitem__(self, name: str) -> BacktestResult:
        try:
            return self._results[name]
        except KeyError:
            raise KeyError(f"{name!r}; there are {', '.join(self._results)}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def __len__(self) -> int:
        return len(self._results)

    def __or__(self, others: Results) -> Backtests:
        """Add further results over the same window: `tests | {"other": result}`.

        Raises BacktestError when they cover other bars.
        """
        added = measured_against(others, self._baselines.portfolio)
        return replace(self, _results={**self._results, **added})

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the judged strategy's result, such as its `sharpe`."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._results[self.name], name)

    @property
    def name(self) -> str:
        """Name of the strategy that is judged."""
        return next(iter(self._results))

    @cached_property
    def tables(self) -> StoredBacktest:
        """Equity, positions, prices and trades as tables, for `fintrader.results.figures`."""
        context = BacktestContext(
            trading=self.settings.terms(), look=self.look, left_out=dict(self._baselines.left_out)
        )
        return tabulate(self._results, context)

    @property
    def trades(self) -> pd.DataFrame:
        """One row per fill: `strategy`, when it was decided and filled, symbol, signed shares,
        price and cost in USD."""
        return self.tables.trades

    @property
    def metrics(self) -> pd.DataFrame:
        """Table with a row for each strategy and a column for each metric of
        `fintrader.results.catalogue`."""
        return pd.DataFrame.from_dict(
            {name: values.by_key() for name, values in self.tables.metrics.items()}, orient="index"
        )

    def plot(self) -> go.Figure:
        """All equity curves, USD."""
        return self.tables.plot()

    @property
    def verdict(self) -> PrintedVerdict:
        """The verdict on a strategy chosen from an unknown number of trials; see `judge`."""
        return self.judge()

    @check_keywords
    def judge(self, trials: int | None = None) -> PrintedVerdict:
        """Judge the result, which was chosen from `trials` strategies (None: unknown).

        Training and validation windows (as marked in the market), and bars that the policy was
        trained on, get no verdict. A market that was never split gets no good verdict.

        Raises BacktestError when `trials` is no count.
        """
        found = assess(
            self._results,
            trials=read_trials(trials),
            look=self.look,
            market=self.windows,
            settings=self.settings,
        )
        return PrintedVerdict(**vars(found))

    @check_keywords
    def report(self, path: Path | str = "backtest.html", *, trials: int | None = None) -> Path:
        """Write one self-contained page, the verdict first; `trials` as for `judge`. Returns its
        path."""
        path = Path(path)
        if path.suffix not in (".html", ".htm"):
            raise BacktestError(f"a report is a page: {path} should end in .html")
        context = replace(
            self.tables.context,
            run="Backtest" if len(self.windows) == 1 else "Walk-forward",
            trials=trials,
            recipe=describe_software(),
        )
        found = analyse(self._results, self.windows)
        return write_report(
            path, tabulate(self._results, context, self.judge(trials), analysis=found)
        )

    def __repr__(self) -> str:
        return f"{self._title()}\n{self.tables!r}"

    def _repr_html_(self) -> str:
        return f"<p>{self._title()}</p>{self.tables._repr_html_()}"

    def _title(self) -> str:
        result = self[self.name]
        first, last = (
            np.datetime_as_string(window.timestamps()[place], unit="D")
            for window, place in ((self.windows[0], 0), (self.windows[-1], -1))
        )
        sessions = len(result.daily_returns)
        note = f"; {self.name}: {result.note}" if result.note else ""
        counted = ""
        if self.look is not None:
            stricter = significance(level_of_look(self.look + 1))
            counted = (
                f"\nThis is look {self.look} at this window (list: fintrader looks); the next look"
                f" is tested at {stricter}."
            )
        return (
            f"{first} to {last}, {sessions} sessions, net of {self.settings.cost_bps:g} bps a"
            f" trade{note}{counted}"
        )


# --- checks of arguments --------------------------------------------------------------------------


def _check_market(policy: object, market: object) -> None:
    if isinstance(market, MarketTensors):
        return
    order = "it is backtest(policy, market) and walk_forward(make_agent, market)"
    if isinstance(policy, MarketTensors | Split):
        raise BacktestError(f"the market comes second, the policy first; {order}: swap the two")
    if isinstance(market, Split):
        raise BacktestError(
            "a backtest trades one window; pass market.split().test, or another one by its name"
        )
    if isinstance(market, TradingEnv):
        raise BacktestError(
            "an environment was given for the market; pass env.market, and env.settings after it"
        )
    raise BacktestError(
        "the market must be MarketTensors (fintrader.load_market makes one), not"
        f" {type(market).__name__}; {order}"
    )


def _check_policy(policy: object) -> None:
    if is_predictor(policy) or (callable(policy) and not isinstance(policy, type)):
        return
    if isinstance(policy, MarketTensors | Split):
        raise BacktestError("a market was given for the policy; it is backtest(policy, market)")
    if isinstance(policy, str | Path):
        raise BacktestError(
            f"a policy is a callable; read the file first: fintrader.load_policy({str(policy)!r})"
        )
    if callable(getattr(policy, "policy", None)):
        raise BacktestError(f"{type(policy).__name__} is no policy, but has one; pass its .policy")
    raise BacktestError(
        "a policy is a callable from observations [B, D] to actions [B, N], such as those of"
        " fintrader.load_policy, not"
        f" {policy.__name__ if isinstance(policy, type) else type(policy).__name__}"
    )


def _check_width(policy: object, layout: ObservationLayout, name: str) -> None:
    """Raise BacktestError where a policy names a layout other than that of the observations."""
    own = getattr(policy, "layout", None)
    if not isinstance(own, ObservationLayout | FlatLayout) or own == layout:
        return
    if isinstance(own, ObservationLayout) and own.resting != layout.resting:
        action = "quote" if own.has_quotes else "limit" if own.resting else "target"
        stops = " and env.stop_offset_bps" if own.has_stops else ""
        raise BacktestError(
            f"{name} was trained with env.action {action}{stops}, and these settings have another"
            f" form of orders; give its own, such as EnvSettings(action={action!r})"
        )
    assets = "" if own.num_actions == layout.num_assets else f" and trades {own.num_actions} assets"
    raise BacktestError(
        f"{name} was trained on another market or lookback: it reads {own.width} columns{assets},"
        f" and this market shows {layout.width} columns of {layout.num_assets} assets; use a market"
        " with the same symbols and features, or load the policy for these:"
        " fintrader.load_policy(path, universe=market)"
    )
