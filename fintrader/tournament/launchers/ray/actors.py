"""A pod on a Ray cluster as an actor, which may outlive the process that started it.

With `operations.takeover`, actors are detached, and named after their pod in a namespace of the
run. The cluster has at most one actor of a name, so no pod is trained twice, and the next
orchestrator finds the actor by that name or starts a new one. The actor trains in a thread and
keeps its messages until an orchestrator calls `listen`. It evaluates its pod itself when no
orchestrator takes the evaluation.
"""

from __future__ import annotations

import json
import os
import threading
import time
from contextlib import suppress
from typing import Any

import ray
from ray.util import list_named_actors

from fintrader import reproducible
from fintrader.files import hash_bytes
from fintrader.system import start_thread
from fintrader.tournament.at_work import wait_for_checkpoint
from fintrader.tournament.launchers.ray.cluster import Resources, build_options
from fintrader.tournament.launchers.ray.tasks import (
    describe_start,
    find_run,
    follow_node,
    is_last,
    train_or_evaluate,
    work_on_pod,
)
from fintrader.tournament.messages import (
    Message,
    PodTask,
    ProgressMessage,
    ResultMessage,
    TrainedMessage,
)
from fintrader.tournament.pod import evaluate_pod
from fintrader.tournament.pod_context import PodContext
from fintrader.tournament.spec import Fenced, PodResult, TrainedPod

LISTEN_SECONDS = 2.0
"""Longest wait of one `listen` call."""
ALONE_SECONDS = 10.0
"""Silence, in seconds, after which an actor assumes that there is no orchestrator."""
EVALUATION = "-evaluation"
"""Suffix in the name of an actor that evaluates its pod."""


class PodActor:
    """One pod at work. Messages are numbered from 1; of progress only the last is kept."""

    def __init__(self, task: PodTask) -> None:
        os.environ.update(reproducible.ONE_THREAD)
        self.task = task
        self.patience = task.operations.orphan_seconds
        self.token = task.token
        self._messages: list[tuple[int, Message]] = []
        self._number = self._taken = 0
        self._change = threading.Condition()
        self._heard = time.monotonic()
        self._over = threading.Event()
        begun = describe_start()
        self._send(begun)
        start_thread(work_on_pod, task, self._send, self._work, name=task.spec.pod)
        if self.patience:
            start_thread(self._wait_for_listeners, name="listeners")
        if task.mirror is not None and task.operations.store_seconds:
            start_thread(follow_node, begun.node, self._over, name="node")

    def listen(self, after: int, token: int | None) -> list[tuple[int, Message]]:
        """Wait for messages above number `after`; `token` is that of the caller."""
        with self._change:
            self._heard = time.monotonic()
            self._taken = max(self._taken, after)
            if token is not None and (self.token is None or token > self.token):
                self.token = token
                self._change.notify_all()
            self._change.wait_for(lambda: self._number > after, timeout=LISTEN_SECONDS)
            self._heard = time.monotonic()
            return [(number, message) for number, message in self._messages if number > after]

    def _send(self, message: Message) -> None:
        with self._change:
            if isinstance(message, ProgressMessage):
                self._messages = [
                    one for one in self._messages if not isinstance(one[1], ProgressMessage)
                ]
            self._number += 1
            self._messages.append((self._number, message))
            self._change.notify_all()

    def _measure_silence(self) -> float:
        """Measure the seconds since the last call of `listen`."""
        return time.monotonic() - self._heard

    def _wait_for_listeners(self) -> None:
        """End this process after too long without a listener: at a checkpoint, or with the result
        stored."""
        while self._measure_silence() < self.patience:
            time.sleep(1.0)
            if self._over.is_set() and self._measure_silence() > ALONE_SECONDS:
                os._exit(0)
        with suppress(Exception):  # this process ends in any case
            wait_for_checkpoint(find_run(self.task)[0].pod(self.task.spec.pod))
        os._exit(1)

    def _work(self, context: PodContext) -> Message | None:
        """Train or evaluate the pod; None where its evaluation was left to the orchestrator."""
        outcome = self._train_or_evaluate(context)
        if isinstance(outcome, TrainedPod):
            if self._offer_evaluation(outcome):
                return None
            outcome = evaluate_pod(self.task.spec, context, outcome)
        self._over.set()
        return ResultMessage(outcome)

    def _train_or_evaluate(self, context: PodContext) -> PodResult:
        """Make the pod's result, stored under the newest token. Raises Fenced when the run's holder
        never calls."""
        while True:
            context.token = self.token
            try:
                return train_or_evaluate(self.task, context)
            except Fenced:  # fenced by the orchestrator that takes this pod over, or by another
                with self._change:
                    if not self._change.wait_for(
                        lambda: self.token != context.token, timeout=self.patience
                    ):
                        raise

    def _offer_evaluation(self, outcome: TrainedPod) -> bool:
        """Leave the evaluation to the orchestrator; False without one, when this process has to do
        it."""
        self._send(TrainedMessage(outcome))
        with self._change:
            number = self._number
            while not self._change.wait_for(lambda: self._taken >= number, timeout=1.0):
                if self.patience and self._measure_silence() > ALONE_SECONDS:
                    self._messages = [one for one in self._messages if one[0] != number]
                    return False
        return True


