"""A board where members of a group leave notes for each other, apart from the collectives.

A collective that hangs cannot tell which member it waits for. So every member regularly posts its progress, and a
member that has waited too long reads the others' last notes. Only the last note of each member is kept.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Protocol


class Board(Protocol):
    """One member's view of the notes of all members."""

    def post(self, note: bytes) -> None:
        """Replace this member's note; may be called from any thread."""
        ...

    def read(self) -> list[bytes | None]:
        """Return the last note of each member by rank, None where there is none yet; may be called from any thread.

        Raises:
            TimeoutError: the board cannot be read at the moment; the call never waits longer than a second or two.
        """
        ...


class MemoryBoard:
    """A board for members that are threads of one process."""

    def __init__(self, rank: int, notes: list[bytes | None]) -> None:
        self._rank = rank
        self._notes = notes

    @classmethod
    def make(cls, size: int) -> list[MemoryBoard]:
        """Make a view for each of `size` members."""
        notes: list[bytes | None] = [None] * size
        return [cls(rank, notes) for rank in range(size)]

    def post(self, note: bytes) -> None:
        self._notes[self._rank] = note

    def read(self) -> list[bytes | None]:
        return list(self._notes)


class Store(Protocol):
    """The part of torch's key-value stores that a board needs."""

    def set(self, key: str, value: str, /) -> None: ...

    def check(self, keys: list[str], /) -> bool: ...

    def get(self, key: str, /) -> bytes: ...


class StoreBoard:
    """A board on the store through which torch.distributed found its members.

    Args:
        store: a TCPStore, FileStore or PrefixStore; a connection of its own (`store.clone()`) keeps the board readable
            while another thread waits for a key.
        rank: rank of this member.
        size: size of the group.
        prefix: prefix of the keys; different for each group and epoch.
        patience_s: timeout of a read in seconds; the store's own timeout is that of the whole process group.
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
        # In a thread, because a store whose host is frozen does not answer, and its calls take no timeout of their own.
        with self._lock:
            if self._reading is None or self._reading.done():
                self._reading = Future()
                threading.Thread(target=self._fetch, args=(self._reading,), name="ropewalk-board", daemon=True).start()
            reading = self._reading
        return reading.result(self._patience_s)

    def _fetch(self, reading: Future[list[bytes | None]]) -> None:
        try:
            # `get` waits for a key that no member has set; `check` does not.
            reading.set_result([self._store.get(key) if self._store.check([key]) else None for key in self._keys])
        except Exception as error:
            reading.set_exception(error)
