"""Live: the state of a deployment, its holdings, and its distance from the backtest. Where the app
asks for its token, buttons halt, resume and flatten; nothing else here trades."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from fintrader.deploy import status as deployments
from fintrader.deploy.control import ask, ask_all
from fintrader.deploy.drift_page import present_account, present_shortfall
from fintrader.deploy.status import Status, format_moment
from fintrader.errors import DeployError
from fintrader.numerals import DASH, percent, usd
from fintrader.records import to_json
from fintrader.results.figures.shortfall import account_figure
from fintrader.results.folders import NotThereError, RunsFolder
from fintrader_app import charts, sections
from fintrader_app.guard import GUARD_VARIABLE
from fintrader_app.launch import DEPLOYMENTS_DIR_VARIABLE
from fintrader_app.shell import (
    choose,
    draw_notice,
    follow,
    format_code,
    guarded,
    heading,
    page,
    pick_clock,
    plain,
)
from fintrader_app.tables import numbers, table

COLOURS = {
    "running": "blue",
    "silent": "red",
    "finished": "green",
    "halted": "red",
    "stopped": "orange",
    "not begun": "gray",
}


def render(runs: RunsFolder, head: DeltaGenerator) -> None:
    given = os.environ.get(DEPLOYMENTS_DIR_VARIABLE)
    folder = Path(given) if given else runs.root.parent / "deployments"
    names = deployments.list_names(folder)
    if not names:
        raise NotThereError(
            "there is no deployment yet; `fintrader paper runs/NAME` starts one, without keys"
        )
    left, right = head.columns([2, 3], vertical_alignment="center")
    with left:
        name = choose("Deployment", names, "deployment", label_visibility="collapsed")
    first = deployments.read_status(folder / name)
    with right:
        timezone = pick_clock(first.timezone)
    steer(folder / name, first)

    def watch() -> None:
        now = deployments.read_status(folder / name)
        if (now.state, now.flattening) != (first.state, first.flattening):
            st.rerun()
        draw(now, timezone)

    follow(watch, live=first.is_beating)


def steer(home: Path, status: Status) -> None:
    """Draw the buttons that halt, resume or flatten the deployment, and one that flattens all of
    the folder; none without a token."""
    if not os.environ.get(GUARD_VARIABLE):
        return
    is_over = status.state in ("finished", "not begun")
    halted = status.state == "halted"
    with st.container(horizontal=True), guarded():
        if st.button("Halt", icon=":material/front_hand:", disabled=halted or is_over):
            ask(home, "halt")
        can_resume = halted and not status.flattening
        if st.button("Resume", icon=":material/play_arrow:", disabled=not can_resume):
            ask(home, "resume")
        is_off = status.flattening or is_over
        about = "Cancels its orders and sells everything that it holds."
        if confirm("Flatten …", about, "Sell everything", home, disabled=is_off):
            ask(home, "flatten")
        about = "Cancels the orders of every deployment here and sells everything that they hold."
        if confirm("Flatten all …", about, "Sell all holdings", home.parent / "all"):
            names = deployments.list_names(home.parent)
            asked, faults = ask_all([home.parent / name for name in names], "flatten")
            st.toast(f"Asked to flatten: {plain(', '.join(asked)) or 'none'}.")
            if faults:
                raise DeployError("; ".join(faults))


def confirm(title: str, about: str, label: str, path: Path, *, disabled: bool = False) -> bool:
    """Draw a popover with a button that needs the last part of `path` typed; return whether it was
    pressed."""
    with st.popover(title, icon=":material/sell:", disabled=disabled):
        st.caption(about)
        typed = st.text_input(f"Type {plain(path.name)} to confirm", key=f"{title}:{path}")
        return st.button(label, disabled=typed.strip() != path.name)


def draw(status: Status, timezone: str) -> None:
    """Draw everything below the picker and the clock."""
    draw_notice(status.bundle.notice)
    show_state(status)
    show_curves(status, timezone)
    show_numbers(status, timezone)
    left, right = st.columns(2)
    with left:
        show_holdings(status)
    with right:
        show_headroom(status)
        show_news(status, timezone)
    show_orders(status)
    with st.expander("Journal, newest first"):
        rows = [
            {
                "When": format_moment(entry.time, timezone),
                "Kind": entry.kind,
                "Key": entry.key,
                "Content": str(to_json(entry.body)),
            }
            for entry in status.journal
        ]
        table(rows, "live_journal")


def show_state(status: Status) -> None:
    """Draw the state and the return in one line, then the problems."""
    words = f"{status.role} bundle of the run {status.bundle.run}"
    if status.equity is not None and status.growth is not None:
        grown = percent(status.growth, signed=True)
        words += f": the account is worth {usd(status.equity)}, {grown} since the start."
    st.markdown(f":{COLOURS[status.state]}-badge[{status.state}] **{plain(words.strip())}**")
    if status.flattening:
        st.error(f"Not flat yet: {plain(status.why)}.", icon=":material/sell:")
    elif status.why:
        remedy = f"{format_code(f'fintrader resume {status.name}')} resumes it."
        st.error(f"Halted: {plain(status.why)}. {remedy}", icon=":material/front_hand:")
    if status.state == "silent":
        st.error("Its process runs, but does nothing: end the process and start it again.")
    for request in status.requests:
        st.warning(f"Asked to {request}; not done yet.", icon=":material/hourglass_empty:")


def show_numbers(status: Status, timezone: str) -> None:
    """Draw the verdict on the backtest, the figures of the account, and the commands."""
    if status.bundle.verdict:
        st.caption(f"Its backtest: {plain(status.bundle.verdict, 600)}")
    cells = {
        "Bars": getattr(status.started, "feed", DASH),
        "Broker": getattr(status.started, "broker", DASH),
    }
    if status.decision is not None and status.equity is not None:
        cells |= {
            "Account": usd(status.equity),
            "Cash": usd(status.cash_usd),
            "Since the start": percent(status.growth),
            "Newest decision": format_moment(status.decision.bar, timezone),
        }
    if status.next_decision and status.state == "running":
        cells["Next decision"] = format_moment(status.next_decision, timezone)
    if status.beat is not None and (status.is_beating or status.state == "silent"):
        cells["Seen"] = f"{max(time.time_ns() - status.beat, 0) / 1e9:.0f} s ago"
    numbers(cells)
    halt = format_code(f"fintrader halt {status.name}")
    st.caption(f"In a terminal: {halt}, `resume` and `flatten`.")


def show_curves(status: Status, timezone: str) -> None:
    version = (status.name, len(status.curve), status.state, timezone)
    if status.report is not None and status.state == "finished":
        for present in (present_account, present_shortfall):
            sections.draw(present(status.report), version, "live_")
    elif len(status.curve) > 1:
        heading("Value of the account")
        charts.show(lambda: account_figure(status.curve, timezone), "live_account", version=version)
        st.caption(
            f"The twin and the shortfall come with "
            f"{format_code(f'fintrader status {status.name} --drift')}."
        )
    else:
        st.info("Nothing has been decided yet.", icon=":material/hourglass_empty:")


def show_holdings(status: Status) -> None:
    heading("Targets and holdings")
    decision = status.decision
    if decision is None:
        return
    marks = decision.prices
    names = sorted({*decision.shares, *decision.weights, *status.held})
    rows = [
        {
            "Symbol": name,
            "Held": status.held.get(name, 0.0),
            "Price, USD": marks.get(name),
            "Share": status.held.get(name, 0.0) * marks.get(name, 0.0) / decision.equity,
            "Target": decision.weights.get(name, 0.0),
            "Ordered": decision.ordered.get(name, 0.0),
        }
        for name in names
    ]
    if not rows:
        st.caption("It holds cash.")
        return
    frame = pd.DataFrame(rows).sort_values("Target", ascending=False)
    most = max(float(frame[["Target", "Share"]].max().max()), 0.01)
    look = st.column_config.ProgressColumn(format="percent", min_value=0.0, max_value=most)
    table(frame, "live_holdings", column_config={"Share": look, "Target": look})


def show_headroom(status: Status) -> None:
    heading("Headroom of the limits")
    for label, (used, limit) in status.headroom().items():
        st.progress(min(used / limit, 1.0), text=f"{label}: {percent(used)} of {percent(limit)}")


def show_news(status: Status, timezone: str) -> None:
    heading("News")
    if not status.news:
        st.caption("None.")
    for entry in status.news[:8]:
        text = [entry.kind, *to_json(entry.body).values()][-1]
        st.caption(f"{format_moment(entry.time, timezone)} {plain(text)}")


def show_orders(status: Status) -> None:
    heading("Orders")
    if not status.orders:
        st.caption("None yet.")
        return
    st.caption(deployments.format_counts(status.counts))
    rows = [
        {
            "Symbol": order.symbol,
            "State": order.state,
            "Asked": order.shares,
            "Filled": order.filled,
            "Price, USD": order.price_usd or None,
            "Fees, USD": order.cost_usd or None,
            "Why": order.reason,
            "Id": order.id,
        }
        for order in status.orders
    ]
    table(rows, "live_orders", height=320)


page("Live", render)
