"""Boxes: a value that stays on the host where it was made, from where other processes copy it.

Box(value) ─ pickled once ─▶ depot of this host ─▶ get() on this host: maps the same memory, copy-on-write
     │                                        └──▶ get() on another:   its bytes, directly from here
     └─ the handle goes wherever a pickle goes; the value is freed with the last handle
"""

from __future__ import annotations

from typing import Any

from ropewalk.processes.session import Session
from ropewalk.sharing.shared_object import SharedObject, create


class Box(SharedObject):
    """A handle of a value in the memory of a host, where it outlives the process that put it there.

    Args:
        value: pickled before this returns.
        session: the session of its run; by default that of this process.

    Raises:
        NotPicklable: the value cannot be sent; `path` says which part of it.
        StartFailed: there is no depot to hold it, and none can be started.
    """

    def __init__(self, value: Any, *, session: Session | None = None) -> None:
        (reference,) = create("box", session=session)
        SharedObject.__init__(self, reference, is_new=True)
        self._ask_with("put", value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and self._reference == other._reference

    def __hash__(self) -> int:
        return hash(self._reference)

    @property
    def host(self) -> str:
        """The host that holds the value."""
        return self._reference.label.rpartition(" on ")[2]

    def get(self) -> Any:
        """Return a copy of the value; the caller owns its arrays.

        Raises:
            PeerLost: the host, or the depot that held the value, is gone.
        """
        return self._ask("get")


__all__ = ["Box"]
