"""Schedules of seeds: several heads in the simulated world, what happens to them, and what must
hold at the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fintrader.errors import FintraderError
from fintrader.files import read_jsonl, unseal
from fintrader.runs import RunFolder
from fintrader.tournament.settings import TournamentSettings
from tests.engines.races import settings
from tests.engines.simulation import Killed, World, head, simulated


def run_schedule(
    home: Path, seed: int, *, pods: int = 4, heads: int = 3, faults: float = 0.1
) -> World:
    """One schedule to its end; `problems` is what is wrong with it (nothing, one hopes)."""
    world = World(seed, faults=faults)
    wanted = settings(pods=pods, order="arrival", founders=1, fresh=0.2)
    with simulated(world):
        for number in range(heads):
            world.start(f"head{number}", _again(world, home, number, wanted))
        world.run()
        world.faults = 0.0
        while world.late:
            world.late.pop()()
        world.start(
            "machine99", head(world, home, 99, wanted, 2)
        )  # whoever comes last finds it all
        world.run()
    world.problems += _wrong(world, RunFolder(home / "machine99"), pods)
    return world


def _again(world: World, home: Path, number: int, wanted: TournamentSettings) -> Callable[[], None]:
    """A head that may be killed at any of its steps: with all its pods, or alone, and then it is
    started again on its machine. One that gives up is started again on an empty disk."""

    def work() -> None:
        machine = 10 * number
        for attempt in range(1, 4):
            if not world.lives[f"machine{machine}"]:
                world.pause(world.random.random() * 60)
            if world.random.random() < 0.5:
                victim = f"machine{machine}"
                alone = world.random.random() < 0.6
                world.start(
                    f"killer{machine}-{attempt}",
                    lambda who=victim, how=alone: _kill_later(world, who, how),
                )
            try:
                head(world, home, machine, wanted, 1 + number % 2)()
            except FintraderError as error:
                world.outcomes.append(f"machine{machine}: {type(error).__name__}: {error}")
                machine = 10 * number + attempt
            except Killed:
                if f"machine{machine}" not in world.alone:
                    raise
                world.outcomes.append(f"machine{machine}: killed alone")
                world.revive(f"machine{machine}")
            else:
                return

    return work


def _kill_later(world: World, machine: str, alone: bool) -> None:
    for _ in range(world.random.randrange(300)):
        world.pause()
        if alone and world.random.random() < 0.5 and machine in dict(world.training):
            break  # while it has a pod at work: that is what is left behind
    world.kill(machine, alone=alone)


def _wrong(world: World, run: RunFolder, pods: int) -> list[str]:
    problems = []
    if "machine99: done" not in world.outcomes:
        return [f"the last head did not finish: {world.outcomes}"]
    for outcome in world.outcomes:
        typed = (
            "done",
            "killed",
            "taken",
            "does not answer",
            "in use by process",
            "another orchestrator",
        )
        if not any(word in outcome for word in typed):
            problems.append(outcome)
    kinds = [event["event"] for event in read_jsonl(run.events)]
    world.adopted = kinds.count("adopted")
    applied = [event["pod"] for event in read_jsonl(run.events) if event["event"] == "applied"]
    if sorted(applied) != [f"p{number:04d}" for number in range(pods)]:
        problems.append(f"applied {applied}")
    if [pod for pod in applied if pod in world.acknowledged] != world.acknowledged:
        problems.append(f"acknowledged {world.acknowledged}, and then applied {applied}")
    if "damaged" in kinds:
        problems.append("a result was taken for damaged")
    store = {name: data for name, data in world.content.items() if name.startswith("pods/")}
    for number in range(pods):
        text = [
            unseal(store[f"pods/p{number:04d}/{name}.json"], AssertionError(name))["text"]
            for name in ("spec", "result")
        ]
        if [
            (run.pod(f"p{number:04d}") / f"{name}.json").read_text() for name in ("spec", "result")
        ] != text:
            problems.append(f"p{number:04d} here is not what is stored")
    return problems
