"""Tables and rows of numbers: headline cards, the leaderboard, a run's settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
import streamlit as st
from pandas.io.formats.style import Styler
from streamlit.column_config import NumberColumn, TextColumn

from fintrader.numerals import DASH, count
from fintrader.results.backtest_files import StoredBacktest
from fintrader.results.catalogue import BY_KEY
from fintrader.results.formatting import (
    explain_short_window,
    format_metric,
    is_result,
    rival_name,
    statistic,
)
from fintrader.results.settings import Setting, changed, differing, format_setting
from fintrader.results.strategy_metrics import NO_METRICS, StrategyMetrics
from fintrader_app.shell import hide_secrets, human, is_secret

HEADLINE = (
    ("cumulative_return", "Return"),
    ("annual_return", "Compound annual return"),
    ("annual_volatility", "Annual volatility"),
    ("sharpe", "Sharpe"),
    ("max_drawdown", "Max drawdown"),
    ("calmar", "Calmar"),
)
SHORT_HEADLINE = (
    ("cumulative_return", "Return"),
    ("max_drawdown", "Max drawdown"),
    ("best_day", "Best day"),
    ("worst_day", "Worst day"),
    ("hit_rate_day", "Days with a gain"),
    ("sessions", "Sessions"),
)
"""Headline of a window too short for annual figures."""
MOST_ROWS = 20
"""Rows above which a table is scrolled."""


def numbers(cells: Mapping[str, str], about: Mapping[str, str] | None = None) -> None:
    """Draw a line of figures: title -> value; `about`: title -> text of its tooltip."""
    with st.container(horizontal=True):
        for title, value in cells.items():
            st.metric(title, value, help=(about or {}).get(title), border=True)


def table(
    rows: Any,
    key: str,
    *,
    columns: list[str] | None = None,
    right: Iterable[str] = (),
    pinned: str = "",
    **options: Any,
) -> Any:
    """Draw `rows`, a styled frame or a frame's data, over the whole width; return what streamlit
    does. `right`: columns to align right; `pinned`: a column that stays in view; `height="few"`:
    scroll after MOST_ROWS."""
    config = {name: TextColumn(alignment="right") for name in right}
    if pinned:
        config[pinned] = TextColumn(pinned=True)
    options = {"column_config": config, "placeholder": DASH, **options}
    shown = rows if isinstance(rows, Styler) else pd.DataFrame(rows, columns=columns)
    if options.get("height") == "few":
        options["height"] = "content" if shown.index.size <= MOST_ROWS else find_height(MOST_ROWS)
    return st.dataframe(shown, hide_index=True, key=key, **options)


def find_height(rows: int) -> int:
    """Compute the height of a table with this number of rows, in pixels."""
    return 38 + 35 * rows


def find_title(key: str) -> str:
    """Find the title of a metric; a relative metric's names its benchmark."""
    known = BY_KEY.get(key)
    if known is None:
        return human(key)
    return f"{known.title}, {known.group}" if known.group.startswith("against") else known.title


def show_cards(stored: StoredBacktest, name: str) -> None:
    """Show the headline numbers of one strategy, each with its difference from the benchmark
    portfolio, unless that is cash.

    The difference is green or red only where the verdict says that it is unlikely to be luck.
    """
    rival = stored.portfolio
    metrics = stored.find_metrics(name)
    rival_metrics = NO_METRICS if rival in (None, name, "cash") else stored.find_metrics(str(rival))
    coloured = stored.opening.is_skill and is_result(name)
    short = bool(explain_short_window([metrics]))
    with st.container(horizontal=True):
        for key, title in SHORT_HEADLINE if short else HEADLINE:
            value = metrics[key]
            other = rival_metrics[key]
            about = f"`{BY_KEY[key].formula}` from daily returns; {BY_KEY[key].source}."
            difference = None
            if value is not None and other is not None and key != "sessions":
                versus = rival_name(str(rival))
                difference = f"{statistic(key, value - other, signed=True)} vs {versus}"
                about += " Below it: the difference from the benchmark portfolio."
            tone: Any = "inverse" if key == "annual_volatility" else "normal"
            st.metric(
                title,
                count(value) if key == "sessions" else format_metric(key, metrics),
                difference,
                delta_color=tone if coloured else "off",
                delta_arrow="auto" if coloured else "off",
                help=about,
                height="stretch",
                border=True,
            )
    explain_dashes([metrics], f"{len(stored.ends)} sessions: ratios are very uncertain.")


