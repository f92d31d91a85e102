"""New run: choose a configuration, change it in a form, see the YAML, start it, watch it, stop
it."""

from __future__ import annotations

import contextlib
import copy
import math
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import streamlit as st
import yaml

from fintrader.config import validate
from fintrader.errors import FintraderError
from fintrader.results.folders import Folder, NotThereError, RunsFolder
from fintrader.results.formatting import duration
from fintrader.results.run import Status, Summary
from fintrader.yaml_text import parse_yaml
from fintrader_app import forms, jobs, own_bars
from fintrader_app.artifacts import load_config, load_stages, load_summaries, load_summary
from fintrader_app.launch import STORE_VARIABLE
from fintrader_app.shell import (
    STATUS,
    choose,
    choose_part,
    describe_error,
    draw_stages,
    go,
    guarded,
    hide_secrets,
    list_config_folders,
    page,
    plain,
)

REFRESH_SECONDS = 2
SECTIONS = {
    "run": "Run",
    "data": "Data",
    "env": "Environment",
    "agent": "Agent",
    "tournament": "Tournament",
    "backtest": "Backtest",
    "yaml": "YAML",
}
DEFAULTS = "defaults"
MOST_MISSING = 5
MOST_RECORDS = 20


def render(runs: RunsFolder) -> None:
    left, right = st.columns([3, 2], gap="large")
    with left:
        st.subheader("Settings", anchor=False)
        with guarded():
            compose(runs)
    with right:
        st.subheader("Started from here", anchor=False)
        watch(runs)


# --- the form -------------------------------------------------------------------------------------


def list_sources(runs: RunsFolder) -> dict[str, tuple[Folder, str] | None]:
    """Title -> where the YAML lies: the configurations, and those of earlier runs."""
    found: dict[str, tuple[Folder, str] | None] = {}
    for path in list_config_folders():
        folder = Folder(path)
        try:
            names = sorted(
                entry.name for entry in path.iterdir() if entry.suffix in {".yaml", ".yml"}
            )
        except OSError:
            continue
        for name in names:
            found[f"configs/{name}"] = (folder, name)
    for run in load_summaries(runs)[:50]:
        found[f"run {run.name}"] = (runs.run(run.name), "config.yaml")
    found[DEFAULTS] = None
    return found


def compose(runs: RunsFolder) -> None:
    with st.expander(
        "From your own bars: choose a file, see how it is read", icon=":material/folder_open:"
    ):
        own_bars.render()
    options = list_sources(runs)
    names = list(options)
    source = choose(
        "Start from",
        names,
        "source",
        default=next((name for name in names if "quickstart" in name), None),
    )
    draft = load_draft(runs, source, options[source])
    top = (
        st.container()
    )  # filled last: whether the form is valid, and the button that needs it to be
    section = choose_part(SECTIONS, "section")
    with st.container(border=True):
        edit(section, draft, source)
    if section == "yaml":
        st.caption("What the form amounts to; the same file works with `fintrader run`.")
        st.code(hide_secrets(format_yaml(draft)), language="yaml")
    with top:
        begin(runs, draft)


def begin(runs: RunsFolder, draft: dict[str, Any]) -> None:
    """The verdict on the draft, and the button."""
    left, right = st.columns([4, 1], vertical_alignment="center")
    with left:
        settings = check(runs, draft)
    with right:
        look: dict[str, Any] = {
            "type": "primary",
            "icon": ":material/play_arrow:",
            "width": "stretch",
        }
        pressed = st.button("Start", disabled=settings is None, key="new_start", **look)
    if settings is not None:
        with guarded():
            show_estimate(runs, settings)
    if pressed:
        job = jobs.start(runs, str(draft["name"]), format_yaml(draft))
        st.toast(f"{plain(job.name)} started as process {job.pid}", icon=":material/play_circle:")


def show_estimate(runs: RunsFolder, settings: Any) -> None:
    """Time and memory before the start, and how sure that is."""
    from fintrader.pipeline import estimate

    found = estimate(settings, list_records(runs))
    low, high = found.span
    null = (
        f", about {duration(found.null_seconds)} of it for the null model"
        if found.null_seconds
        else ""
    )
    room = "memory unknown until the bars are read"
    if found.memory_bytes is not None:
        room = f"about {found.memory_bytes / 2**30:.1f} GiB of memory"
    st.markdown(
        f":material/schedule: **About {plain(duration(found.seconds))}** "
        f"({plain(duration(low))} to {plain(duration(high))} where nothing else is at work)"
        f"{plain(null)}; {plain(room)}. "
        f"{plain(found.sure.capitalize())}: {plain(found.why)}."
    )
    if found.null_seconds:
        st.caption(
            "The null model is the same search on bars without information, so that one knows what"
            " luck alone would have made. Without it (Backtest, Null model) the run is that much"
            " shorter, and the report lacks that row."
        )
    if found.short_of is not None:
        st.warning(
            f"Only {found.short_of / 2**30:.1f} GiB of memory are free here: fewer workers"
            " (Tournament) need less.",
            icon=":material/memory_alt:",
        )


