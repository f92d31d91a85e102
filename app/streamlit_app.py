"""The app's entry: `fintrader app` runs this file with streamlit."""

from __future__ import annotations

import streamlit as st

from app.shell import ICON, PAGES, STYLE

st.set_page_config(page_title="fintrader", page_icon=ICON, layout="wide")
st.html(STYLE)
st.navigation(
    [
        st.Page(f"views/{page.file}", title=page.title, icon=page.icon, url_path=page.path, default=page is PAGES[0])
        for page in PAGES
    ],
    position="top",
).run()
