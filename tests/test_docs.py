"""The documentation: the site builds without a warning, every example in it runs, and nothing in it
has been forgotten.

Python blocks of a page share one namespace and run in a temporary folder that holds a small
`configs/quickstart.yaml` and its finished run. A line `<!-- needs: PACKAGE -->` above a block says
that it needs an optional package; such blocks are tests of their own, and skip where the package is
missing.
"""

import contextlib
import doctest
import importlib.util
import io
import re
import shutil
import sys
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from fintrader import TradingEnv, load_market, run
from fintrader.agents import SAC, Budget, make_agent, train
from fintrader.cli import main
from fintrader.cli.registry import COMMANDS
from fintrader.config import list_models, validate
from fintrader.deploy.settings import LiveSettings
from fintrader.envs import EnvSettings
from fintrader.pipeline.config import CHOICES, RunConfig
from tests import ROOT

DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.rglob("*.md"), *ROOT.glob("README.md")])
BLOCK = re.compile(
    r"(?:^<!-- needs: (?P<needs>[\w.]+) -->\n)?^```(?P<kind>\w+)\n(?P<code>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    code: str
    needs: str | None

    def run(self, namespace):
        """Execute it; tracebacks name the page and the line."""
        code = compile("\n" * self.line + self.code, str(self.page.relative_to(ROOT)), "exec")
        exec(code, namespace)


def blocks(page, kind):
    text = page.read_text()
    found = []
    for match in BLOCK.finditer(text):
        if match["kind"] == kind:
            line = text.count("\n", 0, match.start("code"))
            found.append(Block(page, line, match["code"], match["needs"]))
    return found


WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]
WITH_NEEDS = [block for page in PAGES for block in blocks(page, "python") if block.needs]


def label(page):
    return str(page.relative_to(ROOT))


def write_random_walks(path):
    """Write a long CSV of daily bars for three names whose prices are random walks."""
    days = pd.bdate_range("2023-01-02", "2025-12-31")
    tables = []
    for seed, symbol in enumerate(("AAA", "BBB", "CCC")):
        generator = np.random.default_rng(seed)
        close = 100 * np.exp(generator.normal(0.0, 0.01, len(days)).cumsum())
        prices = {"open": close, "high": close * 1.005, "low": close * 0.995, "close": close}
        volume = generator.integers(500_000, 1_500_000, len(days))
        rows = pd.DataFrame({"symbol": symbol, **prices, "volume": volume}).round(4)
        tables.append(rows.assign(date=days.strftime("%Y-%m-%d")))
    pd.concat(tables).to_csv(path, index=False)


@pytest.fixture(scope="session")
def small_world(tmp_path_factory):
    """A folder as a reader of the docs has it after the quickstart, only smaller."""
    world = tmp_path_factory.mktemp("docs")
    values = yaml.safe_load((ROOT / "configs" / "quickstart.yaml").read_text())
    values["data"]["source"] |= {"num_sessions": 25}
    values["env"] |= {"num_envs": 16, "episode_bars": 200, "decision_interval": 10}
    values["tournament"] |= {
        "pods": 2,
        "workers": 1,
        "budget": {"env_steps": 1000},
        "ensemble_size": 2,
    }
    values["backtest"] = {**values.get("backtest", {}), "null_model": False}
    (world / "configs").mkdir()
    (world / "configs" / "quickstart.yaml").write_text(yaml.safe_dump(values))
    write_random_walks(world / "my.csv")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(world)
        run("configs/quickstart.yaml")
    return world


@pytest.fixture
def reader(small_world, tmp_path, monkeypatch):
    """A namespace for one page's examples, in a copy of the small world."""
    world = tmp_path / "world"
    shutil.copytree(small_world, world)
    monkeypatch.chdir(world)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")  # Ray would write a token into the home folder
    return {"__name__": "__docs__"}


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_PYTHON, ids=label)
def test_every_python_block_runs(page, reader):
    for block in blocks(page, "python"):
        if block.needs is None:
            block.run(reader)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wanted", WITH_NEEDS, ids=lambda block: f"{label(block.page)}-{block.needs}"
)
def test_blocks_that_need_an_optional_package_run(wanted, reader):
    pytest.importorskip(
        wanted.needs or "", reason=f"{wanted.needs} is not installed, so its example was not run"
    )
    for block in blocks(wanted.page, "python"):
        if block == wanted:
            block.run(reader)
            return
        if block.needs is None:
            block.run(reader)


