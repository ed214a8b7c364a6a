"""`multiprocessing.sharedctypes`: our values and arrays in memory that processes of one host share."""

from ropewalk.sharing.memory import Array, RawArray, RawValue, Value, copy
from ropewalk.sharing.synchronized import synchronized

__all__ = ["Array", "RawArray", "RawValue", "Value", "copy", "synchronized"]
