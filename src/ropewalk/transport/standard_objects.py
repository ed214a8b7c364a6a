"""Objects of multiprocessing that reach our picklers.

They are refused with advice, or kept to their host.
host.

Most of them work only by inheritance from the process that made them. `SharedMemory` and `ShareableList` are names of
memory, which mean nothing on another host: there they raise, instead of finding no memory, or the wrong one.
"""

from __future__ import annotations

import functools
import importlib
import os
import platform
from typing import Any

from ropewalk.errors import WrongHost

_OURS = {
    "queues": {"Queue": "Queue", "JoinableQueue": "JoinableQueue", "SimpleQueue": "SimpleQueue"},
    "synchronize": {
        name: name for name in ("Lock", "RLock", "Semaphore", "BoundedSemaphore", "Condition", "Event", "Barrier")
    },
    "connection": {"Connection": "Pipe"},
    "sharedctypes": {"SynchronizedArray": "Array", "SynchronizedString": "Array"},  # for all others "Value"
    "context": {"Process": "Process", "SpawnProcess": "Process", "ForkProcess": "Process"},
    "process": {"Process": "Process", "BaseProcess": "Process"},
    "pool": {"Pool": "Pool"},
    "managers": {"SyncManager": "Manager"},
}
"""What to use instead, by module and class."""


def not_by_inheritance(kind: type[Any]) -> str:
    """Return why an object of multiprocessing cannot be sent."""
    return (
        f"{kind.__module__}.{kind.__qualname__} is an object of multiprocessing that works only by inheritance from "
        "the process that made it, and Ropewalk's processes are not forked from this one"
    )


def take_instead(kind: type[Any]) -> str:
    """Return what to use in place of an object of multiprocessing."""
    module = kind.__module__.rpartition(".")[2]
    if module == "heap":  # part of the raw ones, whose types are those of ctypes
        return "use ropewalk.RawValue() or ropewalk.RawArray() instead of those of multiprocessing"
    name = _OURS.get(module, {}).get(kind.__name__, "Value" if module == "sharedctypes" else "")
    if name:
        return f"use ropewalk.{name}() instead of multiprocessing.{name}()"
    return 'use Ropewalk\'s own classes: "import ropewalk as multiprocessing" has them all'


def reduce_standard_object(obj: Any, kind: type[Any]) -> Any:
    """Return the reduction of an object of `STANDARD_MODULES`, or NotImplemented where its own is used.

    Raises:
        RuntimeError: the object works only by inheritance.
    """
    if kind.__name__ == "Connection":
        # It would pickle without an error, as a number that means another descriptor in the receiver.
        raise RuntimeError("Connection objects should only be shared between processes through inheritance")
    if kind.__name__ in ("SharedMemory", "ShareableList"):
        make, arguments = obj.__reduce__()
        return attach, (home(), _creator(obj), make, arguments)
    return NotImplemented


STANDARD_MODULES = frozenset({"multiprocessing.connection", "multiprocessing.shared_memory"})
"""The modules whose objects `reduce_standard_object` handles."""


def attach(at: str, creator: int, make: Any, arguments: tuple[Any, ...]) -> Any:
    """Attach to named memory, on the host where its name is valid.

    Raises:
        WrongHost: the memory is on another host.
        FileNotFoundError: the memory is gone.
    """
    if at != home():
        raise WrongHost(
            "a SharedMemory or ShareableList was sent to another host than that of its memory; "
            "send the array itself through a ropewalk.Queue(), or keep it in a ropewalk.Manager()"
        )
    obj = make(*arguments)
    memory = getattr(obj, "shm", obj)
    memory._ropewalk_creator = creator
    if creator != os.getpid():
        # Its helper process would destroy the memory when this process ends, as if this one had made it
        # (https://github.com/python/cpython/issues/82300).
        tracker: Any = importlib.import_module("multiprocessing.resource_tracker")  # imported by now
        tracker.unregister(memory._name, "shared_memory")
        memory._track = False  # from Python 3.13 on; else `unlink` would unregister it once more
    return obj


def _creator(obj: Any) -> int:
    """Return the process that made the memory, and has to destroy it."""
    memory = getattr(obj, "shm", obj)
    return os.getpid() if memory._flags & os.O_CREAT else getattr(memory, "_ropewalk_creator", 0)


@functools.cache
def home() -> str:
    """Return a string that is equal in processes where a name means the same memory: one system, one /dev/shm."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return f"{file.read().strip()}/{os.stat('/dev/shm').st_dev}"
    except OSError:  # not Linux
        return platform.node()


__all__ = ["STANDARD_MODULES", "attach", "not_by_inheritance", "reduce_standard_object", "take_instead"]
