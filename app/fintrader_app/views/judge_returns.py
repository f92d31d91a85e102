"""Judge: the verdict on a file of returns or equity, as `fintrader judge` gives it."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Hashable
from pathlib import Path
from typing import get_args

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from fintrader.cli.judging import TABLES, JudgeOptions
from fintrader.errors import ReturnsError
from fintrader.report.judged import judge, tabulate_record
from fintrader.results import figures
from fintrader.results.folders import NotThereError, RunsFolder
from fintrader.results.sections import BacktestView, present_backtest
from fintrader.verdict.judge import look_of
from fintrader.verdict.returns_files import read_file
from fintrader.verdict.track_record import CASH, Kind, to_frame
from fintrader_app import charts, sections
from fintrader_app.shell import format_code, page


def render(_: RunsFolder, head: DeltaGenerator) -> None:
    files = head.file_uploader(
        "Returns or equity; then the benchmark, if it is another file",
        [ending for ending in TABLES if ending != ".xlsx"],
        accept_multiple_files=True,
        key="judge_files",
        max_upload_size=50,
    )
    if not files:
        raise NotThereError("choose a file of dates and returns, or of dates and equity")
    if len({file.name for file in files}) < len(files):
        raise ReturnsError("two files have the same name; rename one, and choose both again")
    with tempfile.TemporaryDirectory() as home:
        paths = [Path(home, Path(file.name).name) for file in files]
        for path, file in zip(paths, files, strict=True):
            path.write_bytes(file.getvalue())
        options = ask_options(paths)
        if options is not None:
            show_verdict(*judge_file(paths[0], options))


def ask_options(paths: list[Path]) -> JudgeOptions | None:
    """Draw the options for the first file; return them once the button is pressed."""
    rivals = [path.name for path in paths[1:]]
    columns = list[str]()
    with contextlib.suppress(ReturnsError):  # judging reports it
        columns += map(str, to_frame(read_file(paths[0]).values)[0])
    with st.form("judge", border=False).container(horizontal=True, vertical_alignment="bottom"):
        options = JudgeOptions(
            column=st.selectbox(
                "Column", columns, None, placeholder="detected", accept_new_options=True
            ),
            benchmark=st.selectbox(
                "Benchmark",
                [*rivals, *columns, CASH],
                0 if rivals else None,
                placeholder="file's own, or cash",
            ),
            kind=st.selectbox("Kind", get_args(Kind), None, placeholder="detected"),
            sessions_a_year=st.number_input(
                "Sessions a year", 1, 366, None, placeholder="detected"
            ),
            trials=st.number_input(
                "Trials",
                1,
                None,
                None,
                placeholder="unknown",
                help="Strategies tried on these returns",
            ),
            held_out=st.checkbox(
                "Held out", help="The strategy was selected without these returns"
            ),
        )
        is_asked = st.form_submit_button("Judge", type="primary", help="Counts as a look")
    return options if is_asked else None


def judge_file(path: Path, options: JudgeOptions) -> tuple[BacktestView, Hashable]:
    """Judge a file and count the look; return the result and its identity. Raises ReturnsError,
    LedgerError."""
    given = options.model_dump(exclude_defaults=True)
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    command = shlex.join(["fintrader", "judge", path.name, *words])
    rivals = {file.name: str(file) for file in path.parent.iterdir()}
    rival = rivals.get(str(options.benchmark), options.benchmark)
    options = options.model_copy(update={"benchmark": rival})
    record = options.read(str(path))
    verdict = judge(record, trials=options.trials, held_out=options.held_out, command=command)
    view = BacktestView.of(tabulate_record(record, verdict, command))
    return view, (command, look_of(record).result)


def show_verdict(view: BacktestView, version: Hashable) -> None:
    """Draw the answer, the chart, and everything else that the command's page has."""
    answer, _, *rest = present_backtest(view)  # the second is the curves
    sections.draw(answer, version, "judge-")
    wealth = view.stored.daily_with_start()[view.names]
    charts.show(lambda: figures.wealth_figure(wealth), "judge_wealth", version=version)
    opening = view.stored.opening
    sections.draw_notes([opening.sees, opening.change])
    st.caption(f"In a terminal: {format_code(str(view.stored.context.command))}")
    for section in rest:
        sections.draw(section, version, "judge-")


page("Judge", render)
