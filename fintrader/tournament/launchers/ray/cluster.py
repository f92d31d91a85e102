"""Connection to a Ray cluster, and its nodes as they are now."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray._private import ray_constants, services
from ray._private.authentication import authentication_token_setup
from ray._private.state import state
from ray._raylet import GcsClient
from ray.autoscaler.sdk import request_resources
from ray.exceptions import AuthenticationError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from fintrader import reproducible
from fintrader.errors import TournamentError
from fintrader.system import is_loopback, start_thread
from fintrader.tournament.launchers.ray.settings import RaySettings

HEAD_SECONDS = 30.0
"""Silence, in seconds, after which the head counts as gone. (Ray itself ends this process, without
a message, after a minute.)"""
REFRESH_SECONDS = 1.0
"""Most seconds between two readings of the nodes."""
PROBE_SECONDS = 60.0
CLOSE_SECONDS = 10.0
Resources = Mapping[str, float]


@dataclass(frozen=True)
class Node:
    """One living node."""

    id: str
    total: Resources
    available: Resources
    leaves: float | None = None
    """Unix time at which it leaves; 0: at an unknown time; None: it stays."""


@dataclass(frozen=True)
class ClusterView:
    """Nodes of the cluster at one moment."""

    nodes: Mapping[str, Node]
    growth: tuple[Resources, ...] | None = None
    """Resources of the nodes that the autoscaler can add; None without an autoscaler."""

    @property
    def staying(self) -> list[Node]:
        """Nodes that take new pods."""
        return [node for node in self.nodes.values() if node.leaves is None]


def count_fits(need: Resources, have: Resources) -> int:
    """Count how many times `need` fits into `have`."""
    counts = [
        int(have.get(name, 0.0) / amount + 1e-6) for name, amount in need.items() if amount > 0
    ]
    return min(counts, default=0)


def count_groups(room: Iterable[int], size: int) -> int:
    """Count the groups of `size` different nodes, if node k has room for `room[k]` members."""
    rooms = list(room)
    number = sum(rooms) // size
    while number and sum(min(one, number) for one in rooms) < number * size:
        number -= 1
    return number


# --- connecting -----------------------------------------------------------------------------------


def connect(settings: RaySettings) -> bool:
    """Connect this process to the cluster; False when it was connected already.

    Raises TournamentError when no cluster answers, it requires a token that this process lacks, it
    accepts clients without one beyond loopback, or it runs another version.
    """
    if ray.is_initialized():
        return False
    if settings.address == "local":
        _keep_on_loopback()
        return _init("local", settings)
    address = _resolve(settings.address)
    _reach(address)
    manner = probe_authentication(address)
    if manner == "silent":
        raise TournamentError(
            f"{address} answers, but not as a Ray cluster of this version; give the head's GCS port"
        )
    if manner == "closed" and "RAY_AUTH_MODE" not in os.environ:
        # With the token, if there is one, as Ray does.
        authentication_token_setup.maybe_enable_token_auth_if_token_available(
            warn_if_disabled=False
        )
    addresses = _list_addresses(address)
    loopback = bool(addresses) and all(is_loopback(one) for one in addresses)
    if manner == "open" and not loopback and not settings.allow_insecure:
        raise TournamentError(
            f"the cluster at {address} runs any code that it is sent; start it with"
            " RAY_AUTH_MODE=token (see `ray get-auth-token`), or set --launcher.allow-insecure True"
            " if only you can reach it"
        )
    if loopback:
        _keep_on_loopback()
    return _init(address, settings)


def wrap_remote(
    function: Callable[..., Any], need: Resources, name: str, *, group: Any = None, bundle: int = 0
) -> Callable[..., Any]:
    """Wrap `function` as Ray's remote generator that takes `need` of a node, or of a `bundle` of
    the placement group `group`.

    A call starts the task and returns the stream of what it yields. Ray never retries it. A task
    with a GPU gets a process for itself, which ends with the task: a longer-lived process would
    keep the GPU's memory, and its next task would stay on that GPU. Ray does this only for GPUs in
    the decorator, not for those in `options`.
    """
    options = {**build_options(need), "num_returns": "streaming", "max_retries": 0, "name": name}
    if group is not None:
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=bundle
        )
    task = ray.remote(max_calls=1)(function) if need.get("GPU") else ray.remote(function)
    start: Callable[..., Any] = task.options(**options).remote
    return start


def build_options(need: Resources) -> dict[str, Any]:
    """Build Ray's options of a task or actor that takes `need` of a node."""
    options = {
        "num_cpus": need["CPU"],
        "num_gpus": need.get("GPU", 0.0),
        "resources": {name: amount for name, amount in need.items() if name not in ("CPU", "GPU")},
    }
    if reproducible.is_fixed():  # other nodes do not have this process's environment
        options["runtime_env"] = {"env_vars": reproducible.VARIABLES}
    return options


def _init(address: str, settings: RaySettings) -> bool:
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            runtime_env=settings.runtime_env or None,
            include_dashboard=False if address == "local" else None,
            log_to_driver=False,
            logging_level="ERROR",
        )
    except AuthenticationError as error:
        raise _build_refusal(address, error) from None
    except (ConnectionError, RuntimeError, OSError) as error:
        with contextlib.suppress(Exception):
            ray.shutdown()
        raise TournamentError(f"cannot join the Ray cluster at {address}: {error}") from None
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)  # Ray has replaced it
    return True