@pytest.mark.slow
def test_the_readme_shows_the_output_of_its_examples(tmp_path, monkeypatch, capsys):
    """Compare words: figures differ between processors. The table of `judge` is cut off."""
    pytest.importorskip("stable_baselines3", reason="stable-baselines3 is missing")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("FINTRADER_HOME", str(tmp_path / "home"))  # its looks are its own
    write_random_walks(tmp_path / "my.csv")
    days = pd.bdate_range("2022-01-03", periods=500, name="date")
    returns = 0.0006 + 0.008 * np.random.default_rng(4).standard_normal(500)
    pd.Series(returns, days, name="return").round(4).to_csv("returns.csv")
    readme = ROOT / "README.md"
    judged, backtested, borrowed = (words(block.code) for block in blocks(readme, "text"))
    for block in blocks(readme, "sh"):
        for line in re.findall(r"^fintrader judge returns.csv.*", block.code, re.M):
            main(line.split()[1:])
    assert words(capsys.readouterr().out)[: len(judged)] == judged
    namespace = {"__name__": "__docs__"}
    for block, shown in zip(blocks(readme, "python"), (backtested, borrowed), strict=True):
        block.run(namespace)
        assert words(capsys.readouterr().out) == shown


def words(text):
    """Return the parts of a text that hold no digit, without a result's sign and the mark of a cut."""
    left_out = ("ahead", "of", "behind", "…")
    return [w for w in text.split() if not any(map(str.isdigit, w)) and w not in left_out]


def test_the_verdict_page_shows_what_a_backtest_prints():
    assert any("print(tests)" in block.code for block in blocks(DOCS / "verdict.md", "pycon"))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "yaml")], ids=label)
def test_every_yaml_block_is_a_configuration(page):
    for block in blocks(page, "yaml"):
        validate(RunConfig, yaml.safe_load(block.code), f"{label(page)}, line {block.line}")


@cache
def flags_in_help(command):
    help_text = io.StringIO()
    with contextlib.redirect_stdout(help_text), contextlib.suppress(SystemExit):
        main([*command.split(), "--help-all"])
    flags = set(re.findall(r"--[a-z][a-z0-9.-]*", help_text.getvalue()))
    return flags | {"--help", "--help-all"}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "sh")], ids=label)
def test_every_command_exists(page):
    def options(model, prefix=""):
        for name, field in model.model_fields.items():
            yield f"--{prefix}{name.replace('_', '-')}"
            for below in list_models(field.annotation):
                yield from options(below, f"{prefix}{name.replace('_', '-')}.")

    settings = {
        *options(RunConfig),
        *options(LiveSettings),
        *options(CHOICES["launcher.kind"]["ray"], "launcher."),
        *(f"--{name}" for name in CHOICES),
    }
    for block in blocks(page, "sh"):
        for line in re.findall(r"^(?:\.venv/bin/)?fintrader (.*)$", block.code, re.M):
            words = line.split("#")[0].split()
            command = next((c for c in (" ".join(words[:2]), words[0]) if c in COMMANDS), None)
            assert command, f"{label(page)}: fintrader {line}"
            known = settings | flags_in_help(command)
            for word in words:
                if word.startswith("--"):
                    assert word.split("=")[0] in known, (
                        f"{label(page)}: {word} in `fintrader {line}`"
                    )
        for target in re.findall(r"^make (\w+)", block.code, re.M):
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M), (
                f"{label(page)}: make {target}"
            )
        for path in re.findall(r"\bconfigs/[\w/.-]+", block.code):
            assert (ROOT / path).exists(), f"{label(page)}: {path} does not exist"


def test_every_algorithm_source_of_bars_and_adapter_is_documented():
    overview = (DOCS / "algorithms" / "index.md").read_text()
    settings = (DOCS / "settings.md").read_text()
    for algo, model in CHOICES["agent.algo"].items():
        page = DOCS / "algorithms" / f"{algo}.md"
        assert page.is_file(), f"write docs/algorithms/{algo}.md and add it to mkdocs.yml"
        assert f"<!-- settings: {model.__module__}:{model.__name__} agent -->" in settings, (
            f"add {algo} to settings.md"
        )
        assert f"({algo}.md)" in overview
    for kind, model in CHOICES["data.source.kind"].items():
        assert f"<!-- settings: {model.__module__}:{model.__name__} data.source -->" in settings, (
            f"document {kind}"
        )
    text = (DOCS / "environment.md").read_text()
    for module in (ROOT / "fintrader" / "envs" / "adapters").glob("*.py"):
        if module.stem != "__init__":
            assert f"fintrader.envs.adapters.{module.stem}" in text, (
                f"document the adapter {module.stem}"
            )


