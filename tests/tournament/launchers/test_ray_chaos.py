"""A tournament on a Ray cluster that is struck in random order: nothing may be lost, doubled or
changed."""

import random

import psutil
import pytest

from fintrader.runs import RunFolder
from tests.engines import chaos, stubs
from tests.engines.ray_cluster import Nodes
from tests.engines.ray_race import Racer, generational
from tests.engines.thread_launcher import ThreadLauncher
from tests.engines.waiting import until

PODS = 48
STRIKES = ["process", "node", "raylet", "join", "drain", "orchestrator"]

pytestmark = [pytest.mark.ray, pytest.mark.slow]


class Campaign:
    """A tournament on a cluster of three nodes, and the strikes at both."""

    def __init__(self, run, seed):
        self.run = run
        self.chance = random.Random(seed)
        self.seen = set()
        self.begin(seconds=1.0)

    def begin(self, seconds):
        """Start a cluster whose pods take so long, and the tournament on it."""
        self.cluster = Nodes(1, 1, quick=True, STUB_SECONDS=str(seconds))
        self.race()

    def race(self):
        """Start the tournament, or go on with it."""
        self.racer = Racer(
            self.run, self.cluster.address, "stub", {"drain_seconds": 1.0}, pods=PODS
        )

    def stop(self):
        """End all that was started."""
        self.racer.stop()
        self.cluster.stop()

    def has_ended(self):
        return self.racer.process.poll() is not None

    def find_young_pod(self):
        """Wait for a pod that has just begun; its name, node and process."""
        pods = {}
        new = []

        def look():
            pods.update(self.racer.note()["pods"])
            new[:] = sorted(set(pods) - self.seen - set(chaos.acknowledged(self.run)))
            self.seen.update(pods)
            return bool(new)

        until(look, "a pod that has just begun")
        pod = self.chance.choice(new)
        return pod, *pods[pod]

    def strike(self, kind):
        """Disturb, and wait until the tournament goes on."""
        if kind in ("node", "raylet", "drain"):
            self.cluster.add(1)  # the work goes on there
        pod, node, pid = self.find_young_pod()
        stored = chaos.acknowledged(self.run)
        match kind:
            case "process":
                psutil.Process(pid).kill()
            case "node":
                self.cluster.kill(node)
            case "raylet":
                self.cluster.kill_raylet(node)
            case "join":
                self.cluster.add(1)
            case "drain":
                self.cluster.drain(node, seconds=2.0)
            case "orchestrator":
                self.go_on_after(self.race)
                return

        def has_gone_on():
            results = set(chaos.acknowledged(self.run))
            return bool(results - set(stored)) if kind == "join" else pod in results

        until(lambda: has_gone_on() or self.has_ended(), f"a result after {kind}")

    def behead(self, *, alone):
        """Kill the head with the orchestrator, or the head alone, which the orchestrator has to
        notice; then go on upon a new cluster."""
        self.wait_for_pods()
        self.cluster.kill_head()
        if alone and not self.has_ended():
            status, words = self.racer.wait()
            # Ray ends a process by itself that has not heard of its head for a minute.
            assert status != 0
            assert "head" in words or "GCS" in words
        self.go_on_after(self.rebuild)

    def rebuild(self):
        """Put a new cluster in the old one's place."""
        self.cluster.stop()
        self.begin(seconds=0.2)

    def go_on_after(self, change):
        """Kill the orchestrator, change something, and compare the results on the disk."""
        self.racer.stop()
        before = chaos.acknowledged(self.run)
        change()
        self.wait_for_pods()
        assert chaos.acknowledged(self.run).items() >= before.items()

    def wait_for_pods(self):
        until(lambda: bool(self.racer.note()["pods"]) or self.has_ended(), "pods at work")


@pytest.mark.parametrize("seed", range(chaos.amount(1, 5)))
def test_struck_in_random_order(tmp_path, seed):
    undisturbed = RunFolder(tmp_path / "undisturbed")
    threads = ThreadLauncher(undisturbed, tmp_path, stubs.body, workers=4)
    generational(undisturbed, threads, "stub", pods=PODS)
    campaign = Campaign(RunFolder(tmp_path / "run"), seed)
    try:
        for kind in campaign.chance.sample(STRIKES, len(STRIKES)):
            if len(chaos.acknowledged(campaign.run)) <= PODS - 4:
                campaign.strike(kind)
        campaign.behead(alone=seed % 2 == 1)
        assert campaign.racer.wait() == (0, "")
        assert chaos.check(campaign.run, {}, chaos.everything(undisturbed)) == []
    finally:
        campaign.stop()
