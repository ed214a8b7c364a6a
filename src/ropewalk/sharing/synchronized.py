"""The wrappers that `Value` and `Array` return: a ctypes object with a lock around each access to it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from ropewalk.sharing.locks import RLock


class SynchronizedBase:
    """A ctypes object and its lock; `with` holds the lock.

    Args:
        obj: an object in shared memory.
        lock: one of Ropewalk's, or any object with `acquire` and `release`; a new one by default.
        ctx: a context whose session a new lock belongs to.
    """

    def __init__(self, obj: Any, lock: Any = None, ctx: Any = None) -> None:
        lock = lock or RLock(ctx=ctx)
        self._obj = obj
        self._lock = lock
        self.acquire: Callable[..., bool] = lock.acquire
        self.release: Callable[[], None] = lock.release

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *args: Any) -> None:
        self._lock.__exit__(*args)

    def __reduce__(self) -> Any:
        return synchronized, (self._obj, self._lock)

    def get_obj(self) -> Any:
        """Return the ctypes object, whose accesses take no lock."""
        return self._obj

    def get_lock(self) -> Any:
        """Return the lock."""
        return self._lock

    def __repr__(self) -> str:
        return f"<{type(self).__name__} wrapper for {self._obj}>"


class _Field:
    """An attribute of the ctypes object, read and written under the lock."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, owner: SynchronizedBase | None, _: object = None) -> Any:
        if owner is None:
            return self
        with owner:
            return getattr(owner.get_obj(), self._name)

    def __set__(self, owner: SynchronizedBase, value: Any) -> None:
        with owner:
            setattr(owner.get_obj(), self._name, value)


class Synchronized(SynchronizedBase):
    """A number or a character with a lock."""

    value: _Field = _Field("value")


class SynchronizedArray(SynchronizedBase):
    """An array with a lock."""

    def __len__(self) -> int:
        return len(self._obj)

    def __getitem__(self, index: Any) -> Any:
        with self:
            return self._obj[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        with self:
            self._obj[index] = value


class SynchronizedString(SynchronizedArray):
    """An array of characters with a lock."""

    value: _Field = _Field("value")
    raw: _Field = _Field("raw")


def synchronized(obj: Any, lock: Any = None, ctx: Any = None) -> Any:
    """Wrap a ctypes object, as its type needs, with a lock, by default a new one of the context's session."""
    has_raw = hasattr(obj, "raw")  # as arrays of c_char have it, and perhaps a structure
    if isinstance(obj, ctypes.Array):
        return SynchronizedString(obj, lock, ctx) if has_raw else SynchronizedArray(obj, lock, ctx)
    if isinstance(obj, ctypes.Structure | ctypes.Union):
        return _with_fields(type(obj))(obj, lock, ctx)
    return Synchronized(obj, lock, ctx)


def _with_fields(type_: Any) -> type[SynchronizedBase]:
    """Return a wrapper class with the fields of a structure and of its bases."""
    fields = {name: _Field(name) for base in type_.__mro__ for name, *_ in base.__dict__.get("_fields_", ())}
    return type(f"Synchronized{type_.__name__}", (SynchronizedBase,), fields)


__all__ = ["Synchronized", "SynchronizedArray", "SynchronizedBase", "SynchronizedString", "synchronized"]
