"""`multiprocessing.managers` over processes of Ropewalk; see `ropewalk.sharing.managers`."""

from __future__ import annotations

from ropewalk.sharing.managers import (
    Array,
    AutoProxy,
    BaseManager,
    BaseProxy,
    MakeProxyType,
    Manager,
    Namespace,
    RemoteError,
    SharedMemoryManager,
    SyncManager,
    Token,
    Value,
)
from ropewalk.sharing.proxy_types import (
    ArrayProxy,
    DictProxy,
    IteratorProxy,
    ListProxy,
    NamespaceProxy,
    PoolProxy,
    ValueProxy,
)

__all__ = [
    "Array",
    "ArrayProxy",
    "AutoProxy",
    "BaseManager",
    "BaseProxy",
    "DictProxy",
    "IteratorProxy",
    "ListProxy",
    "MakeProxyType",
    "Manager",
    "Namespace",
    "NamespaceProxy",
    "PoolProxy",
    "RemoteError",
    "SharedMemoryManager",
    "SyncManager",
    "Token",
    "Value",
    "ValueProxy",
]
