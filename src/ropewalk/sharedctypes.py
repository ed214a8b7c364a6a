"""`multiprocessing.sharedctypes`: values and arrays in memory that processes on one host share."""

from ropewalk.sharing.memory import Array, RawArray, RawValue, Value, copy
from ropewalk.sharing.synchronized import (
    Synchronized,
    SynchronizedArray,
    SynchronizedBase,
    SynchronizedString,
    synchronized,
)

__all__ = [
    "Array",
    "RawArray",
    "RawValue",
    "Synchronized",
    "SynchronizedArray",
    "SynchronizedBase",
    "SynchronizedString",
    "Value",
    "copy",
    "synchronized",
]
