"""The leaderboard as a table."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st


def board_table(board: pd.DataFrame, key: str, *, short: bool = False) -> None:
    """The leaderboard's rows, its searched settings as columns."""
    if board.empty:
        st.info("No pod has finished yet.", icon=":material/hourglass_empty:")
        return
    columns = ["rank", "pod", "score", "algo", "origin", "parent", "generation", "env_steps", "seconds"]
    frame = board[columns[:6] if short else columns].copy()
    hyper = pd.DataFrame([row if isinstance(row, dict) else {} for row in board["hyper"]], index=board.index)
    config = {
        "rank": st.column_config.NumberColumn("#", width=50),
        "pod": st.column_config.TextColumn("Pod", pinned=True),
        "score": st.column_config.NumberColumn("Score", format="%.3f"),
        "env_steps": st.column_config.NumberColumn("Env-steps", format="localized"),
        "seconds": st.column_config.NumberColumn("Seconds", format="%.1f"),
        "algo": "Algorithm",
        "origin": "Origin",
        "parent": "Parent",
        "generation": st.column_config.NumberColumn("Gen."),
    }
    for name in [] if short else hyper.columns[:6]:
        frame[str(name)] = hyper[name]
    height: Any = 38 + 35 * min(len(frame), 8) if short else "auto"
    st.dataframe(frame, hide_index=True, width="stretch", height=height, key=key, column_config=config, placeholder="–")
