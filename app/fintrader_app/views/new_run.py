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
from itertools import count
from pathlib import Path
from typing import Any

import streamlit as st
import yaml
from streamlit.delta_generator import DeltaGenerator

from fintrader.config import validate
from fintrader.errors import ConfigError, FintraderError
from fintrader.results.folders import Folder, RunsFolder
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
    follow,
    go,
    guarded,
    heading,
    hide_secrets,
    list_config_folders,
    page,
    plain,
)

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


def render(runs: RunsFolder, head: DeltaGenerator) -> None:
    left, right = st.columns([3, 2], gap="large")
    with left:
        heading("Settings")
        with guarded():
            compose(runs)
    with right:
        heading("Started from here")
        watch(runs)


# --- the form -------------------------------------------------------------------------------------


def list_sources(runs: RunsFolder) -> dict[str, tuple[Folder, str] | None]:
    """List configurations, those of earlier runs included: title -> folder and file name."""
    found: dict[str, tuple[Folder, str] | None] = {}
    for path in list_config_folders():
        for file in sorted(path.glob("*.y*ml")):
            found.setdefault(f"configs/{file.name}", (Folder(path), file.name))
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
    top = st.container()  # filled last: the check of the form and the start button
    offer_search(draft)
    section = choose_part(SECTIONS, "section")
    with st.container(border=True):
        edit(section, draft, source)
    if section == "yaml":
        st.caption("The form's settings as a file for `fintrader run`.")
        st.code(hide_secrets(format_yaml(draft)), language=None)
    with top:
        begin(runs, draft)


def begin(runs: RunsFolder, draft: dict[str, Any]) -> None:
    """Show whether the draft is valid, the button that starts it, and the time and memory that it
    will need."""
    left, right = st.columns([4, 1], vertical_alignment="center")
    with left:
        settings = check(runs, draft)
    pressed = right.button(
        "Start",
        key="new_start",
        type="primary",
        icon=":material/play_arrow:",
        width="stretch",
        disabled=settings is None,
    )
    if settings is not None:
        from fintrader.pipeline.estimates import estimate, list_records

        with guarded():
            records = list_records(runs, load_summaries(runs), load_config)
            words = plain(estimate(settings, records).describe(), 1_000)
            st.markdown(f":material/schedule: {words}")
    if pressed:
        job = jobs.start(runs, str(draft["name"]), format_yaml(draft))
        st.toast(f"{plain(job.name)} started as process {job.pid}", icon=":material/play_circle:")


def offer_search(draft: forms.Draft) -> None:
    """Draw the button that lets all algorithms race with settings from wide ranges."""
    from fintrader.pipeline.config import RunConfig
    from fintrader.pipeline.wide_search import widen

    if st.button(
        "Search algorithms and settings",
        key="new_search",
        icon=":material/manage_search:",
        help="Use it where good settings are unknown: all algorithms race, with step size, discount"
        " and noise from wide ranges, as with `fintrader run --search`.",
    ):
        with guarded():
            settings = validate(RunConfig, copy.deepcopy(draft), "settings")
            draft |= widen(settings).model_dump(mode="json")
            # Widgets of the old keys would write their old values over the draft.
            st.session_state["new_widened"] = st.session_state.get("new_widened", 0) + 1


def load_draft(runs: RunsFolder, source: str, place: tuple[Folder, str] | None) -> dict[str, Any]:
    """Load the draft of this session: read from the source once, then changed by the form."""
    state = st.session_state
    if state.get("new_draft_of") != source:
        with st.spinner("Reading the settings"):
            state["new_draft"] = load(runs, place)
        state["new_draft_of"] = source
    return state["new_draft"]  # type: ignore[no-any-return]


def load(runs: RunsFolder, place: tuple[Folder, str] | None) -> dict[str, Any]:
    """Load a configuration with all defaults, as plain data. Raises ConfigError when it is not
    valid."""
    from fintrader.pipeline.config import RunConfig

    values: Any = {}
    name = "run"
    if place is not None:
        folder, file = place
        values = parse_yaml(folder.text(file), file) or {}
        if not isinstance(values, dict):
            raise ConfigError(f"{file} must be a mapping of settings")
        name = values.get("name") or Path(file).stem
    name = find_unused_name(runs, str(name))
    here = Path.cwd()
    # Relative inside the working folder, so that both can move together.
    home = runs.root.relative_to(here) if runs.root.is_relative_to(here) else runs.root
    values = {**values, "name": name, "runs_dir": str(home)}
    if store := os.environ.get(STORE_VARIABLE):
        values["store"] = store
    return copy.deepcopy(validate(RunConfig, values, "this configuration").model_dump(mode="json"))


def find_unused_name(runs: RunsFolder, name: str) -> str:
    """Find a name without a run: `name`, or `name-2` and so on."""
    taken = runs.names()
    if name not in taken:
        return name
    stem = re.sub(r"-\d{1,2}$", "", name)  # four digits are a year
    return next(new for k in count(2) if (new := f"{stem}-{k}") not in taken)


