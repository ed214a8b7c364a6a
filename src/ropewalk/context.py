"""`multiprocessing.context`: the class of Ropewalk's contexts, and the errors of that module.

The classes for the start methods "spawn" and "forkserver" are there under all of their names; none is for "fork".
"""

from multiprocessing.context import AuthenticationError, BufferTooShort, ProcessError, TimeoutError

from ropewalk.compat.context import BaseContext
from ropewalk.compat.process import Process

DefaultContext = SpawnContext = ForkServerContext = BaseContext
SpawnProcess = ForkServerProcess = Process

__all__ = [
    "AuthenticationError",
    "BaseContext",
    "BufferTooShort",
    "DefaultContext",
    "ForkServerContext",
    "ForkServerProcess",
    "Process",
    "ProcessError",
    "SpawnContext",
    "SpawnProcess",
    "TimeoutError",
]
