import ast
from pathlib import Path

import pytest
import torch
import yaml

import fintrader
from fintrader import EnvSettings, TradingEnv, agents
from fintrader.backtesting import simulate
from fintrader.config import validate
from fintrader.errors import (
    BacktestError,
    ConfigError,
    DataError,
    FintraderError,
    MarketError,
    RunError,
)
from fintrader.market.build import build_market
from fintrader.market.settings import DataSettings
from fintrader.results.formatting import choose_opening, format_title
from fintrader.verdict.looks import HOME, Ledger
from tests.engines.runs import TINY
from tests.factories import make_market

NAMES = {
    *("load_market", "MarketTensors", "TradingEnv", "EnvSettings", "train"),
    *("run", "run_tournament", "backtest", "judge", "open_run", "load_policy"),
    *("save_policy", "walk_forward", "lookahead"),
}
SMALL = {
    "source": {"kind": "synthetic", "num_symbols": 2, "num_sessions": 6},
    "windows": {"embargo_sessions": 0},
}
TINY_PPO = agents.PPO(num_steps=8)


@pytest.fixture(scope="module")
def market():
    return make_market(num_bars=360, num_assets=3, gaps=False)


@pytest.fixture(scope="module")
def tests(market):
    return fintrader.backtest(equal, market.split().test, name="equal")


def equal(obs):
    return torch.full((len(obs), 3), 1 / 3)


def test_every_backtest_of_held_out_bars_is_a_look(market, tmp_path, monkeypatch):
    monkeypatch.setenv(HOME, str(tmp_path))

    def look(share):
        return fintrader.backtest(lambda obs: equal(obs) * share, market.split().test)

    assert [look(share).look for share in (1.0, 0.5, 1.0)] == [1, 2, 1]
    assert look(0.5).tables.context.look == 2
    assert [line.look.kind for line in Ledger().looks()] == ["policy"] * 4
    assert fintrader.backtest(equal, market.split().train).look is None
    assert len(Ledger().looks()) == 4


def test_the_door_has_these_names_and_no_other():
    assert set(fintrader.__all__) == NAMES
    for name in NAMES:
        assert getattr(fintrader, name).__name__ == name
        assert name in dir(fintrader)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fintrader.nothing


