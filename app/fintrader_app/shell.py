"""Parts that all pages share: the runs folder, errors as messages, escaping of foreign text,
choices in the URL, the run picker."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from fintrader.config import list_shipped_configs
from fintrader.errors import FintraderError
from fintrader.numerals import format_count
from fintrader.results.figures.style import escape_label
from fintrader.results.folders import DamagedFileError, Folder, NotThereError, RunsFolder
from fintrader.results.formatting import duration, when
from fintrader.results.run import Summary
from fintrader.stages import Stage, strip
from fintrader_app.artifacts import load_stages, load_summaries, load_summary
from fintrader_app.launch import CACHE_VARIABLE, CONFIGS_VARIABLE, RUNS_DIR_VARIABLE

log = logging.getLogger("fintrader.app")


@dataclass(frozen=True)
class PageEntry:
    """A page: its script in `views/`, its title, and its place in the URL."""

    file: str
    title: str
    icon: str
    path: str


PAGES = (
    PageEntry("runs.py", "Runs", ":material/list:", "runs"),
    PageEntry("tournament.py", "Tournament", ":material/trophy:", "tournament"),
    PageEntry("pod.py", "Pod", ":material/model_training:", "pod"),
    PageEntry("backtest.py", "Backtest", ":material/show_chart:", "backtest"),
    PageEntry("honesty.py", "Honesty", ":material/balance:", "honesty"),
    PageEntry("compare.py", "Compare", ":material/compare_arrows:", "compare"),
    PageEntry("judge_returns.py", "Judge", ":material/gavel:", "judge"),
    PageEntry("live.py", "Live", ":material/monitor_heart:", "live"),
    PageEntry("market.py", "Market", ":material/candlestick_chart:", "market"),
    PageEntry("new_run.py", "New run", ":material/play_circle:", "new"),
)

ICON = (  # drawn here: a named icon would be fetched from another server
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32"'
    ' rx="7" fill="#0f766e"/><path d="M9 7v18M16 5v20M23 9v16" stroke="white"'
    ' stroke-width="2"/><path d="M9 13v8M16 9v9M23 12v9" stroke="white" stroke-width="5"/></svg>'
)

STATUS = {
    "running": (":material/progress_activity:", "blue"),
    "finished": (":material/check_circle:", "green"),
    "interrupted": (":material/pause_circle:", "orange"),
    "failed": (":material/error:", "red"),
    "broken": (":material/broken_image:", "red"),
}
REFRESH_SECONDS = 2
WAIT_SECONDS = 0.2
LONGEST = 1_500
"""Longest text to show, in characters."""


def find_runs_folder() -> RunsFolder:
    """Find the runs folder of `fintrader app`: the one it was given, or `runs` below the working
    folder."""
    return RunsFolder.at(os.environ.get(RUNS_DIR_VARIABLE) or "runs")


def list_market_folders(runs: RunsFolder) -> list[Path]:
    """List the folders whose market files the app may read."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return [Path(given).resolve()]
    return [Path("data/tensors").resolve(), runs.root.parent / "data" / "tensors"]


def list_config_folders() -> list[Path]:
    """List the folders whose YAML configurations the New run page offers."""
    given = os.environ.get(CONFIGS_VARIABLE)
    if given:
        return [Path(given).resolve()]
    shipped = (path.parent for path in list_shipped_configs().values())
    return [*dict.fromkeys([Path("configs").resolve(), *shipped])]


def page(title: str, render: Callable[[RunsFolder, DeltaGenerator], None]) -> None:
    """Draw a page: its title, then the content that `render` draws, its main choice in the
    container next to the title. A fault becomes a message, never a traceback."""
    with guarded():
        left, head = st.columns([1, 5], vertical_alignment="center")
        left.title(title, anchor=False)
        render(find_runs_folder(), head)


def draw_answer(words: str) -> None:
    """Draw the one line that answers the question of a page."""
    st.markdown(f"**{plain(words, LONGEST)}**")


def is_shown_above(key: str) -> bool:
    """Report whether the browser shows the page above this line, and rerun the page once it does.
    Draw a heavy part only then.

    Drawing libraries and tables keep a browser busy for a second or two, in which it would show
    nothing at all.
    """
    ready = f"{key}_ready"
    if st.session_state.get(ready):
        return True
    st.session_state[ready] = False

    @st.fragment(run_every=WAIT_SECONDS)
    def wait() -> None:
        if ready in asked:
            st.session_state[ready] = True
            st.rerun()
        asked.add(ready)

    asked: set[str] = set()
    wait()
    return False


