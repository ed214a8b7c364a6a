"""The proxy types of `SyncManager`: lists, dictionaries, values, namespaces, iterators and pools of a manager."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from ropewalk.sharing.proxies import BaseProxy, MakeProxyType, ProxyMethod


class IteratorProxy(BaseProxy):
    """A proxy of an iterator or generator, which any number of processes may advance."""

    _exposed_ = ("__next__", "send", "throw", "close")

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self, *args: Any) -> Any:
        return self._callmethod("__next__", args)

    send: ProxyMethod = ProxyMethod("send")
    throw: ProxyMethod = ProxyMethod("throw")
    close: ProxyMethod = ProxyMethod("close")


class NamespaceProxy(BaseProxy):
    """A proxy whose attributes are those of its referent, except those that begin with an underscore."""

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
    get: ProxyMethod = ProxyMethod("get")
    set: ProxyMethod = ProxyMethod("set")

    @property
    def value(self) -> Any:
        """The present value."""
        return self._callmethod("get")

    @value.setter
    def value(self, value: Any) -> None:
        self._callmethod("set", (value,))

    __class_getitem__: ClassVar[Any] = classmethod(cast("Any", types.GenericAlias))


if TYPE_CHECKING:  # the same, for type checkers

    class BaseListProxy(BaseProxy):
        """See `MakeProxyType`."""

        def __add__(self, other: Any, /) -> Any: ...
        def __contains__(self, item: Any, /) -> bool: ...
        def __delitem__(self, index: Any, /) -> None: ...
        def __getitem__(self, index: Any, /) -> Any: ...
        def __imul__(self, times: Any, /) -> Self: ...
        def __len__(self) -> int: ...
        def __mul__(self, times: Any, /) -> Any: ...
        def __reversed__(self) -> Any: ...
        def __rmul__(self, times: Any, /) -> Any: ...
        def __setitem__(self, index: Any, value: Any, /) -> None: ...

        append: ProxyMethod
        count: ProxyMethod
        extend: ProxyMethod
        index: ProxyMethod
        insert: ProxyMethod
        pop: ProxyMethod
        remove: ProxyMethod
        reverse: ProxyMethod
        sort: ProxyMethod

else:
    BaseListProxy = MakeProxyType(
        "BaseListProxy",
        (
            *(
                "__add__",
                "__contains__",
                "__delitem__",
                "__getitem__",
                "__len__",
                "__mul__",
                "__reversed__",
                "__rmul__",
            ),
            *(
                "__rmul__",
                "__setitem__",
                "append",
                "count",
                "extend",
                "index",
                "insert",
                "pop",
                "remove",
                "reverse",
                "sort",
            ),
            "__imul__",
        ),
    )


class AcquirerProxy(BaseProxy):
    """A proxy of a `threading` lock or semaphore that your own manager keeps; `SyncManager` has better ones."""

    _exposed_ = ("acquire", "release")
    release: ProxyMethod = ProxyMethod("release")

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        """Acquire it; returns whether it was acquired."""
        return self._callmethod("acquire", (blocking,) if timeout is None else (blocking, timeout))

    def __enter__(self) -> bool:
        return self._callmethod("acquire")

    def __exit__(self, *exc: object) -> None:
        self._callmethod("release")


class ConditionProxy(AcquirerProxy):
    """A proxy of a `threading` condition over a `Lock`; one over an `RLock` belongs to a thread, not to a caller."""

    _exposed_ = ("acquire", "release", "wait", "notify", "notify_all")
    notify: ProxyMethod = ProxyMethod("notify")
    notify_all: ProxyMethod = ProxyMethod("notify_all")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification, at most `timeout` seconds; returns whether it came."""
        return self._callmethod("wait", (timeout,))

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until the predicate, called here, is true, at most `timeout` seconds; returns its last value."""
        return threading.Condition.wait_for(cast(Any, self), predicate, timeout)  # it only calls `wait`


class EventProxy(BaseProxy):
    """A proxy of an event of `threading`."""

    _exposed_ = ("is_set", "set", "clear", "wait")
    is_set: ProxyMethod = ProxyMethod("is_set")
    set: ProxyMethod = ProxyMethod("set")
    clear: ProxyMethod = ProxyMethod("clear")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, at most `timeout` seconds; returns whether it is."""
        return self._callmethod("wait", (timeout,))


