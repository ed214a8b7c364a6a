"""Named memory (`multiprocessing.shared_memory`) that a process only attaches to outlives that process.

Up to Python 3.12 a process registers all named memory that it has opened, made or not, with a helper process, which
destroys it when the process ends (https://github.com/python/cpython/issues/82300). The processes of one program of
multiprocessing share that helper, so nothing is destroyed before the program ends. Our processes have one each.
"""

from __future__ import annotations

import inspect
import threading
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from typing import Any

_KIND = "shared_memory"


def keep_memory_of_others() -> None:
    """Leave memory that this process and its forked children only attach to, to be destroyed by its creator."""
    make: Any = SharedMemory.__init__
    if "track" in inspect.signature(make).parameters:  # from Python 3.13 on
        noted = _strike_off_what_is_unlinked()

        def make_or_attach(
            self: SharedMemory, name: str | None = None, create: bool = False, size: int = 0, *, track: Any = None
        ) -> None:
            tracked = create if track is None else track
            make(self, name, create, size, track=tracked)
            if tracked:
                noted.add(self.name)

    else:
        opening = threading.local()
        _note_only_what_is_made(opening)

        def make_or_attach(
            self: SharedMemory, name: str | None = None, create: bool = False, size: int = 0, *, track: Any = None
        ) -> None:
            opening.attaches = not create
            try:
                make(self, name, create, size, **({} if track is None else {"track": track}))
            finally:
                opening.attaches = False

    SharedMemory.__init__ = make_or_attach


def _strike_off_what_is_unlinked() -> set[str]:
    """Let an object that only attached also tell the helper that it has destroyed what this process made.

    Returns:
        the names of what the helper was told of, to which the caller adds.
    """
    unlink: Any = SharedMemory.unlink
    noted: set[str] = set()

    def unlink_and_strike_off(self: SharedMemory) -> None:
        unlink(self)
        if self.name in noted:
            noted.discard(self.name)
            if not getattr(self, "_track"):  # noqa: B009 - otherwise it has told the helper itself
                resource_tracker.unregister(getattr(self, "_name"), _KIND)  # noqa: B009

    SharedMemory.unlink = unlink_and_strike_off
    return noted


def _note_only_what_is_made(opening: threading.local) -> None:
    tracker: Any = resource_tracker
    register, unregister = tracker.register, tracker.unregister
    noted: set[str] = set()

    def note(name: str, kind: str) -> None:
        if kind == _KIND:
            if getattr(opening, "attaches", False):
                return
            noted.add(name)
        register(name, kind)

    def strike_off(name: str, kind: str) -> None:
        if kind == _KIND:
            if name not in noted:
                return
            noted.discard(name)
        unregister(name, kind)

    tracker.register, tracker.unregister = note, strike_off


__all__ = ["keep_memory_of_others"]
