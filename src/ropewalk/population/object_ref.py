"""References to values that stay on the host of a worker: only the reference is sent.

    worker on n1: ref = put(state) ──▶ memory of n1        launcher: keeps the ObjectRef, a few hundred bytes
                                           │
    worker on n2: ref.get() ◀─── directly ─┘                freed when no ObjectRef of it is left

The value outlives the process that stored it, and is lost with its host. In a process that no agent of Ropewalk has
started (the launcher, or a worker of another kind of pool), the value is pickled into its ObjectRef.
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
    """The place where a value is stored."""

    def get(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class _Pickle:
    """A value that is stored in its reference, pickled when `put` was called."""

    pickled: bytes
    buffers: tuple[bytes, ...]

    @classmethod
    def of(cls, value: Any) -> _Pickle:
        payload = dumps_with_code(value, what="held value")
        return cls(payload.pickle, tuple(bytes(buffer) for buffer in payload.buffers))

    def get(self) -> Any:
        return loads(self.pickled, [bytearray(buffer) for buffer in self.buffers])


class ObjectRef:
    """A reference to a value stored by `put`; picklable, and equal to its copies."""

    __slots__ = ("_place",)

    def __init__(self, place: _ValueHome) -> None:
        self._place = place

    def __repr__(self) -> str:
        return f"<ObjectRef on {self._place.host}>" if isinstance(self._place, Box) else "<ObjectRef>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectRef) and self._place == other._place

    def __hash__(self) -> int:
        return hash(self._place)

    def get(self) -> Any:
        """Return a copy of the value as it was when it was stored; arrays belong to the caller and are writable.

        Raises:
            ObjectLost: the host that stored the value is gone.
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
        """Write the value to a file that only this user can read, atomically.

        Called in a worker, it does not send the value through the launcher.

        Args:
            path: path of the file; its folder must exist.

        Returns:
            The size of the file in bytes.

        Raises:
            OSError: the file cannot be written; the previous file is still there.
            ObjectLost: as in `get`.
        """
        pickle = _Pickle.of(self.get())
        return write_state(Path(path), [pickle.pickled, *pickle.buffers])

    @staticmethod
    def load(path: str | Path) -> ObjectRef:
        """Store the value of a file that `save` has written on the host of this process, and return a reference to it.

        The file is a pickle, which runs code: a file that another user could have written is refused.

        Args:
            path: path of the file.

        Raises:
            OSError: there is no such file.
            FileNotTrusted: the file belongs to another user than this one and root, or others may change it or its
                folder.
            CheckpointCorrupt: the file is damaged, or `save` did not write it.
        """
        pickled, *buffers = read_state(Path(path))
        return put(_Pickle(pickled, tuple(buffers)).get())


def put(value: Any) -> ObjectRef:
    """Store a copy of a value on the host of this process, and return a reference that other processes can use.

    Args:
        value: any picklable value; it is pickled before this returns, so that it may be changed afterwards.

    Returns:
        The reference. The value is freed when no copy of the reference is left.

    Raises:
        NotPicklable: the value cannot be pickled; `path` names the part that cannot.
    """
    return ObjectRef(Box(value) if bootstrap.current else _Pickle.of(value))


__all__ = ["ObjectLost", "ObjectRef", "put"]