def test_an_editor_sees_the_same_names():
    tree = ast.parse(Path(fintrader.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if node.module != "fintrader"
    }
    assert seen == {name: f"fintrader.{home}" for name, home in fintrader._HOMES.items()}


def test_backtests_are_a_mapping_that_prints_the_papers_table(tests, market):
    assert list(tests) == ["equal", "buy_and_hold", "equal_weight", "benchmark"]
    lines = str(tests).splitlines()
    assert "net of 20 bps a trade" in lines[0]
    assert tests.look == 1
    assert lines.pop(1) == (
        "This is look 1 at this window (list: fintrader looks); the next look is tested at 0.76 %."
    )
    assert lines[1].split("  ")[0] == "Strategy"
    paper, (short, heading, *active) = lines[2 : 2 + len(tests)], lines[2 + len(tests) :]
    assert "below 63 sessions" in short
    assert heading.startswith("Against cash ")
    for name, line, beside in zip(tests, paper, active, strict=True):
        returned, share = (
            tests[name].metrics[key] for key in ("cumulative_return", "invested_share")
        )
        assert line.startswith(format_title(name))
        assert f"{returned:.2%}".replace("%", " %") in line
        assert beside.startswith(format_title(name))
        assert share is None or f"{share:.2%}".replace("%", " %") in beside
    assert max(map(len, lines)) <= 100
    html = tests._repr_html_()
    assert all(format_title(name) in html for name in tests)
    again = simulate(equal, market.split().test, EnvSettings(), name="equal")
    assert (again.equity == tests["equal"].equity).all()
    with pytest.raises(KeyError, match="there are equal, buy_and_hold"):
        tests["nothing"]


def test_backtests_draw_and_list_everything(tests):
    assert [trace.name for trace in tests.plot().data] == [
        "Equal",
        "Buy and hold",
        "Equal weight",
        "Index",
    ]
    assert tests.plot().data[0].y[-1] == pytest.approx(tests["equal"].equity[-1])
    assert set(tests.trades["strategy"]) == {"equal", "buy_and_hold", "equal_weight"}
    assert len(tests.trades) == sum(len(result.trades) for result in tests.values())
    assert tests.metrics.loc["equal", "sharpe"] == tests["equal"].metrics["sharpe"]


def test_the_report_is_the_page_with_the_verdict(tests, tmp_path):
    path = tests.report(tmp_path / "deep" / "x.html", trials=8)
    text = path.read_text()
    told = choose_opening(tests.judge(trials=8))
    assert told.headline == "Too short to tell"
    assert 0 < text.index(told.headline) < text.index(told.why)
    assert "8 trials" in text
    assert text == tests.report(str(tmp_path / "y.html"), trials=8).read_text()


def test_honesty_says_the_verdict_first_and_counts_the_trials(tests):
    many = tests.judge(trials=800)
    assert repr(many).splitlines()[0] == many.text
    assert many.selection.sentence == "Chosen from 800 trials."
    assert "Trials this result was selected from" in repr(many)
    assert many.evidence == tests.judge(trials=1).evidence
    assert "unknown number of trials" in tests.judge().selection.sentence
    for wrong in (0, -3, 1.5, True, "8"):
        with pytest.raises(BacktestError, match="at least 1"):
            tests.judge(trials=wrong)


def _learner(market):
    return agents.make_agent(TINY_PPO, TradingEnv(market, num_envs=2).layout)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda m: fintrader.backtest(m, equal),
            r"the policy first; it is backtest\(policy, market\) and .*: swap",
        ),
        (lambda m: fintrader.backtest(equal, m.split()), r"market\.split\(\)\.test"),
        (lambda m: fintrader.backtest(equal, TradingEnv(m, num_envs=1)), "pass env.market"),
        (lambda m: fintrader.backtest(equal, "quickstart"), "must be MarketTensors"),
        (lambda m: fintrader.backtest("policy.safetensors", m), "fintrader.load_policy"),
        (lambda m: fintrader.backtest(None, m), "a policy is a callable from observations"),
        (
            lambda m: fintrader.backtest(_learner(m), m),
            "PPOAgent is no policy, but has one; pass its .policy",
        ),
        (lambda m: fintrader.backtest(equal, m, {"cost_bps": 5}), "settings must be EnvSettings"),
        (lambda m: fintrader.backtest(equal, m, name="cash"), "choose another name"),
        (
            lambda m: fintrader.backtest(lambda obs: torch.zeros(1, 7), m),
            r"gave \(1, 7\) for 3 assets",
        ),
        (
            lambda m: fintrader.backtest(torch.nn.Linear(5, 3), m),
            "fails on an observation of shape",
        ),
        (
            lambda m: fintrader.backtest(lambda obs: torch.full((1, 3), torch.nan), m),
            "NaN or infinity",
        ),
        (
            lambda m: fintrader.backtest(_learner(make_market(60, 5)).policy, m),
            "reads 26 columns and trades 5 assets",
        ),
        (
            lambda m: fintrader.backtest(_learner(make_market(60, 3, 4)).policy, m),
            "reads 24 columns, and this market shows 18 columns of 3 assets",
        ),
    ],
)
def test_a_backtest_that_makes_no_sense_is_one_clear_error(call, message, market):
    with pytest.raises(BacktestError, match=message) as raised:
        call(market)
    assert "\n" not in str(raised.value)


def test_an_agents_settings_are_enough_to_train_and_to_be_judged(market, tmp_path):
    env = TradingEnv(market.split().train, num_envs=4)
    result = fintrader.train(TINY_PPO, env, env_steps=64, seed=3)
    assert result.env_steps >= 64
    tests = fintrader.backtest(result.policy, market.split().test, env.settings)
    assert "Policy" in str(tests)
    own = agents.make_agent(TINY_PPO, env.layout, seed=3)
    again = fintrader.train(own, TradingEnv(market.split().train, num_envs=4), env_steps=64)
    obs = env.reset(seed=0)[0]
    assert torch.equal(again.policy(obs), result.policy(obs))
    other = fintrader.train(
        TINY_PPO, TradingEnv(market.split().train, num_envs=4), env_steps=64, seed=4
    )
    assert not torch.equal(other.policy(obs), result.policy(obs))


