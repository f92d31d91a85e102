"""`reproducible: across_machines`: whatever the environment and the processor offer, the same code
paths."""

import json
import os
import subprocess
import sys

import pytest

from fintrader import cli, reproducible
from fintrader.errors import ConfigError
from fintrader.pipeline.config import RunConfig
from tests.engines.runs import TINY, fintrader, write_config

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64", reason="x86-64 Linux only"
)

ANOTHER = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4",
    "OPENBLAS_CORETYPE": "Prescott",
    "NUMBA_CPU_NAME": "x86-64-v2",
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-FMA",
    "OMP_NUM_THREADS": "2",
}
"""An environment in which every library takes other code than it would choose here."""
SEEN = """
import json, math, os, torch, numpy
from numba.core import config
from fintrader import reproducible
from fintrader.tournament.process import build_environment
reproducible.require("across_machines")
print(json.dumps({
    "own": {name: os.environ.get(name) for name in reproducible.VARIABLES},
    "of_workers": {name: build_environment().get(name) for name in reproducible.VARIABLES},
    "torch": torch.backends.cpu.get_cpu_capability(), "onednn": torch.backends.mkldnn.enabled,
    "threads": torch.get_num_threads(), "numba": config.CPU_NAME + config.CPU_FEATURES,
}))
"""


def run_python(*words, **variables):
    environment = {**os.environ, **variables}
    done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_variables_win_over_the_environment_and_leave_the_rest():
    made = reproducible.fix_environment(
        {**ANOTHER, "NPY_ENABLE_CPU_FEATURES": "AVX2", "HOME": "/h"}
    )
    assert made.items() >= reproducible.VARIABLES.items()
    assert "NPY_ENABLE_CPU_FEATURES" not in made, "numpy refuses both at once"
    assert made["HOME"] == "/h"


@pytest.mark.slow
def test_a_process_begun_with_them_takes_the_common_code_and_so_do_its_workers():
    seen = json.loads(run_python("-m", "fintrader.reproducible", "-c", SEEN, **ANOTHER))
    assert seen["own"] == seen["of_workers"] == reproducible.VARIABLES
    assert (seen["torch"], seen["onednn"], seen["threads"], seen["numba"]) == (
        "DEFAULT",
        False,
        1,
        "generic",
    )


def test_ray_sends_them_to_its_nodes(monkeypatch):
    pytest.importorskip("ray")
    from fintrader.tournament.launchers.ray import cluster

    sent = []

    class Function:
        def options(self, **options):
            sent.append(options)
            return type("Task", (), {"remote": None})

    monkeypatch.setattr(cluster.ray, "remote", lambda function: Function())
    cluster.wrap_remote(print, {"CPU": 1.0}, "plain")
    for name, value in reproducible.VARIABLES.items():
        monkeypatch.setenv(name, value)
    cluster.wrap_remote(print, {"CPU": 1.0}, "fixed")
    assert "runtime_env" not in sent[0]
    assert sent[1]["runtime_env"] == {"env_vars": reproducible.VARIABLES}


def test_the_command_begins_again_with_them(tmp_path, monkeypatch):
    words = ["run", str(write_config(tmp_path)), "--reproducible", "across_machines"]
    begun = []

    def execve(*call):
        begun.append(call)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setattr(sys, "argv", ["fintrader", *words])
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "fintrader", *words])
    with pytest.raises(SystemExit):
        cli.main()
    [(program, arguments, environment)] = begun
    assert (program, arguments[1:]) == (sys.executable, ["-m", "fintrader", *words])
    assert environment.items() >= reproducible.VARIABLES.items()
    assert not (tmp_path / "runs").exists(), "nothing is begun before"


@pytest.mark.parametrize("command", ["run", "train", "walkforward", "data build"])
def test_a_process_that_began_otherwise_is_refused_in_one_line(command, tmp_path):
    done = fintrader(
        *command.split(), str(write_config(tmp_path)), "--reproducible", "across_machines"
    )
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "python -m fintrader.reproducible" in done.err


def test_it_holds_for_processors_only():
    auto = RunConfig.model_validate({"reproducible": "across_machines"})
    assert auto.resolved_device() == "cpu"
    for wrong in (
        {"device": "cuda"},
        {"device": "cpu", "tournament": {"devices": ["cpu", "cuda:0"]}},
    ):
        with pytest.raises(ConfigError, match="needs the CPU"):
            RunConfig(**wrong, reproducible="across_machines")


def test_another_system_is_told_so(monkeypatch):
    monkeypatch.setattr(reproducible.platform, "machine", lambda: "aarch64")
    with pytest.raises(ConfigError, match="this is aarch64 under Linux; use same_machine"):
        reproducible.require("across_machines")
    reproducible.require("same_machine")


RACE = {
    "agent": [
        {"algo": "ppo", "num_steps": 16},
        {"algo": "sac", "learning_starts": 100, "batch_size": 64},
    ],
    "tournament": {**TINY["tournament"], "pods": 4},
    "reproducible": "across_machines",
}


@pytest.mark.slow
def test_a_run_has_the_same_bytes_whatever_instructions_there_are(tmp_path):
    """A tournament of an on-policy and an off-policy agent in worker processes, and its
    backtest."""
    found = []
    # The first run compiles all kernels, the second one loads them.
    kernels = {"NUMBA_CACHE_DIR": str(tmp_path / "kernels")}
    for name, outer in (("here", kernels), ("there", ANOTHER | kernels)):
        path = write_config(tmp_path / name, **RACE)
        run_python("-m", "fintrader", "run", str(path), **outer)
        folder = path.parent / "runs" / "tiny"
        manifest = json.loads((folder / "manifest.json").read_text())
        assert manifest["reproducible"] == "across_machines"
        assert [used["torch"] for used in manifest["code_paths"]] == ["DEFAULT"]
        policies = [file.read_bytes() for file in sorted(folder.glob("pods/*/policy.safetensors"))]
        assert len(policies) == 4
        found.append((policies, (folder / "backtest" / "metrics.json").read_bytes()))
    assert found[0] == found[1]
