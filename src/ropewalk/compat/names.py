"""Where each public name of `multiprocessing` lives: with us, or with the standard library, which is good enough there.

`import ropewalk as mp` finds all of them; so do `ropewalk.pool`, `ropewalk.connection` and the other submodules below.
"""

from __future__ import annotations

_SYNCHRONIZE = "ropewalk.sharing.synchronize"
_QUEUES = "ropewalk.sharing.queues"
_MEMORY = "ropewalk.sharing.memory"
_PROCESS = "ropewalk.compat.process"
_CONTEXT = "ropewalk.compat.context"
_RESULTS = "ropewalk.pool.results"
_MANAGERS = "ropewalk.sharing.managers"
_PROXY_TYPES = "ropewalk.sharing.proxy_types"
_SYNCHRONIZED = "ropewalk.sharing.synchronized"

#: For each module of the standard library: its public names, and the module that has ours, or its own.
HOMES: dict[str, dict[str, str]] = {
    "multiprocessing": {
        "Process": _PROCESS,
        "cpu_count": _PROCESS,
        "Pool": "ropewalk.pool.pool",
        "Queue": _QUEUES,
        "JoinableQueue": _QUEUES,
        "SimpleQueue": _QUEUES,
        "Pipe": "ropewalk.sharing.connections",
        "Manager": "ropewalk.sharing.managers",
        "Lock": _SYNCHRONIZE,
        "RLock": _SYNCHRONIZE,
        "Semaphore": _SYNCHRONIZE,
        "BoundedSemaphore": _SYNCHRONIZE,
        "Condition": _SYNCHRONIZE,
        "Event": _SYNCHRONIZE,
        "Barrier": _SYNCHRONIZE,
        "Value": _MEMORY,
        "Array": _MEMORY,
        "RawValue": _MEMORY,
        "RawArray": _MEMORY,
        "get_context": _CONTEXT,
        "get_start_method": _CONTEXT,
        "set_start_method": _CONTEXT,
        "get_all_start_methods": _CONTEXT,
        "set_executable": _CONTEXT,
        "set_forkserver_preload": _CONTEXT,
        # These mean the same whoever starts the processes, and know ours.
        "active_children": "multiprocessing",
        "current_process": "multiprocessing",
        "parent_process": "multiprocessing",
        "AuthenticationError": "multiprocessing",
        "BufferTooShort": "multiprocessing",
        "ProcessError": "multiprocessing",
        "TimeoutError": "multiprocessing",
        "allow_connection_pickling": "multiprocessing",
        "freeze_support": "multiprocessing",
        "get_logger": "multiprocessing",
        "log_to_stderr": "multiprocessing",
        "reducer": "multiprocessing",
    },
    "multiprocessing.pool": {
        "Pool": "ropewalk.pool.pool",
        "ThreadPool": "multiprocessing.pool",
        "ApplyResult": _RESULTS,
        "AsyncResult": _RESULTS,
        "MapResult": _RESULTS,
        "IMapIterator": _RESULTS,
        "IMapUnorderedIterator": _RESULTS,
        "MaybeEncodingError": "multiprocessing.pool",
        "RemoteTraceback": "multiprocessing.pool",
        "TimeoutError": "multiprocessing.pool",
    },
    "multiprocessing.connection": {
        "Connection": "ropewalk.sharing.connections",
        "Pipe": "ropewalk.sharing.connections",
        # It waits for whatever has a `fileno`, which our connections and sentinels have.
        "wait": "multiprocessing.connection",
        # Between programs that do not know each other: sockets and a key, as there.
        "Client": "multiprocessing.connection",
        "Listener": "multiprocessing.connection",
        "AuthenticationError": "multiprocessing.connection",
        "BufferTooShort": "multiprocessing.connection",
    },
    "multiprocessing.managers": {
        "BaseManager": _MANAGERS,
        "BaseProxy": "ropewalk.sharing.proxies",
        "SyncManager": _MANAGERS,
        "Server": _MANAGERS,
        "State": _MANAGERS,
        "Token": "ropewalk.sharing.proxies",
        "AutoProxy": "ropewalk.sharing.proxies",
        "MakeProxyType": "ropewalk.sharing.proxies",
        "AcquirerProxy": _PROXY_TYPES,
        "ArrayProxy": _PROXY_TYPES,
        "BarrierProxy": _PROXY_TYPES,
        "BaseListProxy": _PROXY_TYPES,
        "BasePoolProxy": _PROXY_TYPES,
        "ConditionProxy": _PROXY_TYPES,
        "DictProxy": _PROXY_TYPES,
        "EventProxy": _PROXY_TYPES,
        "IteratorProxy": _PROXY_TYPES,
        "ListProxy": _PROXY_TYPES,
        "NamespaceProxy": _PROXY_TYPES,
        "PoolProxy": _PROXY_TYPES,
        "ValueProxy": _PROXY_TYPES,
        # What a manager keeps of these, or raises, is the same there.
        "Array": "multiprocessing.managers",
        "Namespace": "multiprocessing.managers",
        "ProcessError": "multiprocessing.managers",
        "RemoteError": "multiprocessing.managers",
        "SharedMemoryManager": "multiprocessing.managers",
        "Value": "multiprocessing.managers",
    },
    "multiprocessing.queues": {
        "Empty": "multiprocessing.queues",
        "Full": "multiprocessing.queues",
        "JoinableQueue": _QUEUES,
        "Queue": _QUEUES,
        "SimpleQueue": _QUEUES,
    },
    "multiprocessing.sharedctypes": {
        "Array": _MEMORY,
        "RawArray": _MEMORY,
        "RawValue": _MEMORY,
        "Value": _MEMORY,
        "copy": _MEMORY,
        "Synchronized": _SYNCHRONIZED,
        "SynchronizedArray": _SYNCHRONIZED,
        "SynchronizedBase": _SYNCHRONIZED,
        "SynchronizedString": _SYNCHRONIZED,
        "synchronized": _SYNCHRONIZED,
    },
    "multiprocessing.synchronize": {
        "Lock": _SYNCHRONIZE,
        "RLock": _SYNCHRONIZE,
        "Semaphore": _SYNCHRONIZE,
        "BoundedSemaphore": _SYNCHRONIZE,
        "Condition": _SYNCHRONIZE,
        "Event": _SYNCHRONIZE,
        "Barrier": _SYNCHRONIZE,
    },
    "multiprocessing.process": {
        # Ours is one of these as well.
        "BaseProcess": "multiprocessing.process",
        "active_children": "multiprocessing.process",
        "current_process": "multiprocessing.process",
        "parent_process": "multiprocessing.process",
    },
    "multiprocessing.context": {
        # Also, in `ropewalk.context`, by the names that they have there for the start methods which ours are like.
        "BaseContext": _CONTEXT,
        "Process": _PROCESS,
        "AuthenticationError": "multiprocessing.context",
        "BufferTooShort": "multiprocessing.context",
        "ProcessError": "multiprocessing.context",
        "TimeoutError": "multiprocessing.context",
    },
    # Threads with the names of processes: ours would be the same.
    "multiprocessing.dummy": dict.fromkeys(
        (
            "Array",
            "Barrier",
            "BoundedSemaphore",
            "Condition",
            "Event",
            "JoinableQueue",
            "Lock",
            "Manager",
            "Namespace",
            "Pipe",
            "Pool",
            "Process",
            "Queue",
            "RLock",
            "Semaphore",
            "Value",
            "active_children",
            "current_process",
            "freeze_support",
        ),
        "multiprocessing.dummy",
    ),
    "multiprocessing.shared_memory": {
        "ShareableList": "multiprocessing.shared_memory",
        "SharedMemory": "multiprocessing.shared_memory",
    },
}
