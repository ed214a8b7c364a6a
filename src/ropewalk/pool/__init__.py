"""Process pools: tasks, workers, results; and the names of `multiprocessing.pool`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.pool import ThreadPool

    from ropewalk.pool.pool import Pool

_HOMES = {"Pool": "ropewalk.pool.pool", "ThreadPool": "multiprocessing.pool"}

__all__ = ["Pool", "ThreadPool"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'ropewalk.pool' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
