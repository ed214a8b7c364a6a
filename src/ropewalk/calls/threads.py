"""Threads for concurrent calls: idle ones are reused, and the end of the process does not wait for them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

_IDLE_S = 10.0
"""Seconds after which an idle thread ends."""


class Threads:
    """Runs each call in a thread of its own; idle threads are reused."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._calls: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._num_idle = 0
        self._closed = False

    def run(self, call: Callable[[], object]) -> None:
        """Run `call` at once, in another thread."""
        with self._lock:
            if self._num_idle:
                self._num_idle -= 1
                self._calls.put(call)
                return
        threading.Thread(target=self._work, args=(call,), name=self._name, daemon=True).start()

    def close(self) -> None:
        """End idle threads; the others end with their calls."""
        with self._lock:
            self._closed = True
            num_idle, self._num_idle = self._num_idle, 0
        for _ in range(num_idle):
            self._calls.put(None)

    def _work(self, call: Callable[[], object] | None) -> None:
        while call is not None:
            call()
            with self._lock:
                if self._closed:
                    return
                self._num_idle += 1
            try:
                call = self._calls.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if not self._num_idle:  # a call was put there for this thread at this moment
                        call = self._calls.get()
                        continue
                    self._num_idle -= 1
                return
