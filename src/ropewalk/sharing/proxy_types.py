"""The proxy types of `SyncManager`: lists, dictionaries, values, namespaces, iterators and pools of a manager."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, ClassVar, Self, cast

from ropewalk.sharing.proxies import BaseProxy, MakeProxyType, ProxyMethod


class IteratorProxy(BaseProxy):
    """A proxy of an iterator or generator; any number of processes may take from it."""

    _exposed_ = ("__next__", "send", "throw", "close")

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self, *args: Any) -> Any:
        return self._callmethod("__next__", args)

    send = ProxyMethod("send")
    throw = ProxyMethod("throw")
    close = ProxyMethod("close")


class NamespaceProxy(BaseProxy):
    """A proxy whose attributes are those of its referent, but for those that begin with an underscore."""

    _exposed_ = ("__getattribute__", "__setattr__", "__delattr__")

    def __getattr__(self, key: str) -> Any:
        if key.startswith("_"):
            return object.__getattribute__(self, key)
        return self._callmethod("__getattribute__", (key,))

    def __setattr__(self, key: str, value: Any) -> None:
        if key.startswith("_"):
            object.__setattr__(self, key, value)
        else:
            self._callmethod("__setattr__", (key, value))

    def __delattr__(self, key: str) -> None:
        if key.startswith("_"):
            object.__delattr__(self, key)
        else:
            self._callmethod("__delattr__", (key,))


class ValueProxy(BaseProxy):
    """A proxy of one value."""

    _exposed_ = ("get", "set")
    get = ProxyMethod("get")
    set = ProxyMethod("set")

    @property
    def value(self) -> Any:
        """The value, as it is now."""
        return self._callmethod("get")

    @value.setter
    def value(self, value: Any) -> None:
        self._callmethod("set", (value,))

    __class_getitem__: ClassVar[Any] = classmethod(cast("Any", types.GenericAlias))


BaseListProxy: Any = MakeProxyType(
    "BaseListProxy",
    (
        *("__add__", "__contains__", "__delitem__", "__getitem__", "__len__", "__mul__", "__reversed__", "__rmul__"),
        *("__setitem__", "append", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort"),
        "__imul__",
    ),
)


class ListProxy(BaseListProxy):
    """A proxy of a list."""

    def __iadd__(self, value: Any) -> Self:
        self._callmethod("extend", (value,))
        return self

    def __imul__(self, value: Any) -> Self:
        self._callmethod("__imul__", (value,))
        return self


BaseDictProxy: Any = MakeProxyType(
    "DictProxy",
    (
        *("__contains__", "__delitem__", "__getitem__", "__iter__", "__len__", "__setitem__", "clear", "copy", "get"),
        *("items", "keys", "pop", "popitem", "setdefault", "update", "values"),
    ),
)


class DictProxy(BaseDictProxy):
    """A proxy of a dictionary; `keys`, `values` and `items` are lists of that moment."""

    _method_to_typeid_: ClassVar[dict[str, str]] = {"__iter__": "Iterator"}


BaseArrayProxy: Any = MakeProxyType("ArrayProxy", ("__len__", "__getitem__", "__setitem__"))


class ArrayProxy(BaseArrayProxy):
    """A proxy of an `array.array`."""


BasePoolProxy: Any = MakeProxyType(
    "PoolProxy",
    (
        *("apply", "apply_async", "close", "imap", "imap_unordered", "join", "map", "map_async"),
        *("starmap", "starmap_async", "terminate"),
    ),
)


class PoolProxy(BasePoolProxy):
    """A proxy of a pool, whose workers run on the host of the manager; leaving its `with` block terminates it."""

    _method_to_typeid_: ClassVar[dict[str, str]] = {
        "apply_async": "AsyncResult",
        "map_async": "AsyncResult",
        "starmap_async": "AsyncResult",
        "imap": "Iterator",
        "imap_unordered": "Iterator",
    }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.terminate()


__all__ = ["ArrayProxy", "DictProxy", "IteratorProxy", "ListProxy", "NamespaceProxy", "PoolProxy", "ValueProxy"]
