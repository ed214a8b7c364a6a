"""Ropewalk takes a Python training program from one laptop to a cluster without a rewrite.

    import ropewalk as rw

    with rw.Pool(8) as pool:
        for fitness in pool.imap_unordered(evaluate, population): ...

Importing starts nothing and takes a few milliseconds: each name is loaded when it is first used.
"""

from __future__ import annotations

import sys

from ropewalk.lazy_names import LazyNames

if sys.platform != "linux":
    raise ImportError(
        f"Ropewalk runs on Linux, and this is {sys.platform}: its processes need what only the Linux kernel has. "
        "Use a Linux machine, container or virtual machine; on Windows, WSL 2"
    )

_lazy = LazyNames(
    globals(),
    {
        "sqlalchemy": "tracking",
        "optuna": "search",
        "scipy": "search",
        "matplotlib": "search",
        "torch": "torch",
        "safetensors": "torch",
    },
)

with _lazy:
    from multiprocessing import AuthenticationError as AuthenticationError
    from multiprocessing import BufferTooShort as BufferTooShort
    from multiprocessing import ProcessError as ProcessError
    from multiprocessing import TimeoutError as TimeoutError
    from multiprocessing import allow_connection_pickling as allow_connection_pickling
    from multiprocessing import freeze_support as freeze_support
    from multiprocessing import get_logger as get_logger
    from multiprocessing import log_to_stderr as log_to_stderr
    from multiprocessing import reducer as reducer

    from ropewalk import errors as errors
    from ropewalk import exchange as exchange
    from ropewalk import pipeline as pipeline
    from ropewalk import population as population
    from ropewalk import rl as rl
    from ropewalk import search as search
    from ropewalk import tracking as tracking
    from ropewalk import training as training
    from ropewalk.calls.call_context import deadline as deadline
    from ropewalk.calls.client import Client as Client
    from ropewalk.calls.current_call import CurrentCall as CurrentCall
    from ropewalk.calls.current_call import current_call as current_call
    from ropewalk.calls.current_call import wait_for as wait_for
    from ropewalk.calls.frozen import Frozen as Frozen
    from ropewalk.calls.markers import batched as batched
    from ropewalk.calls.markers import concurrent as concurrent
    from ropewalk.calls.markers import idempotent as idempotent
    from ropewalk.calls.markers import method as method
    from ropewalk.compat.context import get_all_start_methods as get_all_start_methods
    from ropewalk.compat.context import get_context as get_context
    from ropewalk.compat.context import get_start_method as get_start_method
    from ropewalk.compat.context import set_executable as set_executable
    from ropewalk.compat.context import set_forkserver_preload as set_forkserver_preload
    from ropewalk.compat.context import set_start_method as set_start_method
    from ropewalk.compat.executor import Executor as Executor
    from ropewalk.compat.joblib_registration import register_joblib_backend as register_joblib_backend
    from ropewalk.compat.process import Process as Process
    from ropewalk.compat.process import active_children as active_children
    from ropewalk.compat.process import cpu_count as cpu_count
    from ropewalk.compat.process import current_process as current_process
    from ropewalk.compat.process import parent_process as parent_process
    from ropewalk.compat.requires import meta as meta
    from ropewalk.compat.requires import requires as requires
    from ropewalk.engines.resources import Resources as Resources
    from ropewalk.errors import CallCancelled as CallCancelled
    from ropewalk.errors import CallCycle as CallCycle
    from ropewalk.errors import CallError as CallError
    from ropewalk.errors import CheckpointCorrupt as CheckpointCorrupt
    from ropewalk.errors import CrashLoop as CrashLoop
    from ropewalk.errors import DeadlineExceeded as DeadlineExceeded
    from ropewalk.errors import HandleNotConnected as HandleNotConnected
    from ropewalk.errors import InitializerFailed as InitializerFailed
    from ropewalk.errors import NotPicklable as NotPicklable
    from ropewalk.errors import PeerLost as PeerLost
    from ropewalk.errors import PoolClosed as PoolClosed
    from ropewalk.errors import ProcessLimit as ProcessLimit
    from ropewalk.errors import ProgramFailed as ProgramFailed
    from ropewalk.errors import ProgramInvalid as ProgramInvalid
    from ropewalk.errors import ProgramStopped as ProgramStopped
    from ropewalk.errors import RemoteError as RemoteError
    from ropewalk.errors import RopewalkError as RopewalkError
    from ropewalk.errors import ServiceLost as ServiceLost
    from ropewalk.errors import StartFailed as StartFailed
    from ropewalk.errors import TaskCancelled as TaskCancelled
    from ropewalk.errors import TaskPoisoned as TaskPoisoned
    from ropewalk.errors import TaskTimeout as TaskTimeout
    from ropewalk.errors import TransportRefused as TransportRefused
    from ropewalk.errors import WorkerLost as WorkerLost
    from ropewalk.errors import WrongHost as WrongHost
    from ropewalk.pool.pool import Pool as Pool
    from ropewalk.pool.seeds import task_seed as task_seed
    from ropewalk.processes.session import Session as Session
    from ropewalk.program.deferred import Deferred as Deferred
    from ropewalk.program.handle import Handle as Handle
    from ropewalk.program.launch import launch as launch
    from ropewalk.program.node_context import checkpoint_here as checkpoint_here
    from ropewalk.program.node_context import current_node as current_node
    from ropewalk.program.node_context import on_stop as on_stop
    from ropewalk.program.node_context import stop as stop
    from ropewalk.program.node_context import stopping as stopping
    from ropewalk.program.node_context import wait_for_stop as wait_for_stop
    from ropewalk.program.nodes.cache import Cache as Cache
    from ropewalk.program.nodes.colocate import Colocate as Colocate
    from ropewalk.program.nodes.pool_node import PoolNode as PoolNode
    from ropewalk.program.nodes.rank_group import RankGroup as RankGroup
    from ropewalk.program.nodes.service import Service as Service
    from ropewalk.program.nodes.worker import Worker as Worker
    from ropewalk.program.program import Program as Program
    from ropewalk.program.restart_rule import Restart as Restart
    from ropewalk.program.running import RunningProgram as RunningProgram
    from ropewalk.program.script import Script as Script
    from ropewalk.program.validation import Mode as Mode
    from ropewalk.sharing.connections import Pipe as Pipe
    from ropewalk.sharing.managers import Manager as Manager
    from ropewalk.sharing.memory import Array as Array
    from ropewalk.sharing.memory import RawArray as RawArray
    from ropewalk.sharing.memory import RawValue as RawValue
    from ropewalk.sharing.memory import Value as Value
    from ropewalk.sharing.queues import JoinableQueue as JoinableQueue
    from ropewalk.sharing.queues import Queue as Queue
    from ropewalk.sharing.queues import SimpleQueue as SimpleQueue
    from ropewalk.sharing.synchronize import Barrier as Barrier
    from ropewalk.sharing.synchronize import BoundedSemaphore as BoundedSemaphore
    from ropewalk.sharing.synchronize import Condition as Condition
    from ropewalk.sharing.synchronize import Event as Event
    from ropewalk.sharing.synchronize import Lock as Lock
    from ropewalk.sharing.synchronize import RLock as RLock
    from ropewalk.sharing.synchronize import Semaphore as Semaphore
    from ropewalk.version import VERSION as __version__  # noqa: F401

with _lazy.unlisted():
    # Modules that `multiprocessing` also offers as attributes.
    from ropewalk import connection as connection
    from ropewalk import context as context
    from ropewalk import dummy as dummy
    from ropewalk import managers as managers
    from ropewalk import pool as pool
    from ropewalk import process as process
    from ropewalk import queues as queues
    from ropewalk import shared_memory as shared_memory
    from ropewalk import sharedctypes as sharedctypes
    from ropewalk import synchronize as synchronize
    from ropewalk.live_display import live as live

    # `Search` needs Optuna, `track` needs SQLAlchemy, and `page` NiceGUI.
    from ropewalk.page.opening import page as page
    from ropewalk.page.report import report as report
    from ropewalk.search.search import Search as Search
    from ropewalk.tracking.beginning import track as track

    # `Trainer` needs torch, which takes a second to import.
    from ropewalk.training.trainer import Trainer as Trainer
