"""`multiprocessing.context`: the class of our contexts, and the errors of that module.

Of its classes for start methods there are those that we are like, under all of their names; none is for "fork".
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
