"""The size, names and words of the tree may only improve; `tools/house.py` prints the figures."""

from tests import ROOT
from tools import house

AT_MOST = {
    "tokens": 598_700,
    "code_lines_over_100_columns_percent": 0,
    "dict_str_any": 198,
    "tuple_assignments": 12,
    "walruses": 18,
    "fmt_skip": 0,
    "filler_verbs_percent": 2.0,
    "docstrings_opening_with_what_whether_how_of_percent": 1.5,
    "per_1000_docstring_words: what": 2.2,
    "per_1000_message_words: what": 2.5,
    "kernels_without_a_comment": 0,
    "functions_with_more_than_8_parameters": 3,
    "functions_of_complexity_21_or_more": 2,
    "class_names_used_twice": 0,
    "file_names_in_several_folders": 14,
}
"""Figures of `fintrader/` and `app/`. Lower a number when the tree is better; never raise one."""


def test_the_house_gets_no_worse(monkeypatch):
    monkeypatch.chdir(ROOT)
    figures = house.measure(["fintrader", "app"])
    assert {name: figures[name] for name, most in AT_MOST.items() if figures[name] > most} == {}
    assert figures["verb_first_percent"] >= 69.0


def test_ppo_is_read_in_seven_files():
    """From `act` to the gradient step; more means that an algorithm no longer reads like one."""
    figures = house.walk_ppo()
    assert figures["ppo_walk_files"] == 7
    assert 1000 < figures["ppo_walk_lines"] <= 1500


def test_a_configuration_has_at_most_so_many_settings():
    """Distinct dotted names of all members of its unions."""
    assert 150 < house.count_settings()["settings"] <= 217