def edit(section: str, draft: dict[str, Any], source: str) -> None:
    """Draw the widgets of one part of the configuration."""
    from fintrader.pipeline.config import RunConfig

    schema = forms.read_schema(RunConfig)
    fields = dict(schema["properties"])
    fields["agent"] = forms.choose_single(fields["agent"])
    key = f"new:{source}:{st.session_state.get('new_widened', 0)}"
    if section == "run":
        forms.draw_fields(schema, ("name", "seed", "device", "cache"), draft, key)
        st.caption(plain(f"The run's folder will be {draft.get('runs_dir')}/{draft.get('name')}."))
    elif section == "yaml":
        st.caption("Choose a part above to change it.")
    elif section == "tournament":
        field = fields[section]
        values = forms.hold_mapping(draft, section, field)
        forms.draw(field, values, f"{key}.{section}", skip=("search",))
        heading("Search space")
        search = field["properties"]["search"]
        st.caption(search["description"])
        forms.draw_rows(
            search,
            "search",
            values,
            f"{key}.search",
            list_searchable(fields["agent"], draft),
        )
    elif isinstance(draft.get(section), list):
        st.caption(
            f"{section} lists several algorithms, which race each other. To change them, copy the"
            " YAML to a file, and use `fintrader run FILE`."
        )
    else:
        forms.draw_group(fields[section], section, draft, f"{key}.{section}")


def list_searchable(field: forms.Schema, draft: dict[str, Any]) -> list[str]:
    """List the numeric settings of the chosen algorithm."""
    algo = draft["agent"].get("algo") if isinstance(draft.get("agent"), dict) else None
    models = field.get("oneOf", [field])
    return forms.list_numbers(
        next((one for one in models if one["properties"]["algo"].get("const") == algo), models[0])
    )


def format_yaml(draft: dict[str, Any]) -> str:
    """Write the draft as YAML."""
    return yaml.safe_dump(draft, sort_keys=False, allow_unicode=True)


def check(runs: RunsFolder, draft: dict[str, Any]) -> Any:
    """Check that the draft can start; return it as settings, or None after messages that name field
    and remedy."""
    from fintrader.pipeline.config import RunConfig
    from fintrader.pipeline.inputs import find_missing_inputs

    try:
        settings = validate(RunConfig, copy.deepcopy(draft), "settings")
    except FintraderError as error:
        st.error(describe_error(error), icon=":material/rule:")
        return None
    missing = find_missing_inputs(settings)
    for sentence in missing[:MOST_MISSING]:
        st.error(plain(sentence, 500), icon=":material/link_off:")
    if missing:
        return None
    if settings.name in runs.names():
        st.warning(
            f"A run called {plain(settings.name)} exists with these settings: Start continues it.",
            icon=":material/resume:",
        )
    else:
        st.success(
            "These settings are valid, and their inputs exist.", icon=":material/check_circle:"
        )
    return settings


# --- what was started -----------------------------------------------------------------------------


def watch(runs: RunsFolder) -> None:
    """Show the jobs with their status and the end of their output, live."""
    alive = any(job.alive for job in jobs.list_jobs(runs))

    def draw() -> None:
        found = jobs.list_jobs(runs)
        if not found:
            st.info(
                "No run yet. A run started here is a separate process: it continues when this app"
                " ends. It can be stopped here, and continued with the same command.",
                icon=":material/terminal:",
            )
        for job in found[:8]:
            with guarded():
                show_job(runs, job)
        if alive and not any(job.alive for job in found):
            st.rerun()

    follow(draw, live=alive)


def show_job(runs: RunsFolder, job: jobs.Job) -> None:
    """Draw a job: its state, stages, output and buttons."""
    alive = job.alive
    run = find_summary(runs, job.name)
    state, why = describe_end(runs, job, run)
    with st.container(border=True):
        with st.container(horizontal=True, vertical_alignment="center"):
            st.markdown(f"**{plain(job.name)}**", width="content")
            icon, colour = STATUS[state]
            st.badge(state, icon=icon, color=colour)  # type: ignore[arg-type]
            if alive:
                age = duration(time.time() - job.started)
                st.caption(f"process {job.pid}, for {age}", width="content")
        if run is not None:
            draw_stages(load_stages(runs, run), replace(run, status=state, problem=None))
        if why:
            st.error(plain(hide_secrets(why), 1_000), icon=":material/error:")
        with contextlib.suppress(FintraderError):
            if words := jobs.read_log_end(runs, job.name):
                with st.expander("Output", icon=":material/terminal:"):
                    st.code("\n".join(hide_secrets(words).splitlines()[-40:]), language=None)
        again = not alive and runs.exists(jobs.PLACE, f"{job.name}.yaml") and state != "finished"
        with st.container(horizontal=True):
            if st.button("Open", key=f"job_open_{job.name}", icon=":material/trophy:"):
                go("tournament.py", run=job.name)
            if alive:
                key = f"job_asked_{job.name}"
                is_due = time.time() - st.session_state.get(key, math.inf) > 20
                if st.button("Stop", key=f"job_stop_{job.name}", icon=":material/stop:"):
                    jobs.stop(job)
                    st.session_state[key] = time.time()
                    st.toast(f"Asked {plain(job.name)} to stop; it stores what it has first.")
                if is_due and st.button(
                    "Kill", key=f"job_kill_{job.name}", icon=":material/dangerous:"
                ):
                    jobs.kill(job)
            elif again and st.button(
                "Continue", key=f"job_again_{job.name}", icon=":material/resume:"
            ):
                jobs.start(runs, job.name, runs.text(jobs.PLACE, f"{job.name}.yaml"))
                st.rerun()


def find_summary(runs: RunsFolder, name: str) -> Summary | None:
    """Find the run of a job; None before it exists."""
    try:
        found = load_summary(runs, name)
    except FintraderError:
        return None
    return found if found.created is not None else None


def describe_end(runs: RunsFolder, job: jobs.Job, run: Summary | None) -> tuple[Status, str | None]:
    """Find a job's state, and the reason if it failed: from its run, or from its output where there
    is no run yet."""
    if job.alive:
        return "running", None
    if run is not None and run.status in ("finished", "failed", "broken"):
        return run.status, run.problem
    why = jobs.explain_end(runs, job.name)
    return ("failed", why) if why else ("interrupted", None)


page("New run", render)
