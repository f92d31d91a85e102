"""Settings, verdicts, readers and the commands that look at bars load no torch, settings no pandas
either: help and refusals take no second."""

import subprocess
import sys

from tests import ROOT
from tests.bars.tables import minute_table, write_csv

SETTINGS = [
    "fintrader.bars.sources.layout",
    "fintrader.bars.sources.vendor_settings",
    "fintrader.backtesting.limits",
    "fintrader.backtesting.settings",
    "fintrader.deploy.settings",
    "fintrader.envs.settings",
    "fintrader.market.data_config",
    "fintrader.market.settings",
    "fintrader.pipeline.config",
    "fintrader.tournament.launchers.ray.settings",
]


def find_modules(package):
    """Every module below a package of fintrader."""
    paths = sorted((ROOT / "fintrader" / package).rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return [name.removesuffix(".__init__") for name in names]


def import_all(package):
    return f"import {', '.join(find_modules(package))}"


AGENTS = (
    "from fintrader.agents import PPO, SAC, Budget, NetworkSettings\n"
    "PPO(network=NetworkSettings(hidden=(8,))), SAC(), Budget(env_steps=1)"
)
INIT_OF_A_MISSING_FILE = """
from fintrader.cli import main
try:
    main(["init", "absent.csv"])
except SystemExit as done:
    assert done.code == 2, done.code
"""
STEPS = [
    ("import fintrader", ("torch", "pandas", "fintrader.config")),
    (
        f"import {', '.join(SETTINGS)}\n{AGENTS}",
        ("torch", "numba", "pandas", "pyarrow", "scipy.stats"),
    ),
    (INIT_OF_A_MISSING_FILE, ("torch", "numba", "scipy.stats")),
    (import_all("verdict"), ("torch", "numba")),
    (import_all("bars"), ("torch",)),
    (import_all("results"), ("torch",)),
    ("import fintrader.deploy.status", ("torch",)),
    ("import fintrader.cli.judging, fintrader.report.judged", ("torch",)),
]


COMMANDS = """
import fintrader.results.catalogue
from fintrader.cli import main
for command in sys.argv[1:]:
    status = 0
    try:
        main(command.split())
    except SystemExit as done:
        status = done.code or 0
    print()
    print(command, status, sorted({"torch", "fintrader.market.tensors", "empyrical"} & set(sys.modules)))
fintrader.metrics.sharpe([0.01, 0.02])
assert "empyrical" in sys.modules
"""


def test_imports_and_commands_load_none_of_those(tmp_path):
    """One process takes all steps, and then the commands that look at bars or refuse: the modules
    of each step are loaded when the next begins."""
    program = ["import sys"]
    for step, heavy in STEPS:
        program.append(step)
        program.append(f"loaded = [name for name in {heavy} if name in sys.modules]")
        program.append(f"assert not loaded, (loaded, {step[:60]!r})")
    path = write_csv(tmp_path, minute_table(2, 5))
    windows = "windows: {fractions: [0.4, 0.3, 0.3], embargo_sessions: 0}"
    text = f"data:\n  path: {path}\n  {windows}\ncache: {tmp_path / 'cache'}\n"
    (tmp_path / "own.yaml").write_text(text + "env: {num_envs: 3}\n")
    whole = [
        "--help",
        "run --help",
        "data quality --help",
        f"init {path} --calendar XNAS --out mine.yaml",
    ]
    whole += [f"data {words} own.yaml" for words in ("quality", "build --dry-run", "build")]
    whole += ["data build --prune own.yaml", "data compare own.yaml own.yaml"]
    refused = ["run absent.yaml", "status absent", "run quickstart --env.cost-bps many"]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join([*program, COMMANDS]), *whole, *refused],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for command in whole:
        assert f"{command} 0 []" in lines
    for command in refused:
        assert f"{command} 2 []" in lines
    assert (tmp_path / "mine.yaml").is_file()


LITTLE = """
import sys, fintrader
fintrader.TradingEnv, fintrader.train
assert "torch" in sys.modules
loaded = {"pandas", "rich", "scipy", "numba", "pyarrow"} & set(sys.modules)
assert not loaded, loaded
"""
POD = """
import pathlib
from tests.engines.races import first_spec, train_pod

train_pod(pathlib.Path(sys.argv[1]), first_spec())
loaded = {"torch._dynamo", "sympy"} & set(sys.modules)
assert not loaded, loaded
"""


def test_the_door_loads_little_beyond_torch_and_a_pod_no_compiler_of_torch(tmp_path):
    subprocess.run([sys.executable, "-c", LITTLE + POD, tmp_path], cwd=ROOT, check=True)
