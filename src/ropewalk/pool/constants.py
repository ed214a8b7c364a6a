"""Constants: code and values that many tasks need, sent to a host or a worker once.

A map's function with what it closes over, and a value given to `pool.put`, are pickled
once, named by the hash of their bytes, and sent ahead of the first task that needs
them: small ones on the worker's link, large ones as a blob of the host, where every
worker maps the same memory (read-only).
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ropewalk.processes.code_parts import value_of
from ropewalk.transport.blobs import BlobRef, pack, total_bytes
from ropewalk.transport.frames import Part

HOST_MIN_BYTES = 8 * 1024
"""Bytes. Constants of at least this size are sent to each host once, and mapped there; smaller ones are sent to each
worker. Mapping costs a worker some 50 µs; but workers may be many, and the weights of a small policy are new in each
generation."""


class Constant:
    """One constant at the sender: its bytes, or the memory file that holds them."""

    def __init__(self, id: str, parts: list[Part], needs: Iterable[Constant] = ()) -> None:
        """Copy the parts, as the caller may change the value once this has returned.

        Args:
            id: the hash of the parts.
            parts: as `code_parts.parts_of` returns them.
            needs: other constants that the value refers to.

        Raises:
            OSError: there is no memory or no file descriptor for a large constant.
        """
        self.id = id
        self.size_bytes: int = total_bytes(parts)
        self.label: str = ""
        """The name of the function, if it is one."""
        self.needs: tuple[Constant, ...] = tuple(needs)
        self.users = 0
        self.parts: list[Part] = []
        self.blob: BlobRef | None = None
        self.fd: int = -1
        if self.size_bytes >= HOST_MIN_BYTES:
            self.blob = BlobRef(self.id, tuple(memoryview(part).nbytes for part in parts))
            with _large_lock:
                twin = _large.get(id)  # another pool has it: share the memory
                self.fd = os.dup(twin.fd) if twin and twin.fd >= 0 else pack(parts, f"ropewalk-{self.id[:12]}")
                _large[id] = self
        else:
            self.parts = [bytes(part) for part in parts]

    def close(self) -> None:
        """Free the memory; may be called twice."""
        with _large_lock:
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1
        self.parts = []


_large: weakref.WeakValueDictionary[str, Constant] = weakref.WeakValueDictionary()
_large_lock = threading.Lock()


class ConstantRef:
    """A reference that `pool.put` returns; a task that is passed it gets the value itself.

    The value is sent to each host once, and may be dropped once this reference is dropped, or the pool ends.

    Args:
        constant: held until this reference is dropped.
        home: what stands for the pool that has the constant.
        on_dropped: called then, in the thread that drops it, perhaps by the garbage collector.
    """

    def __init__(self, constant: Constant, home: object, on_dropped: Callable[[], object]) -> None:
        self._constant = constant
        self._home = home
        weakref.finalize(self, on_dropped).atexit = False

    def __repr__(self) -> str:
        return f"<ropewalk constant of {self._constant.size_bytes} bytes>"

    def __reduce__(self) -> tuple[Any, ...]:
        home, constants = getattr(_collecting, "into", _NOWHERE)
        if home is not self._home:  # the pool that ends first would free the memory that the other one uses
            raise TypeError(
                "a constant of pool.put can only be passed to tasks of its pool (as an argument, or in what a function "
                "closes over); put the value into the other pool as well, and outside a pool pickle the value itself"
            )
        constants[self._constant.id] = self._constant
        return arrived, (self._constant.id,)


_collecting = threading.local()
_NOWHERE: tuple[object, dict[str, Constant]] = (None, {})


class collecting:
    """A block within which pickling records the constants that it meets, in the dictionary given to the block.

    (A context manager made from a generator would take four times as long, for each task.)

    Args:
        home: what stands for the pool whose constants these are; those of others are refused.
    """

    def __init__(self, home: object) -> None:
        self._home = home

    def __enter__(self) -> dict[str, Constant]:
        found: dict[str, Constant] = {}
        _collecting.into = self._home, found
        return found

    def __exit__(self, *exc: object) -> None:
        _collecting.into = _NOWHERE


_arrived: dict[str, Any] = {}
_failed: dict[str, Exception] = {}


def arrived(id: str) -> Any:
    """Return the value of a constant that this worker has received.

    Raises:
        Exception: what `fail` was given: the value could not be unpacked.
    """
    if id in _failed:
        raise _failed[id]
    return _arrived[id]


def fail(id: str, error: Exception) -> None:
    """Note that a constant could not be unpacked in this worker: the tasks that need it fail with this error."""
    _failed[id] = error


def arrive(id: str, parts: Sequence[Part], namespace: Any) -> None:
    """Unpack a constant in a worker and keep its value.

    Raises:
        Exception: whatever unpickling raises.
    """
    _arrived[id] = value_of(parts, namespace.install)


def depart(ids: Iterable[str]) -> None:
    """Forget constants in a worker."""
    for id in ids:
        _arrived.pop(id, None)
        _failed.pop(id, None)
