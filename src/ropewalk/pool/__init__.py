"""Process pools: tasks, workers, results; and the names of `multiprocessing.pool`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing import TimeoutError
    from multiprocessing.pool import MaybeEncodingError, RemoteTraceback, ThreadPool  # type: ignore[attr-defined]

    from ropewalk.pool.pool import Pool
    from ropewalk.pool.results import ApplyResult, AsyncResult, IMapIterator, IMapUnorderedIterator, MapResult

_RESULTS, _STANDARD = "ropewalk.pool.results", "multiprocessing.pool"
_HOMES = {
    "ApplyResult": _RESULTS,
    "AsyncResult": _RESULTS,
    "IMapIterator": _RESULTS,
    "IMapUnorderedIterator": _RESULTS,
    "MapResult": _RESULTS,
    "MaybeEncodingError": _STANDARD,
    "Pool": "ropewalk.pool.pool",
    "RemoteTraceback": _STANDARD,
    "ThreadPool": _STANDARD,
    "TimeoutError": _STANDARD,
}

__all__ = [
    "ApplyResult",
    "AsyncResult",
    "IMapIterator",
    "IMapUnorderedIterator",
    "MapResult",
    "MaybeEncodingError",
    "Pool",
    "RemoteTraceback",
    "ThreadPool",
    "TimeoutError",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ropewalk.pool' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
