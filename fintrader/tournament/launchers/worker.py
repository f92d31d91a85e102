"""A pod's process: `python -m fintrader.tournament.launchers.worker`, started by `LocalLauncher`.

It imports what bodies need once and then runs one pod after another, each a JSON line on its standard input; it
answers by JSON lines on what was its standard output. Whatever the body prints goes to the worker's log.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from typing import Any, TextIO

from fintrader import logs
from fintrader.config import load_object
from fintrader.tournament.launchers.base import context_of
from fintrader.tournament.pod import failure_reason, run_pod
from fintrader.tournament.process import Channel, die_with
from fintrader.tournament.spec import PodSpec
from fintrader.tournament.state_sync import save_all


def main() -> None:
    """Serve pods until the launcher is gone."""
    with logs.written():
        logs.print_as_records()
        serve()


def serve() -> None:
    """Import what pods need, then run one after another."""
    die_with(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the orchestrator's to handle
    signal.signal(signal.SIGTERM, leave)
    channel = Channel(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)
    for module in sys.argv[2:]:
        load_object(module)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    channel.send(kind="ready")
    inbox: TextIO = os.fdopen(os.dup(0), "r")
    tasks: list[dict[str, Any]] = []
    arrived = threading.Condition()

    def listen() -> None:
        for line in inbox:
            with arrived:
                tasks.append(json.loads(line))
                arrived.notify()
        os._exit(0)  # the launcher closed the pipe, or is gone

    threading.Thread(target=listen, daemon=True).start()
    while True:
        with arrived:
            while not tasks:
                arrived.wait()
            task = tasks.pop(0)
        if not work(task, channel):
            os._exit(1)


def leave(*_: object) -> None:
    """Asked to end: what a store does not have yet goes there, if it has anything of this pod at all."""
    save_all()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def work(task: dict[str, Any], channel: Channel) -> bool:
    """Run one pod and answer; False if this process should not be used again."""
    spec = PodSpec.model_validate(task["spec"])

    def report(share: float, env_steps: int, note: str) -> None:
        channel.send(kind="progress", pod=spec.pod, share=share, env_steps=env_steps, note=note)

    context = context_of(task, report=report)
    try:
        result = run_pod(spec, context, task["body"])
    except BaseException as error:
        if not logs.structured():  # then the pod's own log has it
            traceback.print_exc(file=sys.stderr)
        reason = failure_reason(error)
        last = reason in ("oom", "fenced") or not isinstance(error, Exception)
        detail = f"{type(error).__name__}: {error}"[:2000]
        channel.send(kind="failed", pod=spec.pod, reason=reason, detail=detail, last=last)
        return not last
    channel.send(kind="done", pod=spec.pod, result=result.model_dump(mode="json"))
    return True


if __name__ == "__main__":
    main()