class BarrierProxy(BaseProxy):
    """A proxy of a barrier of `threading`."""

    _exposed_ = ("__getattribute__", "wait", "abort", "reset")
    abort: ProxyMethod = ProxyMethod("abort")
    reset: ProxyMethod = ProxyMethod("reset")

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the other parties, at most `timeout` seconds; returns the order in which this one arrived."""
        return self._callmethod("wait", (timeout,))

    @property
    def parties(self) -> int:
        """The number of parties that wait for each other."""
        return self._callmethod("__getattribute__", ("parties",))

    @property
    def n_waiting(self) -> int:
        """The number of parties that are waiting at this moment."""
        return self._callmethod("__getattribute__", ("n_waiting",))

    @property
    def broken(self) -> bool:
        """Whether the barrier is broken."""
        return self._callmethod("__getattribute__", ("broken",))


class ListProxy(BaseListProxy):
    """A proxy of a list."""

    def __iadd__(self, value: Any) -> Self:
        self._callmethod("extend", (value,))
        return self

    def __imul__(self, value: Any) -> Self:
        self._callmethod("__imul__", (value,))
        return self


if TYPE_CHECKING:  # the same, for type checkers

    class BaseDictProxy(BaseProxy):
        """See `MakeProxyType`."""

        def __contains__(self, key: Any, /) -> bool: ...
        def __delitem__(self, key: Any, /) -> None: ...
        def __getitem__(self, key: Any, /) -> Any: ...
        def __iter__(self) -> Iterator[Any]: ...
        def __len__(self) -> int: ...
        def __setitem__(self, key: Any, value: Any, /) -> None: ...

        clear: ProxyMethod
        copy: ProxyMethod
        get: ProxyMethod
        items: ProxyMethod
        keys: ProxyMethod
        pop: ProxyMethod
        popitem: ProxyMethod
        setdefault: ProxyMethod
        update: ProxyMethod
        values: ProxyMethod

else:
    BaseDictProxy = MakeProxyType(
        "DictProxy",
        (
            *("__contains__", "__delitem__", "__getitem__", "__iter__", "__len__", "__setitem__", "clear", "copy"),
            *("get", "items", "keys", "pop", "popitem", "setdefault", "update", "values"),
        ),
    )


class DictProxy(BaseDictProxy):
    """A proxy of a dictionary; `keys`, `values` and `items` return lists, copied at the moment of the call."""

    _method_to_typeid_: ClassVar[dict[str, str]] = {"__iter__": "Iterator"}


if TYPE_CHECKING:  # the same, for type checkers

    class BaseArrayProxy(BaseProxy):
        """See `MakeProxyType`."""

        def __getitem__(self, index: Any, /) -> Any: ...
        def __len__(self) -> int: ...
        def __setitem__(self, index: Any, value: Any, /) -> None: ...
else:
    BaseArrayProxy = MakeProxyType("ArrayProxy", ("__len__", "__getitem__", "__setitem__"))


class ArrayProxy(BaseArrayProxy):
    """A proxy of an `array.array`."""


if TYPE_CHECKING:  # the same, for type checkers

    class BasePoolProxy(BaseProxy):
        """See `MakeProxyType`."""

        apply: ProxyMethod
        apply_async: ProxyMethod
        close: ProxyMethod
        imap: ProxyMethod
        imap_unordered: ProxyMethod
        join: ProxyMethod
        map: ProxyMethod
        map_async: ProxyMethod
        starmap: ProxyMethod
        starmap_async: ProxyMethod
        terminate: ProxyMethod

else:
    BasePoolProxy = MakeProxyType(
        "PoolProxy",
        (
            *("apply", "apply_async", "close", "imap", "imap_unordered", "join", "map", "map_async"),
            *("starmap", "starmap_async", "terminate"),
        ),
    )


class PoolProxy(BasePoolProxy):
    """A proxy of a pool whose workers run on the manager's host; leaving its `with` block terminates it."""

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


__all__ = [
    "AcquirerProxy",
    "ArrayProxy",
    "BarrierProxy",
    "BaseListProxy",
    "BasePoolProxy",
    "ConditionProxy",
    "DictProxy",
    "EventProxy",
    "IteratorProxy",
    "ListProxy",
    "NamespaceProxy",
    "PoolProxy",
    "ValueProxy",
]
