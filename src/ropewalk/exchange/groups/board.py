"""A board where members of a group leave notes for each other, beside the collectives.

A collective that hangs cannot tell whom it waits for. So every member posts now and then how far it is, and who has
waited too long reads what the others posted last. Only the last note of each member is kept.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Protocol


class Board(Protocol):
    """One member's view of the notes of all."""

    def post(self, note: bytes) -> None:
        """Replace this member's note; from any thread."""
        ...

    def read(self) -> list[bytes | None]:
        """The last note of each member by rank, None where there was none yet; from any thread.

        Raises:
            TimeoutError: it cannot be read just now; never waits for longer than a second or two.
        """
        ...


class MemoryBoard:
    """A board of members that are threads of one process."""

    def __init__(self, rank: int, notes: list[bytes | None]) -> None:
        self._rank = rank
        self._notes = notes

    @classmethod
    def make(cls, size: int) -> list[MemoryBoard]:
        """One view for each member."""
        notes: list[bytes | None] = [None] * size
        return [cls(rank, notes) for rank in range(size)]

    def post(self, note: bytes) -> None:
        self._notes[self._rank] = note

    def read(self) -> list[bytes | None]:
        return list(self._notes)


class Store(Protocol):
    """What a board needs of torch's key-value stores."""

    def set(self, key: str, value: str, /) -> None: ...

    def check(self, keys: list[str], /) -> bool: ...

    def get(self, key: str, /) -> bytes: ...


class StoreBoard:
    """A board on the store through which torch.distributed found its members.

    Args:
        store: a TCPStore, FileStore or PrefixStore; a connection of its own (`store.clone()`) keeps the board readable
            while another thread waits for a key.
        rank: of this member.
        size: of the group.
        prefix: begins the keys; another one for each group and epoch.
        patience_s: how long a read may take; the store's own timeout is that of the whole process group.
    """

    def __init__(self, store: Store, rank: int, size: int, prefix: str, patience_s: float = 1.5) -> None:
        self._store = store
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._reading: Future[list[bytes | None]] | None = None
        self._rank = rank
        self._keys = [f"{prefix}/note/{member}" for member in range(size)]

    def post(self, note: bytes) -> None:
        self._store.set(self._keys[self._rank], note.decode())

    def read(self) -> list[bytes | None]:
        # In a thread, because a store whose host is frozen does not answer, and cannot be told not to wait.
        with self._lock:
            if self._reading is None or self._reading.done():
                self._reading = Future()
                threading.Thread(target=self._fetch, args=(self._reading,), name="ropewalk-board", daemon=True).start()
            reading = self._reading
        return reading.result(self._patience_s)

    def _fetch(self, reading: Future[list[bytes | None]]) -> None:
        try:
            # `get` waits for a key that nobody has set; `check` does not.
            reading.set_result([self._store.get(key) if self._store.check([key]) else None for key in self._keys])
        except Exception as error:
            reading.set_exception(error)
