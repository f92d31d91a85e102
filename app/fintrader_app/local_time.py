"""One clock a page: its times of bars and decisions are all the market's own, or all UTC, and it
says which."""

from __future__ import annotations

import streamlit as st

from fintrader_app.shell import choose_part, plain

UTC = "UTC"


def pick_clock(market: str) -> str:
    """The time zone (an IANA name) in which a page writes its times: the `market`'s own, unless UTC
    is asked for.

    A market that lives in UTC leaves nothing to choose. Sessions keep their names, the market's
    days, on either clock.
    """
    place = market.rpartition("/")[2].replace("_", " ")
    if market == UTC:
        st.caption("Times are UTC, the market's own.", width="content")
        return UTC
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        value = choose_part({"market": f"{place} time", "utc": UTC}, "clock", "Clock")
        if value == "market":
            st.caption(f"Times are {plain(place, 40)}'s.", width="content")
            return market
        st.caption("Times are UTC; sessions are called by the market's day.", width="content")
    return UTC
