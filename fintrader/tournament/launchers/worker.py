"""A pod's process: `python -m fintrader.tournament.launchers.worker`, started by `LocalLauncher`.

It imports what bodies need once and then runs one pod after another, each a JSON line on its standard input; it
answers by JSON lines on what was its standard output. Whatever the body prints goes to the worker's log.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import traceback

from fintrader import logs
from fintrader.config import load_object
from fintrader.tournament.pod import failure_message, run_pod
from fintrader.tournament.process import Channel
from fintrader.tournament.spec import Message, PodContext, PodSpec
from fintrader.tournament.state_sync import save_all


def main() -> None:
    """Serve pods until the launcher is gone."""
    with logs.written():
        logs.print_as_records()
        serve()


def serve() -> None:
    """Import what pods need, then run one after another."""
    signal.signal(signal.SIGTERM, leave)
    channel = Channel()
    for module in sys.argv[2:]:
        load_object(module)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    channel.send(kind="ready")
    tasks: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def listen() -> None:
        for line in channel.inbox:
            tasks.put(json.loads(line))
        os._exit(0)  # the launcher closed the pipe, or is gone

    threading.Thread(target=listen, daemon=True).start()
    while work(tasks.get(), channel):
        pass
    os._exit(1)


def leave(*_: object) -> None:
    """Asked to end: what a store does not have yet goes there, if it has anything of this pod at all."""
    save_all()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def work(task: Message, channel: Channel) -> bool:
    """Run one pod and answer; False if this process should not be used again."""
    spec = PodSpec.model_validate(task["spec"])

    def report(share: float, env_steps: int, note: str) -> None:
        channel.send(kind="progress", pod=spec.pod, share=share, env_steps=env_steps, note=note)

    try:
        result = run_pod(spec, PodContext.of_task(task, report=report), task["body"])
    except BaseException as error:
        if not logs.structured():  # then the pod's own log has it
            traceback.print_exc(file=sys.stderr)
        message = failure_message(error)
        last = message["reason"] in ("oom", "fenced") or not isinstance(error, Exception)
        channel.send(**message, pod=spec.pod, last=last)
        return not last
    channel.send(kind="done", pod=spec.pod, result=result.model_dump(mode="json"))
    return True


if __name__ == "__main__":
    main()