def explain_dashes(metrics: Iterable[StrategyMetrics], before: str = "") -> None:
    """Explain the dashes of short windows, after the text `before`; write nothing for long ones."""
    for why in explain_short_window(metrics):
        st.caption(f":material/warning: {before} {why}")


def select_settings(pods: pd.DataFrame) -> pd.DataFrame:
    """Select the searched settings of pods, as stored: `[pods, settings]`."""
    return pd.DataFrame(
        [row if isinstance(row, dict) else {} for row in pods["hyper"]], index=pods.index
    )


def show_board(board: pd.DataFrame, key: str, *, short: bool = False) -> None:
    """Draw the leaderboard and its first six settings; `short`: pods, scores and origins only."""
    if board.empty:
        st.info("No pod has finished yet.", icon=":material/hourglass_empty:")
        return
    config = {
        "rank": NumberColumn("#", width=50),
        "pod": TextColumn("Pod", pinned=True),
        "score": NumberColumn("Score", format="%.3f"),
        "error": NumberColumn("± Error", format="%.3f"),
        "algo": "Algorithm",
        "origin": "Origin",
        "parent": "Parent",
        "generation": "Gen.",
        "env_steps": NumberColumn("Env-steps", format="localized"),
        "seconds": NumberColumn("Seconds", format="%.1f"),
    }
    errors = board["metrics"].map(lambda metrics: metrics.get("standard_error"))
    if errors.isna().all():  # the score of one window has none
        del config["error"]
    frame = board.assign(error=errors)[list(config)]
    options: dict[str, Any] = {"column_config": config}
    if short:
        table(frame.loc[:, :"parent"], key, height=find_height(min(len(frame), 8)), **options)
    else:
        table(frame.join(select_settings(board).iloc[:, :6]), key, **options)


# --- settings -------------------------------------------------------------------------------------

CHANGED = "●"
"""Mark of a value that is not this version's default."""


def describe_setting(name: str, setting: Setting | None) -> str:
    """Describe a setting's value, with secrets masked."""
    if setting is None:
        return DASH
    mark = f"{CHANGED} " if setting.changed else "" if setting.known else "? "
    return mark + hide_secret(name, format_setting(setting.value))


def hide_secret(name: str, text: str) -> str:
    """Mask the text if its name is secret, else secrets in it."""
    return "(hidden)" if is_secret(name) else hide_secrets(text)


def show_changed_settings(config: Mapping[str, Any], key: str) -> None:
    """Show the settings of a run that are not this version's defaults, each with its default."""
    rows = [
        {
            "Setting": name,
            "Value": hide_secret(name, format_setting(one.value)),
            "Default": (
                hide_secret(name, format_setting(one.default))
                if one.known
                else "unknown to this version"
            ),
        }
        for name, one in changed(config).items()
    ]
    st.caption(f"{count(len(rows))} settings differ from this version's defaults")
    if rows:
        table(rows, key, pinned="Setting", height="few")


def show_differing_settings(configs: Mapping[str, Mapping[str, Any]], key: str) -> None:
    """Show the settings in which runs differ, a column per run."""
    rows = differing(configs)
    if not rows:
        st.info("These runs have the same settings.", icon=":material/equal:")
        return
    st.caption(
        f"{CHANGED} not this version's default · {DASH} the run's algorithm, source or version has"
        " no such setting · ? unknown to this version"
    )
    listed = [
        {"Setting": name, **{run: describe_setting(name, one) for run, one in row.items()}}
        for name, row in rows.items()
    ]
    table(listed, key, pinned="Setting", height="few")
