"""`StoreReader`: reads the store of runs in threads, so that the page never waits for a disk or a database.

page ── await reader.read(function) ──▶ thread: function(store) ──▶ result
                                        the store is opened once, and again after it could not be
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from nicegui import run

from ropewalk.errors import FileNotTrusted, RunNotFound, SettingsError, StoreError, StoreMissing

if TYPE_CHECKING:  # stores need an extra
    from ropewalk.tracking.store.store import RunStore

T = TypeVar("T")
RESPONSE_S = 30.0
"""How long a page may read before it is shown: a database may be slow at first."""
StoreOpener = Callable[[], "RunStore"]


class StoreUnreadable(Exception):
    """What the page shows in place of what it would read: what happened, and what to do.

    The errors of a store become this one, so that a page handles a single exception.

    Args:
        message: the sentence.
        title: above it.
    """

    def __init__(self, message: str, title: str = "The runs cannot be shown") -> None:
        super().__init__(message)
        self.title = title


class StoreReader:
    """Reads a store in threads.

    Args:
        opener: opens the store; called at first use, in a thread.
    """

    def __init__(self, opener: StoreOpener) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self._store: RunStore | None = None

    async def read(self, function: Callable[[RunStore], T]) -> T:
        """Call a function with the store, in a thread.

        Raises:
            StoreUnreadable: the store cannot be opened or read; the message says what to do.
        """
        found = await run.io_bound(self._read, function)
        if found is None:  # so does `io_bound` when the page is ending
            raise StoreUnreadable("the page is ending")
        return found[0]

    def read_now(self, function: Callable[[RunStore], T]) -> T:
        """Call a function with the store, in this thread; as `read`."""
        return self._read(function)[0]

    def _read(self, function: Callable[[RunStore], T]) -> tuple[T]:
        try:
            return (function(self._opened()),)
        except StoreMissing as error:
            words = f"{error}: `with ropewalk.track():` in a script, or `ropewalk search`"
            raise StoreUnreadable(words, "No run yet") from error
        except (StoreError, SettingsError, FileNotTrusted, RunNotFound) as error:
            raise StoreUnreadable(str(error)) from error
        except ModuleNotFoundError as error:
            hint = "" if "pip install" in str(error) else "; pip install 'ropewalk[tracking]'"
            raise StoreUnreadable(f"{error}{hint}") from error

    def close(self) -> None:
        """Close the store; it is opened again if it is read again."""
        with self._lock:
            store, self._store = self._store, None
        if store is not None:
            store.close()

    def _opened(self) -> RunStore:
        with self._lock:
            if self._store is None:
                self._store = self._opener()
            return self._store


__all__ = ["RESPONSE_S", "StoreOpener", "StoreReader", "StoreUnreadable"]