def list_records(runs: RunsFolder) -> list[Any]:
    """What the newest finished runs here took."""
    from fintrader.pipeline import record_of

    found = []
    for run in [one for one in load_summaries(runs) if one.status == "finished"][:MOST_RECORDS]:
        with contextlib.suppress(FintraderError):
            market = Path(run.market) if run.market else None
            size = market.stat().st_size if market is not None and market.is_file() else None
            found.append(record_of(run.name, load_config(runs.run(run.name)), run.stages, size))
    return [record for record in found if record is not None]


def load_draft(runs: RunsFolder, source: str, place: tuple[Folder, str] | None) -> dict[str, Any]:
    """The draft of this session: read from the source once, then whatever the form made of it."""
    state = st.session_state
    if state.get("new_draft_of") != source:
        with st.spinner("Reading the settings"):
            state["new_draft"] = load(runs, place)
        state["new_draft_of"] = source
    return state["new_draft"]  # type: ignore[no-any-return]


def load(runs: RunsFolder, place: tuple[Folder, str] | None) -> dict[str, Any]:
    """A configuration, complete with defaults, as plain data. Raises ConfigError when it is not
    valid."""
    from fintrader.pipeline import RunConfig

    values: Any = {}
    name = "run"
    if place is not None:
        folder, file = place
        values = parse_yaml(folder.text(file), file) or {}
        stated = values.get("name") if isinstance(values, dict) else None
        name = stated if isinstance(stated, str) else Path(file).stem
    if not isinstance(values, dict):
        raise NotThereError("the configuration is no mapping")
    values = {**values, "name": find_unused_name(runs, name), "runs_dir": format_path(runs.root)}
    if store := os.environ.get(STORE_VARIABLE):
        values["store"] = store
    return copy.deepcopy(validate(RunConfig, values, "this configuration").model_dump(mode="json"))


def find_unused_name(runs: RunsFolder, name: str) -> str:
    """`name`, or `name-2` and so on when such a run exists."""
    taken = set(runs.names())
    stem = re.sub(r"-\d+$", "", name) if name in taken else name
    number = 2
    while name in taken:
        name = f"{stem}-{number}"
        number += 1
    return name


