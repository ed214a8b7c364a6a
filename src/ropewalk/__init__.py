"""Ropewalk takes a Python training program from one laptop to a cluster without a rewrite.

    import ropewalk as rw

    with rw.Pool(8) as pool:
        for fitness in pool.imap_unordered(evaluate, population): ...

Importing starts nothing and takes a few milliseconds: what is named here is loaded
when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ropewalk.version import VERSION as __version__

if TYPE_CHECKING:
    from multiprocessing import TimeoutError

    from ropewalk import errors
    from ropewalk.engines.resources import Resources
    from ropewalk.errors import (
        CrashLoop,
        InitializerFailed,
        NotPicklable,
        PoolClosed,
        ProcessLimit,
        RemoteError,
        RopewalkError,
        StartFailed,
        TaskCancelled,
        TaskPoisoned,
        TaskTimeout,
        TransportRefused,
        WorkerLost,
    )
    from ropewalk.pool.pool import Pool
    from ropewalk.pool.seeds import task_seed
    from ropewalk.processes.session import Session

#: Where each name lives.
_HOMES = {
    "Pool": "ropewalk.pool.pool",
    "Resources": "ropewalk.engines.resources",
    "Session": "ropewalk.processes.session",
    "TimeoutError": "multiprocessing",
    "task_seed": "ropewalk.pool.seeds",
} | dict.fromkeys(
    (
        "CrashLoop",
        "InitializerFailed",
        "NotPicklable",
        "PoolClosed",
        "ProcessLimit",
        "RemoteError",
        "RopewalkError",
        "StartFailed",
        "TaskCancelled",
        "TaskPoisoned",
        "TaskTimeout",
        "TransportRefused",
        "WorkerLost",
    ),
    "ropewalk.errors",
)

__all__ = [
    "CrashLoop",
    "InitializerFailed",
    "NotPicklable",
    "Pool",
    "PoolClosed",
    "ProcessLimit",
    "RemoteError",
    "Resources",
    "RopewalkError",
    "Session",
    "StartFailed",
    "TaskCancelled",
    "TaskPoisoned",
    "TaskTimeout",
    "TimeoutError",
    "TransportRefused",
    "WorkerLost",
    "__version__",
    "errors",
    "task_seed",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("ropewalk.errors")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ropewalk' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
