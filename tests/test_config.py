from functools import partial
from pathlib import Path

import pytest
from pydantic import Field

from fintrader.agents import PPO
from fintrader.config import Settings, dump_yaml, load_object, read_yaml, validate
from fintrader.envs import EnvSettings
from fintrader.errors import ConfigError


class Inner(Settings):
    num_envs: int = Field(4, gt=0)
    kind: str = "a"


class Outer(Settings):
    seed: int
    env: Inner = Inner()
    files: tuple[Path, ...] = ()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"seed": 1, "env": {"num_env": 2}},
            "env.num_env: unknown setting; did you mean 'num_envs'?",
        ),
        ({"seed": "x"}, "seed: expected a whole number, got 'x'"),
        (
            {"seed": 1, "env": {"num_envs": 0}},
            "env.num_envs: input should be greater than 0, got 0",
        ),
        ({}, "seed: a value is required"),
    ],
)
def test_a_mistake_names_its_field_in_one_line(values, said):
    makers = {
        "test.yaml": partial(validate, Outer, values, "test.yaml"),
        "Outer": partial(Outer, **values),
    }
    for where, make in makers.items():
        with pytest.raises(ConfigError) as caught:
            make()
        assert str(caught.value).startswith(f"{where}: {said}")
        assert "\n" not in str(caught.value)


def test_the_settings_of_the_packages_say_it_in_the_same_words():
    with pytest.raises(
        ConfigError, match=r"^PPO: pipeline needs an agent with a replay buffer; choose ddpg"
    ):
        PPO(pipeline=True)
    with pytest.raises(
        ConfigError, match=r"^EnvSettings: cost_bps: input should be greater than or equal to 0"
    ):
        EnvSettings(cost_bps=-1)
    with pytest.raises(
        ConfigError,
        match=r"^PPO: network\.hidden\.1: input should be greater than or equal to 1, got -1",
    ):
        PPO(network={"hidden": [64, -1]})


@pytest.mark.parametrize(
    ("model", "misspelt", "hint"),
    [
        (PPO, "lr", "did you mean 'learning_rate'?"),
        (PPO, "n_steps", "did you mean 'num_steps'?"),
        (PPO, "n_epochs", "did you mean 'update_epochs'?"),
        (PPO, "clip_range", "did you mean 'clip_coef'?"),
        (PPO, "hidden", "did you mean 'network.hidden'?"),
        (PPO, "seed", "it is an argument of TradingEnv and of train"),
        (EnvSettings, "costs_bps", "did you mean 'cost_bps'?"),
        (EnvSettings, "commission", "did you mean 'cost_bps'?"),
        (EnvSettings, "initial_cash", "did you mean 'initial_cash_usd'?"),
        (EnvSettings, "spread_bps", "did you mean 'half_spread_bps'?"),
    ],
)
def test_a_name_from_another_library_or_without_its_unit_is_understood(model, misspelt, hint):
    with pytest.raises(ConfigError) as caught:
        model(**{misspelt: 1})
    assert str(caught.value) == f"{model.__name__}: {misspelt}: unknown setting; {hint}"


def test_settings_print_what_differs_from_the_defaults():
    settings = EnvSettings(cost_bps=3, num_envs=256)
    assert repr(settings) == str(settings) == "EnvSettings(cost_bps=3.0)"


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_no_setting_is_endless(value):
    with pytest.raises(ConfigError, match=r"^PPO: learning_rate: input should be a finite number"):
        PPO(learning_rate=value)


def test_yaml_goes_there_and_back(tmp_path):
    settings = Outer(seed=7, env=Inner(num_envs=9), files=(Path("a.csv"), Path("ü.parquet")))
    path = tmp_path / "config.yaml"
    path.write_text(dump_yaml(settings))
    assert validate(Outer, read_yaml(path), "x") == settings


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "does not exist"),
        ("a: [1", "not valid YAML at line"),
        ("- 1\n- 2\n", "expected a configuration, of `name: value` lines"),
    ],
)
def test_a_bad_file_says_so(tmp_path, text, expected):
    path = tmp_path / "config.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=expected):
        read_yaml(path)


@pytest.mark.parametrize("content", [b"time,close\n2024-01-02,1\n", b"PAR1\xff\xfe", b"a: b: c"])
def test_bars_given_for_a_configuration_lead_to_init(tmp_path, content):
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"`fintrader init .*mine\.csv` writes a configuration"):
        read_yaml(path)
    same = tmp_path / "mine.yml"
    same.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_yaml(same)
    assert "fintrader init" not in str(error.value)


def test_objects_are_imported_by_reference_and_misses_are_typed():
    assert load_object("math:sqrt")(9.0) == 3.0
    for wrong in ("math", "math:nothing_there", "no_such_module_here:x", ":x", "a-b:c", "a:b.c"):
        with pytest.raises(ConfigError):
            load_object(wrong)


def test_a_union_is_named_as_it_is_written(tmp_path):
    from fintrader.pipeline.config import load_config

    for text, field in (
        ("env: {num_env: 3}", "env.num_env:"),
        ("env: {kind: gymnasium, num_env: 3}", "env.num_env:"),
        ("agent: {algo: sac, alfa: 3}", "agent.alfa:"),
        ("agent: {algo: sac, network: {hidden: [a]}}", "agent.network.hidden.0:"),
        ("agent: [{algo: sac, alpha: -1}]", "agent.0.alpha:"),
        (
            "agent: [{algo: ppo}, {algo: sac, alfa: 1}]",
            "agent.1.alfa: unknown setting; did you mean 'alpha'?",
        ),
        ("env: {half_spread_bps: {AAPL: x}}", "env.half_spread_bps.AAPL: expected a number"),
        ("agent: []", "agent:"),
        ("agent: {algo: nosuch}", "agent:"),
        ("cost_bps: 3", "cost_bps: unknown setting; did you mean 'env.cost_bps'?"),
    ):
        path = tmp_path / "c.yaml"
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_config(path)
        assert str(caught.value).startswith(f"{path}: {field}"), str(caught.value)


def test_one_of_several_agents_is_chosen_before_it_is_trained_alone(tmp_path):
    from fintrader.pipeline.config import load_config

    path = tmp_path / "c.yaml"
    path.write_text("agent: [{algo: ppo, gamma: 0.5}, {algo: sac}]")
    several = load_config(path)
    assert [agent.algo for agent in several.agents] == ["ppo", "sac"]
    with pytest.raises(ConfigError, match=r"^agent: ppo, sac race each other .* --agent\.algo"):
        _ = several.only_agent
    assert load_config(path, {"agent.algo": "td3"}).only_agent.algo == "td3"
