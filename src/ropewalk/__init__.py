"""Ropewalk takes a Python training program from one laptop to a cluster without a rewrite.

    import ropewalk as rw

    with rw.Pool(8) as pool:
        for fitness in pool.imap_unordered(evaluate, population): ...

Importing starts nothing.
"""

from __future__ import annotations

from multiprocessing import TimeoutError

from ropewalk import errors
from ropewalk.engines.resources import Resources
from ropewalk.errors import (
    CrashLoop,
    InitializerFailed,
    NotPicklable,
    PoolClosed,
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
from ropewalk.version import VERSION

__version__ = VERSION

__all__ = [
    "CrashLoop",
    "InitializerFailed",
    "NotPicklable",
    "Pool",
    "PoolClosed",
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
