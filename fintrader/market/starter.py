"""First configuration for detected files or a vendor's bars: commented YAML that runs
unchanged."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from fintrader.bars.calendar import WindowSettings
from fintrader.bars.checks.kinds import STOPPING
from fintrader.bars.detect import Detection
from fintrader.bars.sources.feed import Feed
from fintrader.bars.sources.layout import FilesSettings
from fintrader.config import validate
from fintrader.errors import BarError, DataError
from fintrader.files import write_text
from fintrader.market.bar_source import open_slice
from fintrader.market.build import try_build
from fintrader.market.config_path import refuse_existing
from fintrader.market.download import FEWEST, Download, open_last
from fintrader.market.settings import DataSettings
from fintrader.yaml_text import parse_yaml

_CROSS_SECTION = 5
_JUDGED = 120
"""Fewest symbols, and sessions before the test, with which agents are judged on bars that they were
not trained on."""
_HALF_YEAR = 126
_FOLDS = 3
_UPDATES = 40
_TEXT = """\
# Made by `fintrader init` from {symbols} symbols, {first} to {last}.
#   fintrader run {path}
# What the detection found, and how sure each line is:
{findings}seed: 7
device: auto

data:
  bar_minutes: {market:<16} # {bars_are}
  hours: {hours:<22} # extended keeps the bars before the open and after the close
  calendar: {calendar}
{bars}{waivers}\
  benchmark: null              # all symbols in equal weights; a FILE (date, close) for an index
  actions: null                # FILE with splits and dividends, {actions}
  features:
    names: [{names}]
{features}\
  windows:                     # the test is 20 % of the sessions; below half a year, up to 40 %
{windows}\
    embargo_sessions: {embargo}        # sessions in no window, before validation and before test

env:
  num_envs: {num_envs}
  episode_bars: {episode}
  decision_interval: {decide:<10} # bars from one decision to the next
  cost_bps: 20                 # your cost of each trade, spread included
{fractional}{volume}{env}
agent:
{agent}
tournament:
  pods: {pods}                      # independent seeds; more pods and steps search longer
  fresh: 1.0                   # no pod inherits; where settings are unknown, --search was better
  search: {{}}                   # no setting is varied between pods
  pool_size: 2
  workers: 2
  budget: {{env_steps: {env_steps}}}
  order: submission            # same seed, same leaderboard, whatever finishes first
  leaderboard_size: {pods}
  ensemble_size: 2
{tournament}"""
_CAREFUL = {
    "features": """\
    scaling: zscore            # against the other symbols at the same bar
    clip: 3
    context: []
""",
    "env": """\
  randomise: {costs: [1.5, 1.5]} # higher costs in training: fewer trades
  benchmark: equal_weight      # held where there is no evidence for anything else
  reward: active_mean_variance
  risk_aversion: 20
  reward_scale: 10000
""",
    "tournament": f"""\
  metric: information_ratio    # against the benchmark
  validation_folds: {_FOLDS}          # blocks, each scored by a learner that did not train on it
  ensemble_shrinkage: james_stein  # towards the benchmark, the more the weaker the evidence
""",
}
"""Parts of the configurations for real bars (`configs/walkforward_daily.yaml`,
`configs/walkforward_us14.yaml`)."""
_ONE_SESSION = "  metric: return               # one session of validation has no Sharpe ratio\n"
_FRACTIONAL = "  fractional: true             # fractions of coins\n"
_NO_VOLUME = (
    "  participation: none          # orders are not limited by volume: the bars have none\n"
)
_AGENT = """\
  algo: apg                    # follows the gradient of its reward through the account
  num_steps: {decisions:<17} # decisions it looks ahead: a whole episode
  learning_rate: 2.0e-2
  gamma: 1.0
  bootstrap: false
  noise: 0.0
  normalise: [observations]
  weight_decay: 1.0e-2
  feature_dropout: 0.25
  feature_noise: 1.0
  network: {{hidden: [4], activation: tanh}}
"""
"""A regularised agent that tilts away from the benchmark."""
_AGENT_ALONE = """\
  algo: ppo
  head: {kind: aim}            # one symbol: hold it or cash; there is nothing to tilt to
