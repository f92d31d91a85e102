"""One clock a page: its times of bars and decisions are all the market's own, or all UTC, and it
says which."""

from __future__ import annotations

import streamlit as st

from fintrader_app.shell import link_choice, plain, remember

UTC = "UTC"
CLOCKS = ("market", "utc")


def pick_clock(market: str) -> str:
    """The time zone (an IANA name) in which a page writes its times: the `market`'s own, unless UTC
    is asked for.

    A market that lives in UTC leaves nothing to choose. Sessions keep their names, the market's
    days, on either clock.
    """
    place = market.rpartition("/")[2].replace("_", " ")
    value = "utc" if market == UTC else CLOCKS[0]
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if market != UTC:
            titles = {"market": f"{place} time", "utc": UTC}
            key = link_choice("clock", CLOCKS)
            chosen = st.segmented_control(
                "Clock",
                CLOCKS,
                key=key,
                format_func=lambda name: titles[name],
                label_visibility="collapsed",
            )
            value = chosen or CLOCKS[0]
            remember("clock", value)
        if value == "market":
            st.caption(f"Times are {plain(place, 40)}'s.", width="content")
        elif market == UTC:
            st.caption("Times are UTC, the market's own.", width="content")
        else:
            st.caption("Times are UTC; sessions are called by the market's day.", width="content")
    return market if value == "market" else UTC
