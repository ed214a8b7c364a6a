"""The callbacks of a pool's results, run in a thread of their own: user code never runs on the loop."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Callbacks:
    """Runs the callbacks of one pool one after the other, in a thread that starts with the first of them."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, call: Callable[[], None]) -> None:
        """Run a call soon; may be called from any thread."""
        self._calls.put(call)
        if self._thread is None:
            with self._starting:  # results of maps without tasks are told in the threads of their callers
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="ropewalk-callbacks", daemon=True)
                    thread.start()
                    self._thread = thread

    def end(self) -> None:
        """Run the waiting calls and end the thread; may be called twice, and by a callback."""
        if self._thread and self._thread is not threading.current_thread():
            self._calls.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while call := self._calls.get():
            try:
                call()
            except BaseException:  # user code raised it, perhaps `SystemExit`; multiprocessing's result thread would
                # die of it, and a caller that waits for a later callback would wait for ever
                logger.exception("a callback raised")
            del call  # otherwise the objects it refers to would live until the next call