"""


def write_config(found: Detection, path: Path, *, force: bool = False) -> Path:
    """Build a market of some of the bars with the configuration, then write it. Raises ConfigError
    for an existing file, unless forced, and DataError for bars that make no market."""
    refuse_existing(path, force=force)
    text = render_yaml(found, path)
    settings = validate(DataSettings, parse_yaml(text, str(path))["data"], str(path))
    try:
        with _without_log():
            if isinstance(found, Download):
                _build_slice(*open_last(found, settings))
            else:
                assert isinstance(settings.source, FilesSettings)
                place = settings.bar_path, settings.calendar
                _build_slice(settings, *open_slice(settings.source, *place))
    except DataError as error:
        raise type(error)(
            f"{path} is not written, because some of its bars make no market: {error}"
        ) from None
    write_text(path, text)
    return path


@contextlib.contextmanager
def _without_log() -> Iterator[None]:
    """Silence the log of bars: the detection has named their faults, and a part may have faults
    that the whole has not."""
    logs = [logging.getLogger(name) for name in ("fintrader.bars", "fintrader.market")]
    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        yield
    finally:
        for log, was_disabled in zip(logs, before, strict=True):
            log.disabled = was_disabled


def _build_slice(settings: DataSettings, feed: Feed, days: Sequence[dt.date]) -> None:
    """Build a market of some bars as a run does. Raises DataError."""
    train, validation, test = _cut_windows(days)
    windows = WindowSettings(train=train, validation=validation, test=test, embargo_sessions=0)
    # no fault stops this build: the configuration lists the known ones for the user to decide
    update = {"windows": windows, "waive": tuple(sorted(STOPPING))}
    try_build(settings.model_copy(update=update), feed)


@dataclass(frozen=True)
class _Plan:
    """Choices of a configuration that depend on the bars."""

    market: int
    """Minutes of the market's bars."""
    is_daily: bool
    is_careful: bool
    """Enough symbols and sessions for an agent that is judged on bars it was not trained on."""
    features: list[str]
    episode: int
    decide: int
    """Bars from one decision to the next."""


