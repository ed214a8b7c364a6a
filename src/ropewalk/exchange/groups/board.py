"""A board where members of a group leave notes for each other, beside the collectives.

A collective that hangs cannot tell whom it waits for. So every member posts now and then how far it is, and who has
waited too long reads what the others posted last. Only the last note of each member is kept.
"""

from __future__ import annotations

from typing import Protocol


class Board(Protocol):
    """One member's view of the notes of all."""

    def post(self, note: bytes) -> None:
        """Replace this member's note; from any thread."""
        ...

    def read(self) -> list[bytes | None]:
        """The last note of each member by rank, None where there was none yet; from any thread, never waits."""
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
    """

    def __init__(self, store: Store, rank: int, size: int, prefix: str) -> None:
        self._store = store
        self._rank = rank
        self._keys = [f"{prefix}/note/{member}" for member in range(size)]

    def post(self, note: bytes) -> None:
        self._store.set(self._keys[self._rank], note.decode())

    def read(self) -> list[bytes | None]:
        # `get` waits for a key that nobody has set; `check` does not.
        return [self._store.get(key) if self._store.check([key]) else None for key in self._keys]
