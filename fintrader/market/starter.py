"""A configuration to begin with, for files of bars whose layout was detected: commented YAML that
runs as it is."""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fintrader.bars.detect import Detection
from fintrader.config import refuse_url, validate
from fintrader.errors import BarError, ConfigError
from fintrader.files import write_text
from fintrader.market.settings import DataSettings
from fintrader.yaml_text import parse_yaml

_FEWEST = 3
_CROSS_SECTION = 5
_JUDGED = 120
"""From so many symbols on, and sessions that are not for the test, agents are judged where they
were not trained."""
_FOLDS = 3
_UPDATES = 40
_CAREFUL: dict[str, list[str]] = {
    "features": [
        "    scaling: zscore            # against the other symbols at the same bar",
        "    clip: 3",
        "    context: []",
    ],
    "env": [
        "  randomise: {costs: [1.5, 1.5]} # dearer in training: choosier",
        "  benchmark: equal_weight      # held where there is no evidence for anything else",
        "  reward: active_mean_variance",
        "  risk_aversion: 20",
        "  reward_scale: 10000",
    ],
    "tournament": [
        "  metric: information_ratio    # against the benchmark",
        (
            f"  validation_folds: {_FOLDS}          # judged where it was not trained, over training and"
            " validation window"
        ),
        (
            "  ensemble_shrinkage: james_stein  # towards the benchmark, as far as the evidence"
            " does not reach"
        ),
    ],
}
"""What the configurations for real bars have (`configs/walkforward_daily.yaml`,
`configs/walkforward_us14.yaml`)."""


def config_path(bars: str, out: Path | None = None) -> Path:
    """Where the configuration for these bars goes: `my.yaml` here for `somewhere/my.csv`, unless
    `out` says it."""
    if out is not None:
        refuse_url(out, "out")
        return out
    name = re.sub(
        r"(\.(csv|txt|gz|parquet|pq|zip))+$",
        "",
        bars.rstrip("/").rpartition("/")[2],
        flags=re.IGNORECASE,
    )
    plain = re.sub(r"[^A-Za-z0-9._-]+|^[^A-Za-z0-9]+|\.\.+", "-", name).strip("-.")
    return Path(f"{plain or 'bars'}.yaml")


def write_config(found: Detection, path: Path, *, force: bool = False) -> Path:
    """Write the configuration. Raises ConfigError when there is one, unless forced, and BarError
    for too few days."""
    if path.exists() and not force:
        raise ConfigError(
            f"{path} is there already; choose another --out, or write over it with --force"
        )
    write_text(path, yaml_of(found, path))
    return path


