"""Objects of other libraries as bytes, for workers and checkpoints; functions without a module are pickled by value.

Methods of the process-wide generators, which pycma stores for example, refer to these generators after unpickling: with
a plain pickle they would get a generator of their own.
"""

from __future__ import annotations

import io
import random
from typing import Any, cast

import numpy as np

from ropewalk.population.moved_classes import MovedClasses
from ropewalk.transport.by_value import ByValuePickler

_SHARED: dict[str, Any] = {
    "random": cast(Any, random.random).__self__,
    "numpy.random": cast(Any, np.random.random).__self__,
}


class _OutsidePickler(ByValuePickler):
    def persistent_id(self, obj: Any) -> str | None:
        return next((name for name, shared in _SHARED.items() if obj is shared), None)


class _OutsideUnpickler(MovedClasses):
    def persistent_load(self, pid: str) -> Any:
        return _SHARED[pid]


def pickled(value: Any) -> bytes:
    """Pickle an object; raises any exception of its own pickling."""
    file = io.BytesIO()
    _OutsidePickler(file, protocol=5).dump(value)
    return file.getvalue()


def unpickled(data: bytes) -> Any:
    """Unpickle the bytes of `pickled`, which runs code: use it only on bytes that the program produced itself."""
    return _OutsideUnpickler(io.BytesIO(data)).load()