def _plan(found: Detection, windows: Sequence[tuple[dt.date, dt.date]]) -> _Plan:
    length = found.bar_minutes
    whole = found.session_minutes
    market = 5 if length < 5 and 5 % length == 0 and len(found.sessions) >= 10 else length
    daily = market >= whole
    bars = 1 if daily else -(-whole // market)  # bars of a session
    train = sum(windows[0][0] <= day <= windows[0][1] for day in found.sessions)
    judged = sum(windows[0][0] <= day <= windows[1][1] for day in found.sessions)
    if len(found.symbols) >= _CROSS_SECTION and judged >= _JUDGED:
        # an episode has to fit between two blocks and their embargoes
        episode = bars * min(42 if daily else 20, judged // _FOLDS - 4)
        return _Plan(market, daily, True, _choose_slow(bars, daily, train), episode, bars)
    episode = max(2, min(21 if daily else 5 * bars, train * bars // 2))
    decide = 1 if daily else max(1, min(bars // 13, episode // 2))
    return _Plan(market, daily, False, _choose_fast(bars, daily, train), episode, decide)


def render_yaml(found: Detection, path: Path) -> str:
    """Render the configuration. Raises BarError when there are too few sessions for three
    windows."""
    is_daily = found.bar_minutes >= found.session_minutes  # a backtest needs two bars
    windows = _cut_windows(found.sessions, 2 * FEWEST if is_daily else FEWEST)
    plan = _plan(found, windows)
    careful = _CAREFUL if plan.is_careful else dict.fromkeys(_CAREFUL, "")
    first, last = windows[1]
    if sum(first <= day <= last for day in found.sessions) < 2:
        careful = careful | {"tournament": _ONE_SESSION}
    decisions = plan.episode // plan.decide
    if plan.is_careful:
        agent = _AGENT.format(decisions=decisions)
    else:
        agent = _AGENT_ALONE if len(found.symbols) == 1 else "  algo: ppo\n"
    text = _TEXT
    if found.calendar == "24/7":  # no close, and no splits
        text = re.sub(r"(?m)^  (hours|actions):.*\n", "", text)
    return text.format(
        symbols=len(found.symbols),
        first=found.first,
        last=found.last,
        path=path,
        findings=_join(
            f"#   {one.setting}: {one.value} ({one.sure}: {one.why})" for one in found.findings
        ),
        market=plan.market,
        bars_are="one bar a session" if plan.is_daily else "length of the market's bars",
        hours=found.hours,
        calendar=found.calendar,
        bars=_join(_render_data(found)),
        actions="which override the vendor's"
        if isinstance(found, Download)
        else "if prices are as traded",
        waivers=_render_waivers(found),
        names=", ".join(name for name in plan.features if found.has_volume or "volume" not in name),
        windows=_join(
            f"    {name}: [{first}, {last}]"
            for name, (first, last) in zip(("train", "validation", "test"), windows, strict=True)
        ),
        embargo=1 if len(found.sessions) >= 15 else 0,
        fractional=_FRACTIONAL if found.calendar == "24/7" else "",
        volume="" if found.has_volume else _NO_VOLUME,
        num_envs=32 if plan.is_careful else 64,
        episode=plan.episode,
        decide=plan.decide,
        agent=agent,
        pods=2 if plan.is_careful else 4,
        env_steps=32 * decisions * _UPDATES * (_FOLDS + 1) if plan.is_careful else 60_000,
        **careful,
    )


def _render_data(found: Detection) -> Iterator[str]:
    """Render two levels of the settings of `data` that name the bars."""
    values = {"path": found.path, "source": {"kind": "files", **found.source}}
    for name, value in (found.data if isinstance(found, Download) else values).items():
        if not isinstance(value, dict):
            yield f"  {name}: {_plain(value)}"
            continue
        yield f"  {name}:"
        yield from (f"    {below}: {_plain(one)}" for below, one in value.items())


def _join(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _choose_fast(bars: int, daily: bool, train: int) -> list[str]:
    """Choose features over horizons from a bar to a session, or of daily bars to a month."""
    if not daily:
        hour = max(1, bars // 7)
        steps = ["return_1", f"return_{hour}", f"return_{bars}", f"volatility_{bars}"]
        return [*steps, "intraday", "gap"]
    names = ["return_1", "return_5", "gap", "intraday", "volatility_21"]
    return [*names, "return_21"] if train > 60 else names


def _choose_slow(bars: int, daily: bool, train: int) -> list[str]:
    """Choose features over horizons that can pay a trade's costs, as far as the training window
    holds them several times."""
    day, week, month = (horizon * bars for horizon in (1, 5, 21))
    names = ["intraday", "gap", f"return_{day}", f"return_{week}", f"relative_volume_{day}"]
    names += [f"return_{month}", f"volatility_{month}"] if train >= 4 * 21 else []
    return names if daily else [*names, f"volatility_{day}"]


def _render_waivers(found: Detection) -> str:
    """Render the waivers without which a build refuses the bars, as comments for the user to
    decide on."""
    if not found.waivers:
        return ""
    first = (
        "  # a build stops at these; correct the bars, declare splits in a file of actions,"
        " or waive them:"
    )
    return _join([first, "  # waive:", *(f"  #   - {_plain(one)}" for one in found.waivers)])


def _cut_windows(
    sessions: Sequence[dt.date], fewest: int = FEWEST
) -> list[tuple[dt.date, dt.date]]:
    """Cut the sessions into three windows; return the first and the last day of each."""
    count = len(sessions)
    if count < fewest:
        raise BarError(
            f"the bars span {count} sessions; training, validation and test need {fewest} or more;"
            " get bars of more days"
        )
    # Few sessions show nothing in a test, and their annual figures are extrapolations.
    tested = min(0.4, max(0.2, _HALF_YEAR / count))
    validation = min(max(1, round((0.8 - tested) * count)), count - 2)
    test = min(max(validation + 1, round((1 - tested) * count)), count - 1)
    edges = [(0, validation - 1), (validation, test - 1), (test, count - 1)]
    return [(sessions[first], sessions[last]) for first, last in edges]


def _plain(value: Any) -> str:
    """Write a value as YAML in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf, allow_unicode=True)
    lines = text.removesuffix("...\n").splitlines()
    return lines[0] if len(lines) == 1 else json.dumps(value)
