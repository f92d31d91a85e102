"""Ray launcher: Ray schedules, the orchestrator stays the same.

A pod is one actor, which outlives this process (`actors.py`), or one task, which ends with it
(`tasks.py`). A pod on several GPUs or nodes is a task with a placement group. Its evaluation is
another actor or task, with resources for it. Only messages pass through Ray; everything else is in
the run's store. Ray never retries; the orchestrator records a lost pod and starts it again. So a
node, all nodes, or the head may vanish at any time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ray.util import placement_group

from fintrader.errors import ConfigError, StorageError, TournamentError
from fintrader.tournament.launchers import (
    START_SECONDS,
    Launcher,
    LauncherFactory,
    PodFailure,
    PodProgress,
)
from fintrader.tournament.launchers.ray.actors import (
    EVALUATION,
    ActorSource,
    kill,
    list_actors,
    name_namespace,
    start,
)
from fintrader.tournament.launchers.ray.cluster import (
    Cluster,
    Node,
    Resources,
    count_fits,
    count_groups,
    wrap_remote,
)
from fintrader.tournament.launchers.ray.settings import RaySettings
from fintrader.tournament.launchers.ray.tasks import (
    Source,
    Stream,
    Streams,
    TaskSource,
    explain_error,
    run_task,
)
from fintrader.tournament.lease import read_token
from fintrader.tournament.messages import (
    FailureMessage,
    Message,
    PodTask,
    ProgressMessage,
    ResultMessage,
    StartMessage,
    TrainedMessage,
)
from fintrader.tournament.pod_context import BODY, PodContext
from fintrader.tournament.settings import TournamentSettings, count_spanned
from fintrader.tournament.spec import PodResult, PodSpec, Reason


@dataclass(eq=False)
class _Pod:
    """A pod that was submitted to Ray."""

    spec: PodSpec
    task: PodTask
    future: Future[PodResult]
    stream: Stream | None = None
    last: Message | None = None
    """Last message of its task, which has yet to end."""
    is_evaluating: bool = False
    node: str = ""
    """Node on which it runs; empty while Ray looks for one."""
    further_nodes: list[str] = field(default_factory=list)
    """Further nodes, on which some of its ranks run."""
    pid: int = 0
    last_message: float = field(default_factory=time.monotonic)
    is_ready: bool = False
    progress: PodProgress = field(default_factory=PodProgress)

    def list_nodes(self) -> list[str]:
        """List its known nodes."""
        return [self.node, *self.further_nodes] if self.node else []


class RayLauncher(Launcher):
    """Launcher that runs pods on a Ray cluster. Connects when it is made; see `cluster.connect` for
    errors."""

    is_elastic = True

    def __init__(
        self,
        access: PodContext,
        settings: RaySettings,
        tournament: TournamentSettings,
        *,
        body: str = BODY,
        gpus: float = 0.0,
    ) -> None:
        """`gpus`: GPUs of a pod, if `settings` leaves them open and the cluster has any."""
        self.access = access
        self.settings = settings
        self.body = body
        self._limit = tournament.workers
        self._hang = access.operations.patience_seconds
        self._pods: dict[str, _Pod] = {}
        self._lock = threading.RLock()
        self._requested = 0
        self._empty_since: float | None = None
        self._cluster = Cluster(settings)
        if settings.gpus is not None:
            gpus = settings.gpus
        elif not any(node.total.get("GPU") for node in self._cluster.view.nodes.values()):
            gpus = 0.0
        self.gpus = gpus
        asked = {"CPU": settings.cpus, "GPU": gpus, **settings.resources}
        self.need: Resources = {name: amount for name, amount in asked.items() if amount}
        """Resources of a pod."""
        self._evaluates_apart = access.operations.evaluators is not False
        self.evaluator: Resources = {"CPU": settings.evaluator_cpus, **settings.evaluator_resources}
        can_outlive = settings.address != "local" and gpus <= 1 and settings.nodes == 1
        self._namespace = name_namespace(access) if can_outlive else ""
        """Namespace of the actors; empty where pods can only be tasks."""
        self._uses_actors = can_outlive and access.operations.orphan_seconds > 0
        """True if new pods outlive this process."""
        # Also without `takeover`: an earlier orchestrator may have had it.
        self._orphans = list_actors(self._namespace, access) if can_outlive else set()
        """Actors of an earlier orchestrator that this one has not taken over yet, by name."""
        self._streams = Streams()

    # --- Launcher ---------------------------------------------------------------------------------

    def measure_capacity(self) -> int:
        """Count pods at work plus room for more, on nodes that stay."""
        view = self._cluster.view
        staying = {node.id: node for node in view.staying}
        with self._lock:
            evaluating = sum(pod.is_evaluating for pod in self._pods.values())
            training = [pod.list_nodes() for pod in self._pods.values() if not pod.is_evaluating]
        leaving = sum(any(node not in staying for node in nodes) for nodes in training)
        size = self.settings.nodes
        in_all = count_groups(
            (count_fits(self.need, node.total) for node in staying.values()), size
        )
        # others may use the cluster too
        vacant = count_groups(
            (count_fits(self.need, node.available) for node in staying.values()), size
        )
        room = (
            min(in_all, len(training) - leaving + vacant)
            + evaluating
            + leaving
            + len(self._orphans)
        )
        return room if self._limit is None else min(room, self._limit)

    def list_orphans(self) -> frozenset[str]:
        return frozenset(name.removesuffix(EVALUATION) for name in self._orphans)

    def resize(self, workers: int | None) -> None:
        """Set the number of pods at once; None: as many as the cluster holds."""
        self._limit = workers

    def request(self, pods: int) -> None:
        """Request room for `pods` pods from the autoscaler."""
        pods = pods if self._limit is None else min(pods, self._limit)
        if pods != self._requested:
            self._requested = pods
            self._cluster.request([self.need] * (pods * self.settings.nodes))

    def submit(self, spec: PodSpec, *, attempt: int = 1) -> Future[PodResult]:
        task = self.access.build_task(
            spec,
            self.body,
            attempt=attempt,
            device=name_devices(self.gpus, self.settings.nodes),
            nodes=self.settings.nodes,
            need=dict(self.need),
            evaluate_elsewhere=self._evaluates_apart,
        )
        pod = _Pod(spec, task, Future(), progress=PodProgress(since=time.time(), device="waiting"))
        group = None
        if self.gpus > 1 or self.settings.nodes > 1:
            bundles = [dict(self.need)] * self.settings.nodes
            group = placement_group(
                bundles, "STRICT_PACK" if len(bundles) == 1 else "STRICT_SPREAD", name=spec.pod
            )
        pod.is_evaluating = spec.pod + EVALUATION in self._orphans
        with self._lock:
            self._pods[spec.pod] = pod
        self._start(pod, self.need, group)
        self._orphans -= {spec.pod, spec.pod + EVALUATION}
        return pod.future

    def report_progress(self) -> dict[str, PodProgress]:
        with self._lock:
            return {name: pod.progress for name, pod in self._pods.items()}

    def check_pods(self) -> None:
        """Stop pods that hang, that a leaving node runs, or that exceed the limit. Raises
        TournamentError when the head is gone or no node can hold a pod."""
        self._cluster.refresh()
        nodes = self._cluster.view.nodes
        now = time.monotonic()
        with self._lock:
            pods = list(self._pods.values())
        for pod in pods:
            if pod.last is not None:
                continue  # it has nothing more to send
            patience = self._hang if pod.is_ready else max(self._hang, START_SECONDS)
            if pod.node and now - pod.last_message > patience:
                self._stop(pod, "hung", f"no sign of life for {self._hang:g} s")
            elif any(self._is_leaving(nodes[node]) for node in pod.list_nodes() if node in nodes):
                self._stop(pod, "drained", "its node is leaving")
        if self._limit is not None:
            for pod in pods[self._limit :]:
                self._stop(pod, "drained", "stopped on request")
        self._check_room(pods)

    def close(self) -> None:
        with self._lock:
            pods = list(self._pods.values())
        if not self._is_superseded():
            for pod in pods:
                self._stop(pod, "drained", "stopped on request")
            for name in self._orphans:
                kill(name, self._namespace)
        self._streams.close(wait=not self._cluster.is_silent)
        self._cluster.close()

    def _is_superseded(self) -> bool:
        """Check whether another orchestrator has taken these pods over."""
        if not self._namespace or self.access.token is None:
            return False
        token = self.access.token
        store = self.access.open_store()
        with suppress(StorageError):
            return read_token(self.access.run) != token or store.is_superseded(token)
        return False

    # --- room -------------------------------------------------------------------------------------

    def _is_leaving(self, node: Node) -> bool:
        return bool(node.leaves and time.time() > node.leaves - self.settings.drain_seconds)

    def _check_room(self, pods: Sequence[_Pod]) -> None:
        """Raise TournamentError when nothing runs and nothing can."""
        view = self._cluster.view
        shapes = [(self.need, self.settings.nodes)]
        if self._evaluates_apart:
            shapes.append((self.evaluator, 1))
        totals = [node.total for node in view.staying]
        lacking = [
            (shape, size)
            for shape, size in shapes
            if sum(count_fits(shape, total) > 0 for total in totals) < size
        ]
        if not lacking or any(pod.node for pod in pods):
            self._empty_since = None
            return
        if self._empty_since is None:
            self._empty_since = time.monotonic()
        shape, size = lacking[0]
        cannot_grow = view.growth is not None and not any(
            count_fits(shape, kind) for kind in view.growth
        )
        if cannot_grow or time.monotonic() - self._empty_since >= self.settings.wait_seconds:
            raise TournamentError(
                self._explain_no_room(shape, size, [*totals, *(view.growth or ())])
            )

    def _explain_no_room(self, shape: Resources, size: int, offers: Sequence[Resources]) -> str:
        kind = "a pod" if shape is self.need else "an evaluator"
        asked = ", ".join(f"{amount:g} {name}" for name, amount in shape.items())
        roomy = sum(count_fits(shape, offer) > 0 for offer in offers)
        if size > 1 and roomy:
            return (
                f"a pod spans {size} nodes of the Ray cluster and takes {asked} on each, but only"
                f" {roomy} of {len(offers)} can hold that; lower --launcher.nodes, or add"
                " nodes and run the same command again"
            )
        most = {
            name: max((offer.get(name, 0.0) for offer in offers), default=0.0) for name in shape
        }
        there = ", ".join(f"{amount:g} {name}" for name, amount in most.items())
        return (
            f"no node of the Ray cluster can hold {kind}: it takes {asked}, and nodes"
            f" offer at most {there}; lower --launcher.gpus, --launcher.cpus or"
            " --launcher.resources (of an evaluator, --launcher.evaluator_cpus or"
            " --launcher.evaluator_resources), or add nodes and run the same command again"
        )

    # --- tasks ------------------------------------------------------------------------------------

    def _start(self, pod: _Pod, need: Resources, group: Any = None) -> None:
        """Submit a pod's task to Ray."""
        pod.last = None
        source: Source
        name = pod.spec.pod + (EVALUATION if pod.is_evaluating else "")
        if self._uses_actors or name in self._orphans:
            source = ActorSource(start(pod.task, need, name, self._namespace), self.access.token)
        else:
            name = f"{pod.spec.pod} {'evaluation' if pod.is_evaluating else 'training'}"
            source = TaskSource(wrap_remote(run_task, need, name, group=group)(pod.task))
        pod.stream = Stream(
            source,
            lambda message: self._receive(pod, message),
            lambda error: self._settle_pod(pod, error),
            group,
        )
        self._streams.add(pod.stream)

    def _stop(self, pod: _Pod, reason: Reason, detail: str) -> None:
        """Kill a pod's process. The lock of its folder keeps the next attempt waiting until it is
        gone."""
        with self._lock:  # no evaluation may begin in between
            self._end(pod, PodFailure(reason, detail))
            stream = pod.stream
        if stream is not None:
            stream.stop()

    def _end(self, pod: _Pod, outcome: PodResult | PodFailure) -> None:
        with self._lock:
            if self._pods.get(pod.spec.pod) is not pod:
                return
            del self._pods[pod.spec.pod]
        if isinstance(outcome, PodFailure):
            pod.future.set_exception(outcome)
        else:
            pod.future.set_result(outcome)

    # --- messages ---------------------------------------------------------------------------------

    def _receive(self, pod: _Pod, message: Message) -> None:
        """Act on one message; the last one waits for the end of its task."""
        pod.last_message = time.monotonic()
        match message:
            case StartMessage(joined=True):
                pod.further_nodes.append(message.node)
            case StartMessage():
                pod.node = message.node
                pod.pid = message.pid
                pod.further_nodes.clear()
                pod.progress.device = f"{message.host} {pod.task.device}"
            case ProgressMessage():
                pod.is_ready = True
                pod.progress.update(message)
            case _:
                pod.last = message

    def _settle_pod(self, pod: _Pod, error: Exception | None) -> None:
        """Settle a pod whose task has ended."""
        try:
            if pod.last is not None:  # it counts, whatever happened to the task since
                self._act(pod, pod.last)
            elif error is not None:
                self._end(pod, self._explain_loss(pod, error))
            else:
                self._end(pod, PodFailure("error", "its task ended without a message"))
        except Exception as problem:  # an error in the handling of one pod must not stop the others
            self._end(pod, PodFailure("error", f"{type(problem).__name__}: {problem}"))

    def _act(self, pod: _Pod, message: Message) -> None:
        match message:
            case TrainedMessage():
                with self._lock:
                    if self._pods.get(pod.spec.pod) is not pod:
                        return  # stopped a moment ago
                    pod.task = replace(pod.task, device="cpu", nodes=1, trained=message.trained)
                    pod.further_nodes.clear()
                    pod.node = ""
                    pod.pid = 0
                    pod.is_ready = False
                    pod.is_evaluating = True
                    pod.progress.note = "evaluating"
                    pod.progress.share = 1.0
                    self._start(pod, self.evaluator)
            case ResultMessage(result=result):
                if self.access.open_store().has_result(result.pod):
                    self._end(pod, result)
                else:
                    detail = (
                        f"{pod.progress.device} stored the result elsewhere; set runs_dir to a"
                        " folder that all nodes share"
                    )
                    self._end(pod, PodFailure("error", detail))
            case FailureMessage():
                self._end(pod, PodFailure(message.reason, message.detail))

    def _explain_loss(self, pod: _Pod, error: Exception) -> PodFailure:
        """Translate the error of a pod's process into a failure."""
        reason, detail = explain_error(error)
        if pod.node and pod.node not in self._cluster.view.nodes and reason != "oom":
            reason = "node"
            detail = "its node vanished"
        if reason in ("node", "killed"):
            detail += (
                f" ({pod.progress.device}, node {pod.node[:8]})" if pod.node else " (no node yet)"
            )
        return PodFailure(reason, detail)