def yaml_of(found: Detection, path: Path) -> str:
    """The configuration as text. Raises BarError when there are too few sessions for three
    windows."""
    length = found.bar_minutes
    whole = found.session_minutes
    market = 5 if length < 5 and 5 % length == 0 and len(found.sessions) >= 10 else length
    daily = market >= whole
    windows, embargo = _windows(found.sessions)
    train = sum(windows[0][0] <= day <= windows[0][1] for day in found.sessions)
    bars = 1 if daily else -(-whole // market)  # of a session
    if daily:
        names = ["return_1", "return_5", "gap", "intraday", "volatility_21"] + (
            ["return_21"] if train > 60 else []
        )
    else:
        hour = max(1, bars // 7)
        names = [
            "return_1",
            f"return_{hour}",
            f"return_{bars}",
            f"volatility_{bars}",
            "intraday",
            "gap",
        ]
    judged = sum(windows[0][0] <= day <= windows[1][1] for day in found.sessions)
    careful = len(found.symbols) >= _CROSS_SECTION and judged >= _JUDGED
    if careful:
        names = _careful_names(bars, daily, train)
        # an episode has to fit between two blocks and their embargoes
        decide = bars
        episode = bars * min(42 if daily else 20, judged // _FOLDS - 4)
    else:
        episode = max(2, min(21 if daily else 5 * bars, train * bars // 2))
        decide = 1 if daily else max(1, min(bars // 13, episode // 2))
    lines = [
        (
            f"# Made by `fintrader init` from {len(found.symbols)} symbols, {found.first} to"
            f" {found.last}."
        ),
        f"#   fintrader run {path}",
        "# What was found, and how sure it is:",
        *(f"#   {one.setting}: {one.value} ({one.sure}: {one.why})" for one in found.findings),
        "seed: 7",
        "device: auto",
        "",
        "data:",
        f"  bar_minutes: {market:<16} # "
        + ("a session a bar" if daily else "bars of the market, put together"),
        (
            "  hours: regular               # extended keeps the bars before the open and after the"
            " close"
        ),
        f"  calendar: {found.calendar}",
        f"  path: {_plain(found.path)}",
        "  source:",
        "    kind: files",
        *(f"    {name}: {_plain(value)}" for name, value in found.source.items()),
        *_waivers(found),
        (
            "  benchmark: null              # all symbols in equal weights; FILE with date and close"
            " for an index"
        ),
        (
            "  actions: null                # FILE with splits and dividends, where prices are as traded"
        ),
        "  features:",
        f"    names: [{', '.join(names)}]",
        *(_CAREFUL["features"] if careful else ()),
        "  windows:                     # 60, 20 and 20 % of the sessions",
        *(
            f"    {name}: [{first}, {last}]"
            for name, (first, last) in zip(_NAMES, windows, strict=True)
        ),
        (
            f"    embargo_sessions: {embargo}        # that belong to no window, before validation"
            " and test"
        ),
        "",
        "env:",
        f"  num_envs: {32 if careful else 64}",
        f"  episode_bars: {episode}",
        f"  decision_interval: {decide:<10} # bars from one decision to the next",
        "  cost_bps: 20                 # of each trade; what you pay, spread included",
        *(_CAREFUL["env"] if careful else ()),
        "",
        "agent:",
        *(_agent(episode // decide) if careful else ["  algo: ppo"]),
        "",
        "tournament:",
        (
            f"  pods: {2 if careful else 4}                      # independent seeds; more pods and"
            " steps search longer"
        ),
        (
            "  fresh: 1.0                   # none inherits: on one machine a tournament finds"
            " nothing better"
        ),
        "  search: {}                   # none is varied",
        "  pool_size: 2",
        "  workers: 2",
        (
            "  budget: {env_steps:"
            f" {32 * (episode // decide) * _UPDATES * (_FOLDS + 1) if careful else 60_000}}}"
        ),
        "  order: submission            # same seed, same leaderboard, whatever finishes first",
        f"  leaderboard_size: {2 if careful else 4}",
        "  ensemble_size: 2",
        *(_CAREFUL["tournament"] if careful else ()),
        "",
    ]
    text = "\n".join(lines)
    _check(text, path)
    return text


def _careful_names(bars: int, daily: bool, train: int) -> list[str]:
    """Features over horizons that can pay a trade's costs, as far as the training window holds them
    several times."""
    day, week, month = (horizon * bars for horizon in (1, 5, 21))
    names = ["intraday", "gap", f"return_{day}", f"return_{week}", f"relative_volume_{day}"]
    names += [f"return_{month}", f"volatility_{month}"] if train >= 4 * 21 else []
    return names if daily else [*names, f"volatility_{day}"]


def _agent(decisions: int) -> list[str]:
    """An agent that tilts away from the benchmark, regularised."""
    return [
        (
            "  algo: apg                    # climbs the gradient of what it earns, through the"
            " account"
        ),
        f"  num_steps: {decisions:<17} # decisions it looks ahead: a whole episode",
        "  learning_rate: 2.0e-2",
        "  gamma: 1.0",
        "  bootstrap: false",
        "  noise: 0.0",
        "  normalise: [observations]",
        "  weight_decay: 1.0e-2",
        "  feature_dropout: 0.25",
        "  feature_noise: 1.0",
        "  network: {hidden: [4], activation: tanh}",
    ]


def _waivers(found: Detection) -> list[str]:
    """What lets bars pass that a build refuses, for the user to decide on."""
    if not found.waivers:
        return []
    lines = [
        (
            "  # a build stops at these; correct the bars, declare splits in a file of actions, or let them"
            " pass:"
        ),
        "  # waive:",
    ]
    return lines + [f"  #   - {_plain(one)}" for one in found.waivers]


_NAMES = ("train", "validation", "test")


def _windows(sessions: Sequence[dt.date]) -> tuple[list[tuple[dt.date, dt.date]], int]:
    """The three windows as dates, and the sessions between them."""
    count = len(sessions)
    if count < _FEWEST:
        raise BarError(
            f"the bars reach over {count} sessions; training, validation and test need {_FEWEST} or"
            " more"
        )
    embargo = 1 if count >= 15 else 0
    one = max(1, round(0.6 * count))
    two = max(2, round(0.8 * count))
    one, two = min(one, count - 2), min(max(two, one + 1), count - 1)
    edges = [(0, one - 1), (one, two - 1), (two, count - 1)]
    return [(sessions[first], sessions[last]) for first, last in edges], embargo


def _plain(value: Any) -> str:
    """A value as YAML in one line: a JSON text is one."""
    if isinstance(value, str) and re.fullmatch(
        r"[A-Za-z0-9_./-]*[A-Za-z_/][A-Za-z0-9_./-]*", value
    ):
        return json.dumps(value) if value.lower() in _WORDS else value
    return json.dumps(value, ensure_ascii=False)


_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}


def _check(text: str, path: Path) -> None:
    """Raise ConfigError when the settings of the data are none."""
    validate(DataSettings, parse_yaml(text, str(path))["data"], str(path))
