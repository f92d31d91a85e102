"""`fintrader plan` against the run that it describes."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from fintrader.agents import A2C, APG, PPO, SAC, TD3, NetworkSettings
from fintrader.files import read_json
from fintrader.market.tensors import MarketTensors
from fintrader.pipeline import estimates
from fintrader.pipeline.config import load_config
from fintrader.runs import Manifest
from tests import ROOT
from tests.engines.runs import fintrader, write_config
from tests.pipeline.test_classic_run import write as write_classic

pytestmark = pytest.mark.usefixtures("in_this_process")


def plan(path, *words):
    """The facts of `fintrader plan`, by name."""
    done = fintrader("plan", str(path), *words)
    assert done.status == 0, done.err
    lines = re.sub(r"\n {8,}", " ", done.out).splitlines()
    return dict(re.split(r" {2,}", line.strip(), maxsplit=1) for line in lines)


def read_seconds(words):
    """Seconds of `About 1 min 5 s (...)`."""
    parts = re.findall(r"([\d.]+) (ms|s|min|h)\b", words.partition("(")[0])
    return sum(
        float(number) * {"ms": 1e-3, "s": 1, "min": 60, "h": 3600}[unit] for number, unit in parts
    )


def test_a_plan_starts_builds_and_downloads_nothing(tmp_path):
    found = plan(write_config(tmp_path))
    assert "would be built" in found["data"]
    assert "bars" not in found
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.yaml"]


def test_bars_memory_and_hours_are_those_of_the_run(tmp_path, blank_reports):
    path = write_config(tmp_path)
    assert fintrader("data", "build", str(path)).status == 0
    before = plan(path)
    assert "A guess" in before["time and memory"]
    assert fintrader("run", str(path)).status == 0
    manifest = Manifest.load(tmp_path / "runs" / "tiny" / "manifest.json").values
    market = MarketTensors.load(Path(manifest["market"]))
    assert before["bars"] == f"{market.num_bars:,} of {market.num_assets} symbols"
    assert before["pods"].startswith("3, each of ")
    assert before["pods"].endswith("in 1 slot")
    longer = ["--name", "longer", "--tournament.budget.env-steps", "2048"]
    after = plan(path, *longer)
    assert "Likely: scaled from the run tiny" in after["time and memory"]
    config = load_config(path)
    record = estimates.record_of("tiny", config.model_dump(mode="json"), manifest["stages"], None)
    size = Path(manifest["market"]).stat().st_size
    first = estimates.estimate(config, [replace(record, market_bytes=size)])
    guess = estimates.estimate(config, [])
    compiling = (1 + guess.at_once) * estimates.COMPILING_BYTES
    assert first.memory_bytes == pytest.approx(guess.memory_bytes - compiling, rel=0.001)
    assert f"about {first.memory_bytes / 2**30:.1f} GiB" in after["time and memory"]
    assert f"about {guess.memory_bytes / 2**30:.1f} GiB" in before["time and memory"]
    stages = {name: stage for name, stage in manifest["stages"].items() if name != "backtest"}
    for changes in ({"command": f"fintrader walkforward {path}"}, {"stages": stages}):
        Manifest(tmp_path / "runs" / "tiny" / "manifest.json", {**manifest}).update(**changes)
        assert "A guess" in plan(path)["time and memory"], changes


@pytest.mark.parametrize(
    ("peak", "agent"),
    [
        ("ppo_4096", PPO()),
        ("ppo_65536", PPO()),
        ("ppo_mlp_4096", PPO(network=NetworkSettings(kind="mlp"))),
        ("a2c_4096", A2C()),
        ("apg_1024", APG()),
        ("sac_1024", SAC(buffer_size=1 << 15)),
        ("td3_1024", TD3(buffer_size=1 << 15)),
    ],
)
def test_a_plan_guesses_the_memory_that_training_had_on_a_gpu(peak, agent, monkeypatch):
    """The market of benchmarks/gpu.py has 100 symbols and 4,096 bars."""
    monkeypatch.setattr(estimates, "_shape", lambda config: (4096, 100))
    config = load_config(ROOT / "configs" / "quickstart.yaml")
    assert estimates.estimate(config, []).gpu_bytes is None
    env = config.env.model_copy(update={"num_envs": int(peak.rpartition("_")[2])})
    tournament = config.tournament.model_copy(update={"devices": ("cuda:0",)})
    changes = {"agent": agent, "env": env, "tournament": tournament}
    found = estimates.estimate(config.model_copy(update=changes), [])
    measured = read_json(ROOT / "benchmarks" / "results" / "gpu.json")["training"][peak]
    assert found.gpu_bytes / 2**30 == pytest.approx(measured["memory_gib"], rel=0.3)
    assert f"{found.gpu_bytes / 2**30:.1f} GiB of its GPU" in found.describe()


def test_a_plan_says_how_many_slots_fit_where_memory_is_short(monkeypatch):
    config = load_config(ROOT / "configs" / "quickstart.yaml")
    monkeypatch.setattr(estimates, "count_usable_cores", lambda: 8)

    def plan_with(free, workers):
        monkeypatch.setattr(estimates, "measure_free_memory", lambda _: free)
        race = config.tournament.model_copy(
            update={"order": "arrival", "pods": 64, "workers": workers}
        )
        return estimates.estimate(config.model_copy(update={"tournament": race}), [])

    three, four = (plan_with(None, workers).memory_bytes for workers in (3, 4))
    assert plan_with(four, 4).shortage == ""
    assert plan_with(four - 1, 4).describe().count("for 3 slots (tournament.workers)") == 1
    assert "for 2 slots" in plan_with(three - 1, 4).shortage
    assert "for 0 slots" in plan_with(1, 4).shortage
    free = three + 17 * (four - three)
    assert "for 8 slots" in plan_with(free, 32).shortage, "no more than there are cores"


def test_a_guess_counts_the_updates_of_agents_that_replay():
    """20 pods of 100,000 steps, an update each of some milliseconds: hours, not minutes."""
    config = load_config(ROOT / "configs" / "hopper.yaml")
    few = config.agents[0].model_copy(update={"updates_per_step": 0.01})
    seconds = estimates.estimate(config, []).seconds
    assert 2_000 < seconds < 50_000
    assert seconds > 20 * estimates.estimate(config.model_copy(update={"agent": few}), []).seconds


@pytest.mark.parametrize(
    ("agent", "accounts", "steps", "pods", "seconds"),
    [(PPO(), 64, 60_000, 4, 31.0), (APG(num_steps=42), 32, 215_040, 2, 217.0)],
)
def test_a_guess_counts_decisions_of_few_accounts(agent, accounts, steps, pods, seconds):
    """Null models of two runs on two busy cores."""
    config = load_config(ROOT / "configs" / "quickstart.yaml")
    budget = config.tournament.budget.model_copy(update={"env_steps": steps})
    tournament = config.tournament.model_copy(update={"pods": pods, "budget": budget})
    env = config.env.model_copy(update={"num_envs": accounts})
    changes = {"agent": agent, "env": env, "tournament": tournament}
    found = estimates.estimate(config.model_copy(update=changes), [])
    assert seconds / 3 < found.null_seconds < seconds * 3


def test_lost_symbols_are_named_by_day(tmp_path):
    path = write_config(tmp_path)
    assert fintrader("data", "build", str(path)).status == 0
    [file] = (tmp_path / "tensors").glob("*/market.safetensors")
    market = MarketTensors.load(file)
    member = market.member.clone()
    sessions = market.session.unique()
    member[market.session >= sessions[5], 1] = False
    member[market.session >= sessions[7], 1] = True
    member[market.session >= sessions[9], 2] = False
    replace(market, member=member).save(file)
    days = {name: line for name, line in plan(path).items() if re.match(r"\d{4}-", name)}
    assert list(days.values()) == [
        f"3 symbols; lost: {market.symbols[1]}",
        "4 symbols; lost: none",
        f"3 symbols; lost: {market.symbols[2]}",
    ]


def test_costs_are_hours_times_prices(tmp_path):
    path = write_classic(tmp_path)
    path.write_text(path.read_text() + "backtest: {null_model: true}\n")
    found = plan(path, "--on-demand-usd", "3600", "--spot-usd", "360")
    seconds = read_seconds(found["time and memory"])
    costs = [float(cost.replace(",", "")) for cost in re.findall(r"\$([\d,.]+)", found["cost"])]
    assert costs == pytest.approx([seconds, seconds / 10], abs=1.0)
    assert plan(path)["cost"].startswith("needs a price: --on-demand-usd")
    assert "null model" not in found["time and memory"]
    assert "data" not in found
