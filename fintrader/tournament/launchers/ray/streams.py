"""The messages of a Ray cluster's tasks, each task read until it has truly ended.

A task that has sent its last message is still returning: releasing its placement group then, or no longer reading,
kills it half done and leaves behind an error that nobody reads, which Ray prints as unhandled.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fintrader.tournament.launchers.base import LEAVE_SECONDS
from fintrader.tournament.launchers.ray.cluster import Resources, import_ray, remote
from fintrader.tournament.launchers.ray.tasks import LAST_MESSAGES, run_task
from fintrader.tournament.spec import Message

WAIT_SECONDS = 0.2


class Stream:
    """One task, with the placement group that it lives in. `ended` is called once, after the group is released."""

    def __init__(
        self,
        generator: Any,
        group: Any,
        on_message: Callable[[Message], None],
        ended: Callable[[Exception | None], None],
    ) -> None:
        self.generator, self.group, self.on_message, self.ended = generator, group, on_message, ended
        self.error: Exception | None = None
        self.silent = False
        """Stopped: whatever else it sends is of no interest."""
        self.deadline: float | None = None
        """When it is to have ended (monotonic seconds)."""

    def leave_soon(self) -> None:
        """From now on its end is waited for."""
        self.deadline = self.deadline or time.monotonic() + LEAVE_SECONDS


class Streams:
    """All tasks of one launcher, read by a thread."""

    def __init__(self) -> None:
        self._streams: set[Stream] = set()
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True, name="ray streams")
        self._thread.start()

    def start(
        self,
        task: dict[str, Any],
        need: Resources,
        name: str,
        on_message: Callable[[Message], None],
        ended: Callable[[Exception | None], None],
        *,
        group: Any = None,
    ) -> Stream:
        """Hand a task to Ray, into the first bundle of `group` if there is one.

        `on_message` and `ended` are called by the reading thread.
        """
        stream = Stream(remote(run_task, need, name, group=group)(task), group, on_message, ended)
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
        """Read those that were stopped to their end, as long as they have; not where the head is gone."""
        deadline = time.monotonic() + LEAVE_SECONDS / 2
        while wait and self._streams and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.02)
        self._closing.set()
        self._thread.join(timeout=2)

    def _read(self) -> None:
        ray = import_ray()
        while not self._closing.is_set():
            with self._lock:
                streams = {stream.generator: stream for stream in self._streams}
            if not streams:
                self._closing.wait(0.05)
                continue
            try:
                ready, _ = ray.wait(list(streams), num_returns=1, timeout=WAIT_SECONDS, fetch_local=False)
                if ready and len(streams) > 1:
                    ready, _ = ray.wait(list(streams), num_returns=len(streams), timeout=0, fetch_local=False)
            except Exception:  # disconnected: whoever closed us knows
                self._closing.wait(WAIT_SECONDS)
                continue
            for generator in ready:
                self._next_message(streams[generator], ray)
            for stream in streams.values():
                if stream.deadline is not None and time.monotonic() > stream.deadline:
                    with suppress(Exception):
                        ray.cancel(stream.generator, force=True)
                    self._end(stream)

    def _next_message(self, stream: Stream, ray: Any) -> None:
        """Take the next message. An error is not the end: another may follow, and is to be read as well."""
        try:
            message: Message = ray.get(next(stream.generator))
        except StopIteration:
            self._end(stream)
        except ray.exceptions.RayError as error:
            stream.error = stream.error or error
            stream.leave_soon()
        else:
            if message["kind"] in LAST_MESSAGES:
                stream.leave_soon()
            if not stream.silent:
                stream.on_message(message)

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
