"""One script a page; `streamlit_app.py` lists them."""
