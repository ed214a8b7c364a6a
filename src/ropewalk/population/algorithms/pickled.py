"""Objects of other libraries as bytes, for workers and checkpoints; functions without a module go by value.

Methods of the process-wide generators, which pycma keeps for instance, still belong to these afterwards: a plain pickle
would give them a generator of their own.
"""

from __future__ import annotations

import io
import pickle
import random
from typing import Any, cast

import numpy as np

from ropewalk.transport.by_value import ByValuePickler

_SHARED: dict[str, Any] = {
    "random": cast(Any, random.random).__self__,
    "numpy.random": cast(Any, np.random.random).__self__,
}

#: Where the classes are now that earlier checkpoints name.
_MOVED = {
    "ropewalk.population.algorithms." + "dialects": "ropewalk.population.algorithms.adapters",
    "ropewalk.population.algorithms." + "evotorch_dialects": "ropewalk.population.algorithms.evotorch_adapters",
}


class _OutsidePickler(ByValuePickler):
    def persistent_id(self, obj: Any) -> str | None:
        return next((name for name, shared in _SHARED.items() if obj is shared), None)


class _OutsideUnpickler(pickle.Unpickler):
    def persistent_load(self, pid: str) -> Any:
        return _SHARED[pid]

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        return super().find_class(_MOVED.get(module_name, module_name), global_name)


def pickled(value: Any) -> bytes:
    """The object as bytes; raises whatever its own pickling does."""
    file = io.BytesIO()
    _OutsidePickler(file, protocol=5).dump(value)
    return file.getvalue()


def unpickled(data: bytes) -> Any:
    """`pickled` undone, which runs code: only of what the program made itself."""
    return _OutsideUnpickler(io.BytesIO(data)).load()
