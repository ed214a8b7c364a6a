"""Processes that are gone or struck off: all processes that accept callers are told, and refuse them from then on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ropewalk.processes.messages import Retired, RetiredProcess
from ropewalk.transport.credentials import ProcessCertificate
from ropewalk.transport.loop import Loop


class Retirements:
    """All processes of a run that were retired. For any thread; listeners are called on the loop's.

    Args:
        loop: the loop that calls the listeners.
    """

    def __init__(self, loop: Loop) -> None:
        self.ids: set[str] = set()
        """Ids of all of them: no process gets a token in their names."""
        self._loop = loop
        self._lock = threading.RLock()  # as in `BlobDirectory`
        self._untold: list[RetiredProcess] = []
        self._listeners: list[Callable[[Retired], object]] = []
        self._also_tell: Callable[[Retired], object] = lambda _: None

    def pass_on(self, tell: Callable[[Retired], object]) -> None:
        """Pass processes that are noted here, and not those reported from elsewhere, on to a call."""
        self._also_tell = tell

    def listen(self, call: Callable[[Retired], object]) -> Callable[[], object]:
        """Have a call made whenever processes are gone or struck off; returns a function that ends this."""
        self._listeners.append(call)
        return lambda: self._listeners.remove(call)

    def note(self, id: str, certificate: ProcessCertificate | None, *, is_cut: bool) -> None:
        """Retire a process; reported once, together with others of the same moment.

        Args:
            id: id of the process.
            certificate: certificate of the process, if it had one.
            is_cut: whether it may still be running, so that its links have to be closed.
        """
        with self._lock:
            if id in self.ids:
                return
            self.ids.add(id)
            is_first = not self._untold
            self._untold.append(RetiredProcess(id, certificate.fingerprint if certificate else "", is_cut))
        if is_first:
            self._loop.call_soon(self._tell)

    def tell_listeners(self, news: Retired) -> None:
        """Call all listeners. From the loop's thread."""
        for call in list(self._listeners):
            call(news)

    def _tell(self) -> None:
        with self._lock:
            news, self._untold = Retired(self._untold), []
        self.tell_listeners(news)
        self._also_tell(news)
