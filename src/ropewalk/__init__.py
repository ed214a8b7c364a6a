"""Ropewalk takes a Python training program from one laptop to a cluster without a rewrite.

    import ropewalk as rw

    with rw.Pool(8) as pool:
        for fitness in pool.imap_unordered(evaluate, population): ...

Importing starts nothing and takes a few milliseconds: what is named here is loaded
when it is first used.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ropewalk.compat.names import HOMES as _OF_MODULES
from ropewalk.version import VERSION as __version__

if sys.platform != "linux":
    raise ImportError(
        f"Ropewalk runs on Linux, and this is {sys.platform}: its processes need what only the Linux kernel has. "
        "Use a Linux machine, container or virtual machine; on Windows, WSL 2"
    )

if TYPE_CHECKING:
    from multiprocessing import (
        AuthenticationError,
        BufferTooShort,
        ProcessError,
        TimeoutError,
        allow_connection_pickling,
        freeze_support,
        get_logger,
        log_to_stderr,
        reducer,
    )

    from ropewalk import errors, exchange, pipeline, population, training
    from ropewalk.calls.client import Client
    from ropewalk.calls.current_call import CurrentCall, current_call, wait_for
    from ropewalk.calls.frame import deadline
    from ropewalk.calls.frozen import Frozen
    from ropewalk.calls.markers import batched, concurrent, idempotent, method
    from ropewalk.compat.context import (
        get_all_start_methods,
        get_context,
        get_start_method,
        set_executable,
        set_forkserver_preload,
        set_start_method,
    )
    from ropewalk.compat.executor import Executor
    from ropewalk.compat.joblib_registration import register_joblib_backend
    from ropewalk.compat.meta import meta
    from ropewalk.compat.process import Process, active_children, cpu_count, current_process, parent_process
    from ropewalk.engines.resources import Resources
    from ropewalk.errors import (
        CallCancelled,
        CallCycle,
        CallError,
        CheckpointCorrupt,
        CrashLoop,
        DeadlineExceeded,
        HandleNotConnected,
        InitializerFailed,
        NotPicklable,
        PeerLost,
        PoolClosed,
        ProcessLimit,
        ProgramFailed,
        ProgramInvalid,
        ProgramStopped,
        RemoteError,
        RopewalkError,
        ServiceLost,
        StartFailed,
        TaskCancelled,
        TaskPoisoned,
        TaskTimeout,
        TransportRefused,
        WorkerLost,
        WrongHost,
    )
    from ropewalk.pool.pool import Pool
    from ropewalk.pool.seeds import task_seed
    from ropewalk.processes.session import Session
    from ropewalk.program.deferred import Deferred
    from ropewalk.program.handle import Handle
    from ropewalk.program.launch import launch
    from ropewalk.program.node_context import checkpoint_here, current_node, on_stop, stop, stopping, wait_for_stop
    from ropewalk.program.nodes.cache import Cache
    from ropewalk.program.nodes.colocate import Colocate
    from ropewalk.program.nodes.pool_node import PoolNode
    from ropewalk.program.nodes.ranks import Ranks
    from ropewalk.program.nodes.service import Service
    from ropewalk.program.nodes.worker import Worker
    from ropewalk.program.program import Program
    from ropewalk.program.restart_rule import Restart
    from ropewalk.program.running import RunningProgram
    from ropewalk.program.validation import Mode
    from ropewalk.sharing.connections import Pipe
    from ropewalk.sharing.managers import Manager
    from ropewalk.sharing.memory import Array, RawArray, RawValue, Value
    from ropewalk.sharing.queues import JoinableQueue, Queue, SimpleQueue
    from ropewalk.sharing.synchronize import Barrier, BoundedSemaphore, Condition, Event, Lock, RLock, Semaphore
    from ropewalk.training.trainer import Trainer as Trainer

#: Where each name lives.
_HOMES = {
    **_OF_MODULES["multiprocessing"],
    "Executor": "ropewalk.compat.executor",
    "meta": "ropewalk.compat.meta",
    "register_joblib_backend": "ropewalk.compat.joblib_registration",
    "Program": "ropewalk.program.program",
    "launch": "ropewalk.program.launch",
    "RunningProgram": "ropewalk.program.running",
    "Mode": "ropewalk.program.validation",
    "Handle": "ropewalk.program.handle",
    "Deferred": "ropewalk.program.deferred",
    "Restart": "ropewalk.program.restart_rule",
    "Frozen": "ropewalk.calls.frozen",
    "Service": "ropewalk.program.nodes.service",
    "Worker": "ropewalk.program.nodes.worker",
    "Cache": "ropewalk.program.nodes.cache",
    "Colocate": "ropewalk.program.nodes.colocate",
    "Ranks": "ropewalk.program.nodes.ranks",
    "PoolNode": "ropewalk.program.nodes.pool_node",
    "Client": "ropewalk.calls.client",
    "method": "ropewalk.calls.markers",
    "batched": "ropewalk.calls.markers",
    "concurrent": "ropewalk.calls.markers",
    "idempotent": "ropewalk.calls.markers",
    "deadline": "ropewalk.calls.frame",
    "CurrentCall": "ropewalk.calls.current_call",
    "current_call": "ropewalk.calls.current_call",
    "wait_for": "ropewalk.calls.current_call",
    "stop": "ropewalk.program.node_context",
    "stopping": "ropewalk.program.node_context",
    "wait_for_stop": "ropewalk.program.node_context",
    "on_stop": "ropewalk.program.node_context",
    "checkpoint_here": "ropewalk.program.node_context",
    "current_node": "ropewalk.program.node_context",
    "Resources": "ropewalk.engines.resources",
    "Trainer": "ropewalk.training",
    "Session": "ropewalk.processes.session",
    "task_seed": "ropewalk.pool.seeds",
} | dict.fromkeys(
    (
        "CallCancelled",
        "CallCycle",
        "CallError",
        "CheckpointCorrupt",
        "DeadlineExceeded",
        "HandleNotConnected",
        "ProgramFailed",
        "ProgramInvalid",
        "ProgramStopped",
        "ServiceLost",
        "CrashLoop",
        "InitializerFailed",
        "NotPicklable",
        "PeerLost",
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
        "WrongHost",
    ),
    "ropewalk.errors",
)

#: What `from ropewalk import *` brings: all but `Trainer`, which needs torch and takes a second to import.
__all__ = [
    "Array",
    "AuthenticationError",
    "Barrier",
    "BoundedSemaphore",
    "BufferTooShort",
    "Cache",
    "CallCancelled",
    "CallCycle",
    "CallError",
    "CheckpointCorrupt",
    "Client",
    "Colocate",
    "Condition",
    "CrashLoop",
    "CurrentCall",
    "DeadlineExceeded",
    "Deferred",
    "Event",
    "Executor",
    "Frozen",
    "Handle",
    "HandleNotConnected",
    "InitializerFailed",
    "JoinableQueue",
    "Lock",
    "Manager",
    "Mode",
    "NotPicklable",
    "PeerLost",
    "Pipe",
    "Pool",
    "PoolClosed",
    "PoolNode",
    "Process",
    "ProcessError",
    "ProcessLimit",
    "Program",
    "ProgramFailed",
    "ProgramInvalid",
    "ProgramStopped",
    "Queue",
    "RLock",
    "Ranks",
    "RawArray",
    "RawValue",
    "RemoteError",
    "Resources",
    "Restart",
    "RopewalkError",
    "RunningProgram",
    "Semaphore",
    "Service",
    "ServiceLost",
    "Session",
    "SimpleQueue",
    "StartFailed",
    "TaskCancelled",
    "TaskPoisoned",
    "TaskTimeout",
    "TimeoutError",
    "TransportRefused",
    "Value",
    "Worker",
    "WorkerLost",
    "WrongHost",
    "__version__",
    "active_children",
    "allow_connection_pickling",
    "batched",
    "checkpoint_here",
    "concurrent",
    "cpu_count",
    "current_call",
    "current_node",
    "current_process",
    "deadline",
    "errors",
    "exchange",
    "freeze_support",
    "get_all_start_methods",
    "get_context",
    "get_logger",
    "get_start_method",
    "idempotent",
    "launch",
    "log_to_stderr",
    "meta",
    "method",
    "on_stop",
    "parent_process",
    "pipeline",
    "population",
    "reducer",
    "register_joblib_backend",
    "set_executable",
    "set_forkserver_preload",
    "set_start_method",
    "stop",
    "stopping",
    "task_seed",
    "training",
    "wait_for",
    "wait_for_stop",
]

_OWN_SUBMODULES = ("errors", "exchange", "pipeline", "population", "training")
_SUBMODULES = (*_OWN_SUBMODULES, *(module.rpartition(".")[2] for module in _OF_MODULES if "." in module))


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:  # as `multiprocessing` has them at hand
        return importlib.import_module(f"ropewalk.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'ropewalk' has no attribute {name!r}; it has {', '.join(__dir__())}")
    value = getattr(importlib.import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "Trainer"]
