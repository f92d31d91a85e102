"""Kernels that a pod needs are compiled by one process of a machine; the others load them."""

import json
import os
import subprocess
import sys

import pytest

from fintrader.system import try_lock
from fintrader.tournament.compile_kernels import take_turns
from tests import ROOT

POD = """
import json, sys
from pathlib import Path
from fintrader.envs.fast.batch import step_range
from fintrader.envs.fast.single_account import decide_and_wait
from tests.engines.races import first_spec, train_pod

train_pod(Path(sys.argv[1]), first_spec())
kernels = step_range, decide_and_wait
print(json.dumps([sum(kernel.stats.cache_misses.values()) for kernel in kernels]))
"""


def test_a_process_waits_for_a_part_that_another_one_does(tmp_path):
    done = []
    reports = []
    with (tmp_path / "training.lock").open("ab") as other:
        assert try_lock(other)

        def report():
            reports.append(list(done))
            if len(reports) == 4:
                other.close()

        names = ("training", "scoring")
        take_turns(tmp_path, {name: lambda name=name: done.append(name) for name in names}, report)
    assert done == ["scoring", "training"]
    assert reports == [[], *[["scoring"]] * 3]


@pytest.mark.slow
def test_two_processes_share_the_kernels_out(tmp_path):
    env = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    pods = [
        subprocess.Popen(
            [sys.executable, "-c", POD, folder], env=env, stdout=subprocess.PIPE, text=True
        )
        for folder in folders
    ]
    misses = [json.loads(pod.communicate()[0]) for pod in pods]
    assert [sum(each) for each in zip(*misses, strict=True)] == [1, 1]
    assert [sum(each) for each in misses] == [1, 1]
