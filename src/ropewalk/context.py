"""`multiprocessing.context`: the class of our contexts, and the errors of that module."""

from multiprocessing.context import AuthenticationError, BufferTooShort, ProcessError, TimeoutError

from ropewalk.compat.context import BaseContext
from ropewalk.compat.process import Process

__all__ = ["AuthenticationError", "BaseContext", "BufferTooShort", "Process", "ProcessError", "TimeoutError"]
