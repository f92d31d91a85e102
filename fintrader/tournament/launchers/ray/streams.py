"""What the tasks of a Ray cluster have to say, each heard until it has truly ended.

A task that has said its last word is still returning: taking its placement group away then, or no longer listening,
kills it half done and leaves behind an error that nobody reads, which Ray prints as unhandled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fintrader.tournament.launchers.base import LEAVE_SECONDS
from fintrader.tournament.launchers.ray.cluster import Resources, as_task, import_ray
from fintrader.tournament.launchers.ray.tasks import LAST_WORDS, words

LISTEN_SECONDS = 0.2


Message = dict[str, Any]


class Stream:
    """One task, with the placement group that it lives in. `ended` is called once, after the group is released."""

    def __init__(
        self, generator: Any, group: Any, hear: Callable[[Message], None], ended: Callable[[Exception | None], None]
    ) -> None:
        self.generator, self.group, self.hear, self.ended = generator, group, hear, ended
        self.error: Exception | None = None
        self.silent = False
        """Stopped: whatever else it says is of no interest."""
        self.due: float | None = None
        """When its end is overdue (monotonic seconds)."""

    def leave_soon(self) -> None:
        """From now on its end is waited for."""
        self.due = self.due or time.monotonic() + LEAVE_SECONDS


class Streams:
    """All tasks of one launcher, listened to by a thread."""

    def __init__(self) -> None:
        self._streams: set[Stream] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True, name="ray listener")
        self._thread.start()

    def start(
        self,
        task: dict[str, Any],
        need: Resources,
        name: str,
        hear: Callable[[Message], None],
        ended: Callable[[Exception | None], None],
        *,
        group: Any = None,
    ) -> Stream:
        """Hand a task to Ray, into the first bundle of `group` if there is one. Both calls come from the listener."""
        options: dict[str, Any] = {
            "num_cpus": need["CPU"],
            "num_gpus": need.get("GPU", 0.0),
            "resources": {name: amount for name, amount in need.items() if name not in ("CPU", "GPU")},
            "num_returns": "streaming",
            "max_retries": 0,
            "name": name,
        }
        if group is not None:
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        stream = Stream(as_task(words, need).options(**options).remote(task), group, hear, ended)
        with self._lock:
            self._streams.add(stream)
        return stream

    def stop(self, stream: Stream) -> None:
        """Kill the task's process, without another call. Its group is released when it is gone."""
        stream.silent = True
        stream.leave_soon()
        with suppress(Exception):
            import_ray().cancel(stream.generator, force=True)

    def close(self, *, wait: bool = True) -> None:
        """Hear those who were stopped to their end, as long as they have. Without a head that would be in vain."""
        deadline = time.monotonic() + LEAVE_SECONDS / 2
        while wait and self._streams and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._closing.set()
        self._thread.join(timeout=2)

    def _listen(self) -> None:
        ray = import_ray()
        while not self._closing.is_set():
            with self._lock:
                streams = {stream.generator: stream for stream in self._streams}
            if not streams:
                self._closing.wait(0.05)
                continue
            try:
                ready, _ = ray.wait(list(streams), num_returns=1, timeout=LISTEN_SECONDS, fetch_local=False)
                if ready and len(streams) > 1:
                    ready, _ = ray.wait(list(streams), num_returns=len(streams), timeout=0, fetch_local=False)
            except Exception:  # disconnected: whoever closed us knows
                self._closing.wait(LISTEN_SECONDS)
                continue
            for generator in ready:
                self._hear(streams[generator], ray)
            for stream in streams.values():
                if stream.due is not None and time.monotonic() > stream.due:
                    with suppress(Exception):
                        ray.cancel(stream.generator, force=True)
                    self._end(stream)

    def _hear(self, stream: Stream, ray: Any) -> None:
        """Take the next word. An error is not the end: another may follow, and is to be read as well."""
        try:
            word: Message = ray.get(next(stream.generator))
        except StopIteration:
            self._end(stream)
        except ray.exceptions.RayError as error:
            stream.error = stream.error or error
            stream.leave_soon()
        else:
            if word["kind"] in LAST_WORDS:
                stream.leave_soon()
            if not stream.silent:
                stream.hear(word)

    def _end(self, stream: Stream) -> None:
        with self._lock:
            if stream not in self._streams:
                return
            self._streams.discard(stream)
        if stream.group is not None:
            from ray.util import remove_placement_group

            with suppress(Exception):
                remove_placement_group(stream.group)
        if not stream.silent:
            stream.ended(stream.error)