def name_namespace(access: PodContext) -> str:
    """Name the namespace of a run's actors: the same for every orchestrator of this run, another
    for a later run in its folder."""
    where = (
        str(access.run.root.resolve())
        if access.mirror is None
        else json.dumps(access.mirror.address)
    )
    identity = access.open_store().read_identity_digest()
    return f"fintrader-{hash_bytes(f'{where} {identity}'.encode())[:16]}"


def list_actors(namespace: str, access: PodContext) -> set[str]:
    """List the names of present actors whose pod has no result yet; the others are about to end."""
    store = access.open_store()
    names = {
        one["name"]
        for one in list_named_actors(all_namespaces=True)
        if one["namespace"] == namespace
    }
    return {name for name in names if not store.has_result(name.removesuffix(EVALUATION))}


def start(task: PodTask, need: Resources, name: str, namespace: str) -> Any:
    """Find the actor of that name, or start one for `task`."""
    named = {"name": name, "namespace": namespace, "lifetime": "detached", "get_if_exists": True}
    options = {**build_options(need), **named, "max_concurrency": 4, "max_restarts": 0}
    return ray.remote(PodActor).options(**options).remote(task)


def kill(name: str, namespace: str) -> None:
    """End the actor of that name, if there is one."""
    with suppress(Exception):
        ray.kill(ray.get_actor(name, namespace=namespace), no_restart=True)


class ActorSource:
    """Messages of an actor, by one `listen` call after another."""

    def __init__(self, actor: Any, token: int | None) -> None:
        """`token`: that of the listening orchestrator."""
        self.actor = actor
        self.token = token
        self._taken = 0
        self._gone = False
        self.pending = actor.listen.remote(0, token)

    def take(self) -> list[Message]:
        """Take the arrived messages. Raises RayError when the actor is gone, StopIteration after
        that."""
        if self._gone:
            raise StopIteration
        found = []
        try:
            found = ray.get(self.pending)
        except ray.exceptions.ActorUnavailableError:
            pass  # out of reach for now; only a long silence counts as a loss
        except ray.exceptions.RayError:
            self._gone = True
            raise
        self._taken = max([self._taken, *(number for number, _ in found)])
        self.pending = self.actor.listen.remote(self._taken, self.token)
        messages = [message for _, message in found]
        if any(map(is_last, messages)):
            self.kill()
        return messages

    def kill(self) -> None:
        """End the actor's process; the next call raises."""
        with suppress(Exception):
            ray.kill(self.actor, no_restart=True)