def _resolve(address: str) -> str:
    """Resolve `auto` to HOST:PORT, by Ray's rules. Raises TournamentError without a cluster."""
    if address != "auto":
        return address
    found: str | None = None
    with contextlib.suppress(ConnectionError, ValueError, OSError):
        found = services.get_ray_address_from_environment("auto", None)
    if not found or found == "auto":
        raise TournamentError(
            "no Ray cluster runs here; start one with `ray start --head`, or set --launcher.address"
        )
    if "://" in found:
        raise TournamentError(
            f"RAY_ADDRESS is {found}; make it HOST:PORT, and run this on a node of the cluster"
        )
    return found


def _reach(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise TournamentError(
            f"no Ray cluster answers at {address} ({error}); start one with `ray start --head`, or"
            " set --launcher.address"
        ) from None


def probe_authentication(address: str) -> str:
    """Probe how the cluster answers a client without a token: `open`, `closed` or `silent`.

    A separate process asks, because Ray fixes its authentication once a process. It receives the
    function's source only, so that it imports nothing but Ray.
    """
    command = [sys.executable, "-P", "-c", f"{inspect.getsource(_probe)}\n_probe({address!r})"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return "silent"
    answers = done.stdout.strip().splitlines() or ["silent"]
    return answers[-1]


def _probe(address: str) -> None:
    """Print how the cluster answers: `open` (without a token), `closed` (it asks for one), `silent`
    (neither)."""
    import os

    os.environ["RAY_AUTH_MODE"] = "disabled"
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        os.environ.pop(name, None)
    from ray._raylet import GcsClient
    from ray.exceptions import AuthenticationError

    answer = "open"
    try:
        GcsClient(address=address).get_all_node_info(timeout=10)
    except AuthenticationError:
        answer = "closed"
    except Exception:
        answer = "silent"
    print(answer, flush=True)
    os._exit(0)  # skip the client's own shutdown, which may take long


def _build_refusal(address: str, error: Exception) -> TournamentError:
    return TournamentError(
        f"the cluster at {address} wants a token ({str(error).split('. ')[0]}); set"
        " RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH to the cluster's"
    )


def _list_addresses(address: str) -> list[str]:
    try:
        nodes = GcsClient(address=address).get_all_node_info(timeout=20).values()
    except AuthenticationError as error:
        raise _build_refusal(address, error) from None
    except (RayError, RuntimeError) as error:
        raise TournamentError(f"the Ray cluster at {address} does not answer: {error}") from None
    return [str(node.node_manager_address) for node in nodes if node.state == 0]  # 0: alive


def _keep_on_loopback() -> None:
    """Keep Ray from replacing 127.0.0.1 by this machine's outward address, at which such a cluster
    does not listen."""
    ray_constants.ENABLE_RAY_CLUSTER = False


# --- the nodes ------------------------------------------------------------------------------------


class Cluster:
    """Nodes of the cluster, read by a thread, since a request to a dead head blocks for as long as
    Ray retries."""

    def __init__(self, settings: RaySettings) -> None:
        self.is_ours = connect(settings)
        self.view = read_nodes()
        """Nodes as last read: at most about a second old while the head answers."""
        self._asked_since: float | None = None
        self._requested: list[dict[str, float]] | None = None
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._thread = start_thread(self._follow_nodes, name="ray nodes")

    @property
    def is_silent(self) -> bool:
        """True while the head does not answer."""
        since = self._asked_since
        return since is not None and time.monotonic() - since > REFRESH_SECONDS * 5

    def refresh(self) -> None:
        """Read the nodes again now. Raises TournamentError when the head has been silent too
        long."""
        since = self._asked_since
        if since is not None and time.monotonic() - since > HEAD_SECONDS:
            raise TournamentError(
                "the head of the Ray cluster is gone; run the same command again on a new cluster; "
                "finished pods are kept"
            )
        self._wake.set()

    def request(self, bundles: Sequence[Mapping[str, float]]) -> None:
        """Request resources from the autoscaler; an empty request withdraws the last one."""
        self._requested = [dict(bundle) for bundle in bundles]
        self._wake.set()

    def _follow_nodes(self) -> None:
        while not self._closing.is_set():
            self._wake.wait(REFRESH_SECONDS)
            self._wake.clear()
            # A request that fails at once does not end the head's silence.
            self._asked_since = self._asked_since or time.monotonic()
            try:
                self._ask_for_more()
                self.view = read_nodes()
            except Exception:  # may be brief; `refresh` raises after a long silence
                self._closing.wait(REFRESH_SECONDS)
                continue
            self._asked_since = None

    def _ask_for_more(self) -> None:
        requested = self._requested
        if requested is not None:
            request_resources(bundles=requested)
            if self._requested is requested:
                self._requested = None

    def close(self) -> None:
        """Withdraw the request and disconnect; give up after a few seconds if the head does not
        answer."""

        def disconnect() -> None:
            self._thread.join()
            with contextlib.suppress(Exception):
                self._ask_for_more()
            if self.is_ours:
                ray.shutdown()

        silent = self.is_silent
        self.request([])
        self._closing.set()
        start_thread(disconnect, name="ray leaving").join(1.0 if silent else CLOSE_SECONDS)


def read_nodes() -> ClusterView:
    """Read all living nodes and their resources."""
    totals = state.total_resources_per_node()
    available = state.available_resources_per_node()
    leaving = state.get_draining_nodes()
    nodes = {
        name: Node(
            name, total, available.get(name, {}), leaving[name] / 1000 if name in leaving else None
        )
        for name, total in totals.items()
    }
    config = state.get_cluster_config()
    growth = (
        tuple(dict(group.resources) for group in config.node_group_configs if group.max_count != 0)
        if config is not None and config.node_group_configs
        else None
    )
    return ClusterView(nodes, growth)