def name_devices(gpus: float, nodes: int) -> str:
    """Name a pod's devices. Ray shows a task only its own GPUs; each learner of a pod gets one GPU
    and one process."""
    if nodes == 1 and gpus <= 1:
        return "cuda" if gpus else "cpu"
    own = [f"cuda:{number}" for number in range(max(int(gpus), 1))] if gpus else ["cpu"]
    return "/".join(own * nodes)


def run_on_ray(ray: RaySettings, *, body: str = BODY, device: str = "auto") -> LauncherFactory:
    """Make the `launcher` of `run_tournament` that runs pods on a Ray cluster. `device`: `cpu` uses
    no GPU.

    The launcher raises ConfigError when a pod spans more GPUs or nodes than it has learners.
    """

    def make(settings: TournamentSettings, access: PodContext) -> RayLauncher:
        gpus = (
            0.0
            if device == "cpu" or set(settings.devices) == {"cpu"}
            else 1.0 / max(map(settings.devices.count, settings.devices))
        )
        spans = count_spanned(name_devices(gpus if ray.gpus is None else ray.gpus, ray.nodes))
        if spans > settings.learners:
            span, lower = (
                (f"{spans} GPUs", "launcher.gpus")
                if spans > ray.nodes
                else (f"{spans} nodes", "launcher.nodes")
            )
            raise ConfigError(
                f"{lower}: a pod that spans {span} needs a learner for each; set"
                f" tournament.replicas to {spans} or more, or lower {lower}"
            )
        return RayLauncher(access, ray, settings, body=body, gpus=gpus)

    return make