def test_a_training_in_a_folder_goes_on_there(market, tmp_path):
    env = TradingEnv(market.split().train, num_envs=4)
    first = fintrader.train(TINY_PPO, env, env_steps=64, folder=str(tmp_path / "training"))
    longer = fintrader.train(TINY_PPO, env, env_steps=128, folder=tmp_path / "training")
    assert longer.updates == 2 * first.updates


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: fintrader.train(TINY_PPO, m, env_steps=1), "in an environment, not in a market"),
        (
            lambda m: fintrader.train(TINY_PPO, m.split(), env_steps=1),
            r"market\.split\(\)\.train, num_envs=1024",
        ),
        (
            lambda m: fintrader.train(TradingEnv(m), TINY_PPO, env_steps=1),
            "the first argument is the agent",
        ),
        (lambda m: fintrader.train("ppo", "env", env_steps=1), "is no vector environment"),
        (lambda m: fintrader.train("poo", TradingEnv(m), env_steps=1), "did you mean 'ppo'"),
        (lambda m: fintrader.train("dqn", TradingEnv(m), env_steps=1), "known: a2c, apg"),
        (
            lambda m: fintrader.train("ppo", TradingEnv(m), total_timesteps=1),
            "did you mean 'env_steps'",
        ),
        (lambda m: fintrader.train("ppo", TradingEnv(m), 1), r"it is train\(agent, env, \*"),
        (lambda m: fintrader.backtest(equal, m, setting=1), "did you mean 'settings'"),
        (
            lambda m: fintrader.train(EnvSettings(), TradingEnv(m), env_steps=1),
            "no agent has settings of type",
        ),
        (
            lambda m: fintrader.train(TINY_PPO, TradingEnv(m)),
            "exactly one of env_steps and seconds",
        ),
        (lambda m: fintrader.train(TINY_PPO, TradingEnv(m), env_steps=0), "env_steps"),
    ],
)
def test_a_training_that_makes_no_sense_is_one_clear_error(call, message, market):
    with pytest.raises(ConfigError, match=message):
        call(market)


def test_the_name_of_an_algorithm_is_its_default_agent(market):
    weights = [
        fintrader.train(
            agent, TradingEnv(market.split().train, num_envs=4), env_steps=64
        ).policy.state_dict()
        for agent in ("ppo", "PPO", agents.PPO, agents.PPO())
    ]
    for others in weights[1:]:
        assert all(torch.equal(others[name], value) for name, value in weights[0].items())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("load_markets", "did you mean 'load_market'"),
        ("Env", "did you mean 'TradingEnv'"),
        ("PPO", "it is fintrader.agents.PPO"),
    ],
)
def test_a_misspelt_name_of_the_door_is_answered(name, hint):
    with pytest.raises(AttributeError, match=hint):
        getattr(fintrader, name)
    with pytest.raises(AttributeError, match="did you mean 'PPO'"):
        _ = agents.PP0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, env: m.window("2020-01-02", "2020-01-05"), "bars, which are counted from 0"),
        (lambda m, env: m.to("gpu"), "use 'cpu' or 'cuda'"),
        (lambda m, env: TradingEnv(m.to_pandas()), "fintrader.load_market makes one"),
        (lambda m, env: TradingEnv(m.split()), "pass one window"),
        (lambda m, env: TradingEnv("quickstart"), r"fintrader.load_market\(CONFIG\)"),
        (lambda m, env: env.reset(1), r"it is TradingEnv.reset\(\*, seed=None"),
        (lambda m, env: env.render(), r"market.plot\(\)"),
        (lambda m, env: EnvSettings({"cost_bps": 5}), "settings are given by name"),
        (lambda m, env: agents.PPO("MlpPolicy", env), "settings are given by name"),
        (lambda m, env: fintrader.train("ppo", env, env_steps=64, seed="a"), "a whole number"),
        (lambda m, env: fintrader.train("ppo", env, env_steps="many"), "a whole number"),
        (lambda m, env: fintrader.backtest(equal, m, cost_bps=5), "is a field of EnvSettings"),
        (lambda m, env: fintrader.load_market(), "no market can be made of nothing"),
        (lambda m, env: fintrader.load_market("quickstrat"), "did you mean 'quickstart'"),
        (lambda m, env: fintrader.load_market("AAPL"), "`fintrader init`"),
        (lambda m, env: fintrader.load_market(m.close), "no market can be made of Tensor"),
        (lambda m, env: fintrader.load_market("quickstart", split=0.8), "did you mean 'windows'"),
        (lambda m, env: fintrader.judge(), r"it is judge\(returns, "),
        (lambda m, env: fintrader.open_run(), r"it is open_run\(where\)"),
        (lambda m, env: fintrader.load_policy(), r"it is load_policy\(path, "),
    ],
)
def test_a_call_that_is_guessed_is_answered_in_one_sentence(call, message, market):
    with pytest.raises((FintraderError, AttributeError), match=message):
        call(market, TradingEnv(market, num_envs=2))


def test_calls_that_are_guessed_work(market, tmp_path):
    assert market.split()["test"].num_bars == market.split().test.num_bars
    source = SMALL["source"] | {"num_sessions": 20}
    cut = fintrader.load_market(
        source=source, windows=[0.5, 0.25, 0.25], features="return_5", cache=tmp_path
    )
    assert cut.windows is not None
    assert cut.feature_names[0] == "return_5"
    assert fintrader.train("ppo", TradingEnv(market, num_envs=2), env_steps=16.0).env_steps == 16


