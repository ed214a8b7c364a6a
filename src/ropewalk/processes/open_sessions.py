"""The sessions that are open in this process: they are closed at its end, and forgotten in its forked children."""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import threading
from collections.abc import Callable
from typing import Protocol


class Open(Protocol):
    """The interface of a session here."""

    def close(self) -> None:
        """End it."""
        ...

    def kill(self) -> None:
        """End it at once, without notice."""
        ...

    def forget(self) -> None:
        """In a forked child: leave it to the parent."""
        ...

    def settle_records(self, timeout_s: float) -> bool:
        """Wait until the records that its processes have written so far were handled."""
        ...


_lock = threading.RLock()
_sessions: dict[int, Open] = {}
_last_calls: list[Callable[[], object]] = []
_hooked = False


def add(session: Open) -> None:
    """Register a session; it may be registered already."""
    global _hooked
    with _lock:
        _sessions[id(session)] = session
        if not _hooked:
            # Exit handlers that are registered later are called earlier: multiprocessing's own one waits for children
            # of ours that have to be told by ours, and must find them gone.
            importlib.import_module("multiprocessing.util")
            atexit.register(_end)
            os.register_at_fork(after_in_child=_forget_all)
            _hooked = True


def remove(session: Open) -> None:
    """Unregister a session that has ended."""
    with _lock:
        _sessions.pop(id(session), None)


def all_sessions() -> list[Open]:
    """Return the registered sessions."""
    with _lock:
        return list(_sessions.values())


def close_all() -> None:
    """End every session of this process."""
    for session in all_sessions():
        session.close()


def kill_all() -> None:
    """End every session of this process at once, without notice."""
    for session in all_sessions():
        session.kill()


def before_closing(call: Callable[[], object]) -> None:
    """Have a call made at the end of this process, immediately before its sessions end."""
    _last_calls.append(call)


def _end() -> None:
    sessions = all_sessions()  # one whose end was interrupted is not registered any more
    try:
        try:
            for call in _last_calls:
                call()
        finally:
            close_all()
    except KeyboardInterrupt:  # a user who interrupts the end, too, does not want to wait, nor to see where it was
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # one more ends this process, without a traceback of this function
        for session in sessions:
            session.kill()


def _forget_all() -> None:
    global _lock
    _lock = threading.RLock()  # another thread may have held it at the fork
    for session in list(_sessions.values()):
        session.forget()
    _sessions.clear()
