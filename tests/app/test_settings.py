"""A run's settings on its pages: what is not a default is marked, what differs stands side by side,
secrets nowhere."""

import yaml

from fintrader.config import dump_yaml
from fintrader.files import write_text
from fintrader.pipeline.config import RunConfig
from tests.app.conftest import healthy, said, table_with


def give(site, name, **changes):
    """Give a stored run these settings."""
    write_text(site / "runs" / name / "config.yaml", dump_yaml(RunConfig(name=name, **changes)))


def test_settings_that_are_no_defaults_stand_on_the_runs_page(open_page, site):
    give(site, "demo", seed=7, agent={"algo": "sac", "tau": 0.5})
    test = open_page(site, "runs", run="demo")
    healthy(test)
    shown = table_with(test, "Default").set_index("Setting")
    assert shown.loc["agent.tau"].tolist() == ["0.5", "0.01"]
    assert shown.loc["agent.algo"].tolist() == ["sac", "ppo"]
    assert set(shown.index) == {"name", "seed", "agent.algo", "agent.tau"}


def test_compare_shows_only_the_settings_that_differ(open_page, site):
    give(site, "demo", seed=0, env={"cost_bps": 5.0})
    old = yaml.safe_load(dump_yaml(RunConfig(name="second", seed=0))) | {
        "desk": {"api_key": "s3cr3t", "whim": 2}
    }
    write_text(site / "runs" / "second" / "config.yaml", yaml.safe_dump(old))
    test = open_page(site, "compare", runs="demo,second")
    healthy(test)
    shown = table_with(test, "Setting").set_index("Setting")
    assert shown.loc["env.cost_bps"].tolist() == ["● 5", "20"]
    assert shown.loc["desk.whim"].tolist() == ["–", "? 2"]
    assert shown.loc["desk.api_key"].tolist() == ["–", "? (hidden)"]
    assert set(shown.index) == {"env.cost_bps", "desk.whim", "desk.api_key"}
    give(site, "second", seed=0, env={"cost_bps": 5.0})
    assert "These runs have the same settings" in said(
        open_page(site, "compare", runs="demo,second")
    )
    write_text(site / "runs" / "second" / "config.yaml", "a: [")
    test = open_page(site, "compare", runs="demo,second")
    healthy(test)
    assert "not valid YAML" in said(test).replace("\\", "")