def test_a_market_is_made_of_keywords_settings_or_a_file(tmp_path):
    market = fintrader.load_market(**SMALL, cache=tmp_path)
    assert (market.num_assets, market.bar_minutes) == (2, 1)
    settings = validate(DataSettings, SMALL, "test")
    path = build_market(settings, cache=tmp_path)
    data = tmp_path / "data.yaml"
    run = tmp_path / "run.yaml"
    data.write_text(yaml.safe_dump(SMALL))
    run.write_text(yaml.safe_dump({"data": SMALL}))
    for what in (path, str(path), settings, data, run):
        assert fintrader.load_market(what, cache=tmp_path).content_hash() == market.content_hash()
    longer = fintrader.load_market(run, cache=tmp_path, bar_minutes=30, source={"num_symbols": 3})
    assert (longer.num_assets, longer.bar_minutes) == (3, 30)


@pytest.mark.parametrize(
    ("what", "settings", "error", "message"),
    [
        (None, {}, ConfigError, "of nothing: give a configuration's name or path"),
        (3, {}, ConfigError, "no market can be made of int"),
        ("nowhere.yaml", {}, ConfigError, "nowhere.yaml"),
        ("nowhere.safetensors", {}, MarketError, "does not exist"),
        (
            "nowhere.safetensors",
            {"bar_minutes": 5},
            ConfigError,
            "is built already, so bar_minutes cannot be set",
        ),
        (SMALL, {"cache": "s3://bucket/tens"}, DataError, r"cache: s3:/+bucket/tens is a URL"),
        (None, {"windos": 1}, ConfigError, "did you mean 'windows'"),
        (SMALL, {"timezone": "UTC"}, ConfigError, "in a configuration, set them in `source`"),
    ],
)
def test_what_is_no_market_is_said(what, settings, error, message):
    with pytest.raises(error, match=message):
        fintrader.load_market(what, **settings)


@pytest.fixture(scope="module")
def values(tmp_path_factory):
    home = tmp_path_factory.mktemp("door")
    small = {"tournament": {**TINY["tournament"], "pods": 2, "ensemble_size": 1}}
    return {
        **TINY,
        **small,
        "name": "tiny",
        "runs_dir": str(home / "runs"),
        "cache": str(home / "tensors"),
    }


@pytest.mark.slow
def test_a_run_is_made_gone_on_with_and_opened(values):
    raced = fintrader.run_tournament(values, env={"cost_bps": 3.0})
    assert set(raced.leaderboard["pod"]) == {"p0000", "p0001", "benchmark"}
    assert not raced.backtests
    run = fintrader.run(values, env={"cost_bps": 3.0})
    assert run.folder.root == raced.folder.root
    assert run.config["env"]["cost_bps"] == 3.0
    assert "Ensemble" in str(run)
    opened = fintrader.open_run(str(run.folder.root))
    assert opened.leaderboard.equals(run.leaderboard)
    test = fintrader.load_market(values["data"], cache=values["cache"]).split().test
    tests = fintrader.backtest(
        opened.policy(), test, EnvSettings(**opened.config["env"]), name="ensemble"
    )
    assert tests["ensemble"].metrics["sharpe"] == pytest.approx(
        opened.backtest().metrics["ensemble"]["sharpe"]
    )
    with pytest.raises(RunError, match="made with other settings"):
        fintrader.run(values)
    with pytest.raises(RunError, match="runs below it: tiny"):
        fintrader.open_run(run.folder.root.parent)


def test_what_is_no_run_is_said(tmp_path, values):
    for where in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(
            RunError, match=r"there is no run here .* fintrader.run\(CONFIG\) makes one"
        ):
            fintrader.open_run(where)
    with pytest.raises(ConfigError, match="a run needs a configuration"):
        fintrader.run(3)
    with pytest.raises(ConfigError, match="did you mean 'cost_bps'"):
        fintrader.run_tournament(values, env={"cost_bp": 3})


def test_overrides_change_one_setting_and_another_kind_stands_alone(values):
    from fintrader.pipeline.config import configure

    config = configure(
        values, {"tournament": {"pods": 9}, "agent": {"algo": "sac", "batch_size": 32}}
    )
    assert (config.tournament.pods, config.tournament.workers) == (9, 1)
    assert config.agent == agents.SAC(batch_size=32)
    again = configure(config, {"agent": agents.PPO(), "seed": 5})
    assert again.agent == agents.PPO()
    assert (again.seed, again.tournament.pods) == (5, 9)
    assert configure(config, {}) is config