def heading(title: str) -> None:
    """Draw a heading that is no link to itself."""
    st.header(title, anchor=False)


def line_up(*widths: int) -> list[DeltaGenerator]:
    """Make columns of these widths, with their widgets on one line."""
    return st.columns(widths, vertical_alignment="bottom")


def follow(draw: Callable[[], None], *, live: bool) -> None:
    """Draw a part of a page and, while it is `live`, draw it again every `REFRESH_SECONDS`."""

    @st.fragment(run_every=REFRESH_SECONDS if live else None)
    def part() -> None:
        with guarded():
            draw()

    part()


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Turn a fault inside the block into a message in its place."""
    try:
        yield
    except NotThereError as error:
        st.info(describe_error(error), icon=":material/hourglass_empty:")
    except DamagedFileError as error:
        st.error(f"Damaged: {describe_error(error)}", icon=":material/broken_image:")
    except FintraderError as error:
        st.error(describe_error(error), icon=":material/error:")
    except Exception as error:  # not streamlit's signals to rerun or stop: these must pass
        log.exception("page fault")
        st.error(
            f"This part of the page could not be drawn ({type(error).__name__}). The stored files"
            " were not touched; the app's log on the terminal says more.",
            icon=":material/error:",
        )


def describe_error(error: Exception) -> str:
    """Escape an error's message; begin it with a capital, unless it begins with a path or a
    setting."""
    text = plain(hide_secrets(str(error)).replace("`", ""))
    named = any(mark in text.partition(" ")[0] for mark in "/._")
    return text if named else text[:1].upper() + text[1:]


# --- foreign text ---------------------------------------------------------------------------------

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~$:])")
_SECRET = re.compile(
    r"(?i)(pass(word|wd)?|secret|token|api[_-]?key|access[_-]?key|credential|private[_-]?key)"
)
_SECRET_QUERY = re.compile(
    r"(?i)([?&][\w-]*(?:sig|token|key|secret|passw|credential)[\w-]*=)[^&\s'\"]+"
)
_IN_BRACES = re.compile(r"""([{,]\s*)(["']?[\w.-]+["']?)(\s*:\s*)("[^"]*"|'[^']*'|[^,{}\[\]]+)""")
"""One setting of YAML or JSON that stands on a line with others, as in `{user: me, token: x}`."""


def plain(text: Any, limit: int = 300) -> str:
    """Escape foreign text for Streamlit's markdown: no link, no image, no HTML, no colour, one
    line."""
    shown = "".join(char if char.isprintable() else " " for char in str(text))
    shown = shown if len(shown) <= limit else shown[: limit - 1] + "…"
    return _MARKDOWN.sub(r"\\\1", " ".join(shown.split()))


def format_code(text: str) -> str:
    """Format foreign text as a span of code, which nothing in it can end."""
    shown = "".join(char if char.isprintable() and char != "`" else " " for char in text)
    return f"`{' '.join(shown.split())[:300]}`"


def hide_secrets(text: str) -> str:
    """Replace the values of names that look like secrets in YAML or command text."""
    lines = []
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and _SECRET.search(key) and value.strip() not in {"", "null", "''", '""'}:
            line = f"{key}: (hidden)"
        line = _IN_BRACES.sub(
            lambda at: f"{at[1]}{at[2]}{at[3]}(hidden)" if is_secret(at[2]) else at[0], line
        )
        line = re.sub(r"(\w+://)[^/\s:@]*:[^/\s@]+@", r"\1(hidden)@", line)
        lines.append(_SECRET_QUERY.sub(r"\1(hidden)", line))
    return "\n".join(lines)


def is_secret(name: str) -> bool:
    """Report whether a name is like that of a secret."""
    return _SECRET.search(name) is not None


def human(name: str) -> str:
    """Write `learning_rate` as `Learning rate`."""
    words = name.replace("_", " ").replace(".", " · ").replace(" usd", " USD").strip()
    return words[:1].upper() + words[1:]


# --- links ----------------------------------------------------------------------------------------


def link_choice(key: str, options: Sequence[str], default: str | None = None) -> str:
    """Return the widget key of the choice `key`, after setting its value from the URL, from another
    page, or to `default`.

    Draw the widget with that key, then call `remember`. An unknown value in the URL is dropped with
    a message.
    """
    widget = f"widget_{key}"
    state = st.session_state
    asked = _read_query(key)
    if asked is not None and asked not in options:
        st.warning(f"The link asks for the {key} “{plain(asked, 60)}”, which is not here.")
    known = (asked, state.get(widget), state.get(f"kept_{key}"), default, *options)
    # Set anew: else a widget of that key on another page would leave this one empty.
    state[widget] = next(value for value in known if value in options)
    return widget


def _read_query(key: str) -> str | None:
    """Read a choice in the URL, once: None where it was read before, or there is none."""
    asked = st.query_params.get(key)
    seen = f"url_{key}"
    if asked is None or asked == st.session_state.get(seen):
        return None
    st.session_state[seen] = asked
    return asked


def remember(key: str, value: str | None) -> None:
    """Keep a choice for other pages, and in the URL."""
    state = st.session_state
    state[f"kept_{key}"] = state[f"url_{key}"] = value
    if value is None:
        st.query_params.pop(key, None)
    elif st.query_params.get(key) != value:
        st.query_params[key] = value


def choose(
    label: str, options: Sequence[str], key: str, *, default: str | None = None, **kwargs: Any
) -> str:
    """Draw a selectbox whose choice is part of the page's address and is kept from page to page."""
    value: str = st.selectbox(label, options, key=link_choice(key, options, default), **kwargs)
    remember(key, value)
    return value


def link_choices(key: str, options: Sequence[str], default: Sequence[str], most: int) -> str:
    """Like `link_choice`, for several values; the address has commas between them."""
    widget = f"widget_{key}"
    state = st.session_state
    asked = _read_query(key)
    given = asked if asked is not None or widget in state else state.get(f"kept_{key}")
    if given is not None:
        named = [name for name in dict.fromkeys(given.split(",")) if name]
        wanted = [name for name in named if name in options][:most]
        if len(wanted) < len(named) and given == asked:
            st.warning(f"Not everything the link asks for is here: “{plain(given, 120)}”.")
        state[widget] = wanted or ([] if given == "" else list(default))
    else:
        state[widget] = [name for name in state.get(widget, default) if name in options]
    return widget


def choose_several(
    label: str, options: Sequence[str], key: str, default: Sequence[str], most: int
) -> list[str]:
    """Like `choose`, for up to `most` values."""
    widget = link_choices(key, options, default, most)
    value = st.multiselect(label, options, max_selections=most, key=widget)
    remember(key, ",".join(value))  # an empty choice is stored, too
    return value


def choose_part(titles: dict[str, str], key: str, label: str = "Part") -> str:
    """Choose the part of a page that is shown; the choice is in the page's address."""
    names = list(titles)
    chosen = st.segmented_control(
        label,
        names,
        key=link_choice(key, names),
        format_func=titles.__getitem__,
        label_visibility="collapsed",
    )
    value = chosen or names[0]
    remember(key, value)
    return value


def go(file: str, **parameters: str) -> None:
    """Leave for another page, with its choices made."""
    for key in parameters:
        st.session_state.pop(f"url_{key}", None)
    st.switch_page(f"views/{file}", query_params=parameters)


# --- clock ----------------------------------------------------------------------------------------

UTC = "UTC"


def pick_clock(market: str) -> str:
    """Pick the time zone (an IANA name) of a page's times: the `market`'s own, or UTC.

    For a market in UTC there is no choice. Sessions are named by the market's days on both
    clocks.
    """
    place = market.rpartition("/")[2].replace("_", " ")
    if market == UTC:
        st.caption("Times are UTC, the market's own.", width="content")
        return UTC
    with st.container(horizontal=True, vertical_alignment="center"):
        if choose_part({"market": f"{place} time", "utc": UTC}, "clock", "Clock") == "market":
            return market
        st.caption("Sessions are named by the market's days.", width="content")
    return UTC


# --- runs -----------------------------------------------------------------------------------------


def prefer_run(found: Sequence[Summary]) -> str:
    """Name the run that pages open on: the newest finished one, else the newest at work, else the
    newest."""
    order = {"finished": 0, "running": 1}
    return min(found, key=lambda run: (run.notes.archived, order.get(run.status, 2))).name


def pick_run(runs: RunsFolder, head: DeltaGenerator) -> tuple[Summary, Folder]:
    """Draw the run picker and the run's status into the head of a page; below it the stages of a
    run that has not finished. Raises NotThereError when there are no runs at all."""
    found = load_summaries(runs)
    if not found:
        raise NotThereError(
            "no runs here yet: start one on the New run page, or type `fintrader run CONFIG`"
        )
    by_name = {run.name: run for run in found}
    left, right = head.columns([2, 3], vertical_alignment="center")
    with left:
        opened = prefer_run(found)
        name = choose("Run", list(by_name), "run", default=opened, label_visibility="collapsed")
    chosen = by_name[name]
    with right:
        show_status(chosen)
    if chosen.status != "finished":
        show_stages(runs, chosen)
    return chosen, runs.run(name)


def list_folds(folder: Folder) -> list[str]:
    """List the folders of a walk-forward's folds, in their order."""
    return sorted(filter(str.isdecimal, folder.folders("folds")), key=int)


def pick_race(runs: RunsFolder, head: DeltaGenerator) -> tuple[Summary, Folder, Folder]:
    """Draw the header of a page about a race; return the run, its folder, and the folder of its
    tournament, which is a fold's if the run is walked forward."""
    run, folder = pick_run(runs, head)
    draw_notice(run.notice)
    folds = [] if folder.exists("leaderboard.sqlite") else list_folds(folder)
    if not folds:
        return run, folder, folder
    left, right = line_up(2, 3)
    with left:
        fold = choose(
            "Fold",
            folds,
            "fold",
            default=folds[-1],  # the current one, if the run is at work
            format_func=lambda name: f"Fold {plain(name, 20)}",
        )
    right.caption(f"Walked forward: each of the {len(folds)} folds has its tournament.")
    return run, folder, Folder(folder.path("folds", fold))


def show_status(run: Summary) -> None:
    """Show a run's status, trials, seed, device and age."""
    icon, colour = STATUS[run.status]
    facts = (
        "" if run.trials is None else format_count(run.trials, "trial"),
        "" if run.seed is None else f"seed {run.seed}",
        plain(run.device or "", 20),
    )
    with st.container(horizontal=True, vertical_alignment="center"):
        st.badge(run.status, icon=icon, color=colour)  # type: ignore[arg-type]
        for fact in filter(None, facts):
            st.badge(fact, color="gray")
        if run.created:
            st.caption(when(run.created), width="content")


def draw_notice(notice: str) -> None:
    """Draw the banner of a synthetic market; nothing for an empty notice."""
    if notice:
        st.error(plain(notice, LONGEST), icon=":material/warning:")


def show_stages(runs: RunsFolder, run: Summary) -> None:
    """Show the progress of a run's stages, live while it runs, the purpose of the current one, and
    the reason if the run failed."""

    def draw() -> None:
        now = reload_running(runs, run)
        draw_stages(load_stages(runs, now), now)

    follow(draw, live=run.status == "running")


def reload_running(runs: RunsFolder, run: Summary) -> Summary:
    """Load a run at work as it is now; draw the whole page once more when it has ended."""
    if run.status != "running":
        return run
    now = load_summary(runs, run.name)
    if now.status != "running":
        st.rerun()
    return now


def draw_stages(found: Sequence[Stage], run: Summary) -> None:
    """Draw the stages; those of a finished run as one line of text."""
    if run.status == "finished":
        if any(stage.seconds is not None for stage in found):
            st.caption(plain(strip(found)))
    elif found:
        st.html(render_stages(found, alive=run.status == "running"))
    at_work = next((stage for stage in found if stage.state == "running"), None)
    if at_work is not None and at_work.about:
        st.caption(f"**{plain(human(at_work.title))}**: {plain(at_work.about)}.")
    if run.problem:
        titles = {stage.name: f" (stage: {plain(stage.title)})" for stage in found}
        where = titles.get((run.failure or {}).get("stage", ""), "")
        st.error(
            f"{plain(run.name)}{where}: {plain(hide_secrets(run.problem), 1_000)}",
            icon=":material/error:",
        )


def render_stages(found: Sequence[Stage], *, alive: bool) -> str:
    """Render the stages as a list with bars, texts of the run escaped."""
    items = "".join(
        f'<li class="{stage.state}"><b>{number} {escape_label(human(stage.title), 30)}</b>'
        f'<i style="--share:{stage.share or 0.0:.1%}"></i>'
        f"<small>{escape_label(_describe_stage(stage, alive=alive), 80)}</small></li>"
        for number, stage in enumerate(found, 1)
    )
    return f'<ul class="ft-stages">{items}</ul>'


def _describe_stage(stage: Stage, *, alive: bool) -> str:
    """Describe a stage below its bar: state, share, time left, and its task if it differs from the
    title."""
    if stage.state == "done":
        return duration(stage.seconds) if stage.seconds is not None else "done"
    if stage.state == "waiting":
        if not alive:
            return "not started"
        return "waiting" if stage.seconds_left is None else f"about {duration(stage.seconds_left)}"
    parts = (
        stage.state if stage.state != "running" else "",
        "" if stage.share is None else f"{stage.share:.0%}",
        "" if stage.seconds_left is None else f"{duration(stage.seconds_left)} left",
        stage.doing if stage.doing != stage.title else "",
    )
    return ", ".join(filter(None, parts)) or "running"
