from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fintrader.config import models_in, validate
from fintrader.pipeline import RunConfig
from fintrader_app import forms
from tests.app.conftest import Open, healthy, said


def test_defaults_are_valid_for_every_model_of_a_run() -> None:
    def walk(model: type[Any]) -> None:
        for field in model.model_fields.values():
            for below in models_in(field.annotation):
                if not any(inner.is_required() for inner in below.model_fields.values()):
                    try:
                        expected: Any = below()
                    except ValueError:  # a model whose defaults need a companion
                        continue
                    assert validate(below, forms.defaults(forms.schema_of(below)), "defaults") == expected
                walk(below)

    walk(RunConfig)


def widgets(test: Any) -> dict[str, Any]:
    kinds = ("text_input", "number_input", "selectbox", "toggle")
    return {
        str(one.key): one for kind in kinds for one in test.get(kind) if one.key and str(one.key).startswith("new:")
    }


@pytest.mark.parametrize("section", ["run", "data", "env", "agent", "tournament", "backtest"])
def test_every_field_has_a_widget(open_page: Open, tmp_path: Path, section: str) -> None:
    test = open_page(tmp_path, "new_run", section=section)
    healthy(test)
    assert not test.error, said(test)
    keys = " ".join(widgets(test))
    if section == "run":
        assert ".name" in keys
        return
    model = models_in(RunConfig.model_fields[section].annotation)[0]
    for name in model.model_fields:
        assert f"{name}" in keys, name


def test_an_untouched_form_changes_nothing(open_page: Open, tmp_path: Path) -> None:
    test = open_page(tmp_path, "new_run", section="run")
    before = yaml.safe_dump(test.session_state["new_draft"])
    for section in ("env", "agent", "tournament", "data", "backtest", "run"):
        test.query_params["section"] = section
        test.run()
        assert not test.error, (section, said(test))
    assert yaml.safe_dump(test.session_state["new_draft"]) == before


def test_changes_reach_the_yaml_and_the_models(open_page: Open, tmp_path: Path) -> None:
    test = open_page(tmp_path, "new_run", section="env")
    cost = next(one for key, one in widgets(test).items() if key.endswith(".cost_bps"))
    cost.set_value(3.5).run()
    test.query_params["section"] = "yaml"
    test.run()
    shown = yaml.safe_load(test.code[0].value)
    assert shown["env"]["cost_bps"] == 3.5
    assert validate(RunConfig, shown, "shown").env.cost_bps == 3.5


def test_a_mistake_is_named_and_cannot_be_started(open_page: Open, tmp_path: Path) -> None:
    test = open_page(tmp_path, "new_run", section="run")
    name = next(one for key, one in widgets(test).items() if key.endswith(".name"))
    name.set_value("../evil").run()
    assert "name" in said(test)
    assert test.error
    start = next(button for button in test.button if button.label == "Start")
    assert start.disabled


def test_runs_made_here_get_an_unused_name(open_page: Open, site: Path) -> None:
    (site / "runs" / "quickstart").mkdir()
    test = open_page(site, "new_run", section="run")
    assert test.session_state["new_draft"]["name"] == "quickstart-2"