@pytest.mark.slow
def test_every_training_metric_is_explained(small_world, monkeypatch):
    monkeypatch.chdir(small_world)
    market = load_market("configs/quickstart.yaml").split().train
    names = set()
    for model in CHOICES["agent.algo"].values():
        small = (
            {"num_steps": 4}
            if "num_steps" in model.model_fields
            else {"learning_starts": 8, "batch_size": 8}
        )
        env = TradingEnv(market, EnvSettings(num_envs=4, decision_interval=5), seed=1)
        agent = make_agent(model(**small), env.layout, seed=1)
        names |= set(train(agent, env, Budget(env_steps=240)).metrics)
    explained = re.findall(r"`([a-z_]+)`", (DOCS / "training.md").read_text())
    assert names <= set(explained), f"explain in docs/training.md: {sorted(names - set(explained))}"


def test_the_project_files_agree_with_the_project():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == version
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(form.read_text()), form.name
    for page in [*ROOT.glob("*.md"), *(ROOT / ".github").glob("*.md")]:
        for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", page.read_text()):
            target = page.parent / path if path else page
            assert target.exists(), f"{page.name}: {path} does not exist"
            if anchor:
                titles = re.findall(r"^#+ (.*)$", target.read_text(), re.M)
                assert anchor in {
                    re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles
                }, anchor


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=label)
def test_every_page_begins_with_what_it_is_for(page):
    title, purpose, *_ = page.read_text().split("\n\n")
    assert title.startswith("# ")
    assert purpose.startswith("For "), "say first, in a sentence, what a reader gets from this page"


def test_no_page_names_a_machine():
    here = [*ROOT.glob("*.md"), *(path for path in (ROOT / ".github").rglob("*") if path.is_file())]
    for page in [*here, *DOCS.rglob("*.md"), ROOT / "mkdocs.yml", *DOCS.rglob("*.py")]:
        found = re.search(r"/(home|work|root|Users)/\w+", page.read_text())
        assert found is None, f"{label(page)} names {found and found[0]}"


def test_tables_come_from_the_code(monkeypatch):
    """The generated tables name every setting, and the defaults are those of the model."""
    monkeypatch.syspath_prepend(DOCS)  # as mkdocs does
    spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "_hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    table = hooks.on_page_markdown("<!-- settings: fintrader.agents.settings:SAC agent -->")
    for name in SAC.model_fields:
        assert f"`agent.{name}" in table, name
    norm = "| `agent.network.layer_norm` | true or false | `true` |"
    assert norm in table, "the outer model's default, not the inner's"
    assert f"| `agent.batch_size` | integer, ≥ 1 | `{SAC().batch_size}` |" in table
    for mark in (
        "metrics",
        "commands",
        "faults",
        "injected",
        "cheats",
        "errors",
        "features",
        "series",
    ):
        assert hooks.on_page_markdown(f"<!-- {mark} -->").count("\n|") > 3, mark
    records = {"search": "search", "parts": "search", "communication": "communication"}
    for which in ("constants", "throughput", "stress", "paper", *records):
        record = records.get(which, "scaling")
        stored = (ROOT / "benchmarks" / "results" / f"{record}.json").exists()
        assert (hooks.on_page_markdown(f"<!-- scaling: {which} -->").count("\n|") >= 3) == stored, (
            which
        )
    for which in ("same", "otherwise"):
        stored = (ROOT / "benchmarks" / "results" / "cross_engine.json").exists()
        assert (hooks.on_page_markdown(f"<!-- engines: {which} -->").count("\n|") >= 3) == stored, (
            which
        )
    for which in ("size", "power", "at_it", "nulls", "chosen", "survivors"):
        assert hooks.on_page_markdown(f"<!-- calibration: {which} -->").count("\n|") > 3, which


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path, caplog):
    for package in ("material", "mkdocstrings", "latex2mathml"):
        pytest.importorskip(package, reason=f"{package} is missing: pip install '.[docs]'")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"))
    config.plugins.on_startup(command="build", dirty=False)
    build(config)  # strict: raises on any warning
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).with_suffix("")
        out = tmp_path / "site" / (name.parent if name.name == "index" else name) / "index.html"
        text = out.read_text()
        assert "arithmatex" not in text, f"{label(page)}: a formula was left as TeX"
        unmade = r"<!-- (picture|injected|cheats|settings|own|optimum|metrics|commands|faults|errors|features|series|scaling)"
        assert not re.search(unmade, text), f"{label(page)}: a table was not made"
        elsewhere = re.search(r'(?:src|href)="https?://[^"]*\.(?:js|css|woff2?)', text)
        assert not elsewhere, f"{label(page)} loads from elsewhere"


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "pycon")], ids=label)
def test_what_a_page_prints_is_what_is_printed(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    session = "".join(block.code for block in blocks(page, "pycon"))
    example = doctest.DocTestParser().get_doctest(session, {}, label(page), None, 0)
    said = []
    outcome = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE).run(
        example, out=said.append
    )
    assert outcome.failed == 0, "".join(said)