def format_path(path: Path) -> str:
    """A path relative to the working folder where it lies inside, so that files can move
    together."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def edit(section: str, draft: dict[str, Any], source: str) -> None:
    """The widgets of one part of the configuration."""
    from fintrader.pipeline import RunConfig

    fields = dict(forms.read_schema(RunConfig)["properties"])
    fields["agent"] = forms.choose_single(fields["agent"])
    key = f"new:{source}"
    if section == "run":
        for name in ("name", "seed", "device", "cache"):
            forms.draw_widget(fields[name], name, draft, f"{key}.{name}")
        st.caption(
            f"The run will lie in {plain(draft.get('runs_dir'))}/{plain(draft.get('name'))}."
        )
    elif section == "yaml":
        st.caption("Choose a part above to change it.")
    elif section == "tournament":
        field = fields[section]
        if not isinstance(draft.get(section), dict):
            draft[section] = forms.collect_defaults(field)
        forms.draw(field, draft[section], f"{key}.{section}", skip=("search",))
        st.subheader("Search space", anchor=False)
        search = field["properties"]["search"]
        st.caption(search["description"])
        forms.draw_rows(
            search,
            "search",
            draft[section],
            f"{key}.search",
            list_searchable(fields["agent"], draft),
        )
    elif isinstance(draft.get(section), list):
        st.caption(f"{section} lists several algorithms, which race each other: edit the YAML.")
    else:
        forms.group(fields[section], section, draft, f"{key}.{section}")


def list_searchable(field: forms.Schema, draft: dict[str, Any]) -> list[str]:
    """Numeric settings of the chosen algorithm."""
    algo = draft["agent"].get("algo") if isinstance(draft.get("agent"), dict) else None
    models = field.get("oneOf", [field])
    return forms.list_numbers(
        next((one for one in models if one["properties"]["algo"].get("const") == algo), models[0])
    )


def format_yaml(draft: dict[str, Any]) -> str:
    """The draft as YAML."""
    return yaml.safe_dump(draft, sort_keys=False, allow_unicode=True)


def check(runs: RunsFolder, draft: dict[str, Any]) -> Any:
    """The draft as settings that can start, or None and messages that name the field and what to
    do."""
    from fintrader.pipeline import RunConfig, missing_inputs

    try:
        settings = validate(RunConfig, copy.deepcopy(draft), "settings")
    except FintraderError as error:
        st.error(describe_error(error), icon=":material/rule:")
        return None
    missing = missing_inputs(settings)
    for sentence_of_it in missing[:MOST_MISSING]:
        st.error(plain(sentence_of_it, 500), icon=":material/link_off:")
    if missing:
        return None
    name = settings.name
    if name in runs.names():
        st.warning(
            f"A run called {plain(name)} exists with these settings: it is continued.",
            icon=":material/resume:",
        )
    else:
        st.success(
            "These settings are valid, and what they name is here.", icon=":material/check_circle:"
        )
    return settings


# --- what was started -----------------------------------------------------------------------------


def watch(runs: RunsFolder) -> None:
    """Jobs with their status and last words, live."""
    alive = any(job.alive for job in jobs.list_jobs(runs))

    @st.fragment(run_every=REFRESH_SECONDS if alive else None)
    def live() -> None:
        with guarded():
            found = jobs.list_jobs(runs)
            if not found:
                st.info(
                    "Nothing yet. A run started here is a process of its own: it goes on when this"
                    " app ends, and it can be stopped here or continued with the same command.",
                    icon=":material/terminal:",
                )
            for job in found[:8]:
                with guarded():
                    show_job(runs, job)
            if alive and not any(job.alive for job in found):
                st.rerun()

    live()


def show_job(runs: RunsFolder, job: jobs.Job) -> None:
    """One job."""
    alive = job.alive
    run = find_summary(runs, job.name)
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{plain(job.name)}**", width="content")
            state, why = describe_end(runs, job, run)
            icon, colour = STATUS[state]
            st.badge(state, icon=icon, color=colour)  # type: ignore[arg-type]
            if alive:
                st.caption(
                    f"process {job.pid}, for {duration(time.time() - job.started)}", width="content"
                )
        if run is not None:
            draw_stages(load_stages(runs, run), replace(run, status=state, problem=None))
        if why:
            st.error(plain(hide_secrets(why), 1_000), icon=":material/error:")
        with contextlib.suppress(FintraderError):
            if words := jobs.read_last_words(runs, job.name):
                with st.expander("What it printed", icon=":material/terminal:"):
                    st.code("\n".join(hide_secrets(words).splitlines()[-40:]), language=None)
        again = not alive and runs.exists(jobs.PLACE, f"{job.name}.yaml") and state != "finished"
        with st.container(horizontal=True):
            if st.button("Open", key=f"job_open_{job.name}", icon=":material/trophy:"):
                go("tournament.py", run=job.name)
            if alive:
                asked = st.session_state.get(f"job_asked_{job.name}", math.inf)
                if st.button("Stop", key=f"job_stop_{job.name}", icon=":material/stop:"):
                    jobs.stop(job)
                    st.session_state[f"job_asked_{job.name}"] = time.time()
                    st.toast(f"Asked {plain(job.name)} to stop; it stores what it has first.")
                patient = time.time() - asked <= 20
                if not patient and st.button(
                    "Kill", key=f"job_kill_{job.name}", icon=":material/dangerous:"
                ):
                    jobs.kill(job)
            elif again and st.button(
                "Continue", key=f"job_again_{job.name}", icon=":material/resume:"
            ):
                jobs.start(runs, job.name, runs.text(jobs.PLACE, f"{job.name}.yaml"))
                st.rerun()


def find_summary(runs: RunsFolder, name: str) -> Summary | None:
    """The run of a job, once there is one."""
    try:
        found = load_summary(runs, name)
    except FintraderError:
        return None
    return found if found.created is not None else None


def describe_end(runs: RunsFolder, job: jobs.Job, run: Summary | None) -> tuple[Status, str | None]:
    """What state a job is in, and why it failed if it did: as its run says, or, before there was
    one, its output."""
    if job.alive:
        return "running", None
    if run is not None and run.status in ("finished", "failed", "broken"):
        return run.status, run.problem
    why = jobs.explain_end(runs, job.name)
    return ("failed", why) if why else ("interrupted", None)


page("New run", render)
