"""Values that stay with the workers: what travels is where they are.

    worker on n1: held = put(state) ─▶ memory of n1        launcher: keeps the ObjectRef, a few hundred bytes
                                           │
    worker on n2: held.get() ◀── directly ─┘                freed when nobody has an ObjectRef of it any more

The value outlives the process that held it, and is lost with its host. In a process that no agent of Ropewalk has
started (the launcher, a process of another kind of pool) the value goes along with its ObjectRef.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ropewalk.errors import ObjectLost, PeerLost
from ropewalk.population.state_file import read_state, write_state
from ropewalk.processes import bootstrap
from ropewalk.sharing.box import Box
from ropewalk.transport.pickle_with_main import dumps_with_code
from ropewalk.transport.serialization import loads


class _ValueHome(Protocol):
    """Where a value is."""

    def get(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Pickle:
    """A value that goes along, as it was when it was held."""

    pickled: bytes
    buffers: tuple[bytes, ...]

    @classmethod
    def of(cls, value: Any) -> _Pickle:
        payload = dumps_with_code(value, what="held value")
        return cls(payload.pickle, tuple(bytes(buffer) for buffer in payload.buffers))

    def get(self) -> Any:
        return loads(self.pickled, [bytearray(buffer) for buffer in self.buffers])


class ObjectRef:
    """A value that was held by `put`; picklable, and equal to its copies."""

    __slots__ = ("_place",)

    def __init__(self, place: _ValueHome) -> None:
        self._place = place

    def __repr__(self) -> str:
        return f"<Held on {self._place.host}>" if isinstance(self._place, Box) else "<Held>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and self._place == other._place

    def __hash__(self) -> int:
        return hash(self._place)

    def get(self) -> Any:
        """A copy of the value as it was when it was held; arrays are the caller's own, and writable.

        Raises:
            HeldLost: the host that had it is gone.
        """
        try:
            return self._place.get()
        except PeerLost as error:
            host = self._place.host if isinstance(self._place, Box) else ""
            raise ObjectLost(
                f"a value that was held on {host} is lost: {error}. Go on from another copy, or from a file of save()",
                peer=error.peer,
                host=host,
            ) from error

    def save(self, path: str | Path) -> int:
        """Write the value to a file that only this user can read, whole or not at all.

        Called in a worker, it does not pass through the launcher.

        Returns:
            The size of the file in bytes.

        Raises:
            OSError: it cannot be written; what was there before is still there.
            HeldLost: as `get`.
        """
        pickle = _Pickle.of(self.get())
        return write_state(Path(path), [pickle.pickled, *pickle.buffers])

    @staticmethod
    def load(path: str | Path) -> ObjectRef:
        """Hold, here, the value in a file that `save` has written, by this user.

        The file is a pickle, which runs code: one that another user could have written is refused.

        Raises:
            OSError: there is no such file.
            FileNotTrusted: it is of another user than this one and root, or others may write to it or its folder.
            CheckpointCorrupt: it is damaged, or something else.
        """
        pickled, *buffers = read_state(Path(path))
        return put(_Pickle(pickled, tuple(buffers)).get())


def put(value: Any) -> ObjectRef:
    """Keep a copy of a value with the host of this process, for whoever is given the `ObjectRef`.

    Args:
        value: picklable; pickled before this returns, so that it may change afterwards.

    Raises:
        NotPicklable: it cannot be sent; `path` says which part of it.
    """
    return ObjectRef(Box(value) if bootstrap.current else _Pickle.of(value))


__all__ = ["ObjectLost", "ObjectRef", "put"]
