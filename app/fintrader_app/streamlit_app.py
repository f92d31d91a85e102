"""The app's pages: the server of `served.py` runs this file for requests that pass its guard."""

from pathlib import Path

import streamlit as st

from fintrader_app.guard import Guard
from fintrader_app.shell import ICON, PAGES

st.set_page_config(page_title="fintrader", page_icon=ICON, layout="wide")
# A browser's request has headers; a plain `streamlit run` of this file installs no guard.
if st.context.headers and not Guard.is_installed:
    st.error("This server has no guard, so it shows no pages. Start the app with `fintrader app`.")
    st.stop()
st.html(Path(__file__).with_name("style.css"))
first, *others = PAGES
home = st.Page(
    f"views/{first.file}", title=first.title, icon=first.icon, url_path="home", default=True
)
# The default page answers at "/" only, whatever its path: its own name must lead there too.
alias = st.Page(
    f"views/{first.file}",
    title=first.title,
    icon=first.icon,
    url_path=first.path,
    visibility="hidden",
)
rest = [
    st.Page(f"views/{page.file}", title=page.title, icon=page.icon, url_path=page.path)
    for page in others
]
st.navigation([home, *rest, alias], position="top").run()
