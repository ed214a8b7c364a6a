"""`requires`: declares the resources of a function where it is defined, for every process that runs it.

    @requires(cpus=4, memory="8Gi")    Process(target=simulate)  ──▶  ProcessSpec(resources, bounded)
    def simulate(): ...                                                 │
                                        engine: a job of that size ◀────┴────▶ agent: these CPUs, no more memory

The engine places the process, and the agent on its host enforces the limits, on this machine as well as on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Never, TypeVar

from ropewalk.engines.attached_resources import attach, attached
from ropewalk.engines.resources import Resources
from ropewalk.near_names import instead_of
from ropewalk.quantities import shown_size

F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any]")

_NAMES = ("cpus", "gpus", "memory")
_LEAST_BYTES = 64 << 20
"""Memory of an interpreter with this package and one or two small libraries; a smaller limit has the wrong unit."""


def requires(
    *bare: Never, cpus: float = 1, gpus: int = 0, memory: str | int | None = None, **unknown: Never
) -> Callable[[F], F]:
    """Declare the resources of a function; a `Process` that runs it is placed where they are free, and limited to them.

    It decorates functions, static methods, class methods, subclasses of `Process`, and the `run` of such a subclass.

    Args:
        cpus: number of CPUs that the process may use. The process is bound to this number of CPUs, rounded up; a CPU of
            which only a fraction is used is shared with other processes.
        gpus: number of GPUs that the process sees, through CUDA_VISIBLE_DEVICES.
        memory: memory limit, in bytes or as a text such as "4Gi", of the process and all processes that it starts. An
            allocation beyond it raises MemoryError, and a process that uses more is ended. None means no limit.
        bare: must be empty; `@requires` without parentheses is an error.
        unknown: must be empty; other names are errors.

    Raises:
        ValueError: a name is unknown, or a value is invalid.
        TypeError: a value has the wrong type, or the decorated object cannot carry resources.

    Example:
        >>> import os
        >>> import ropewalk as rw
        >>> @rw.requires(cpus=1, memory="1Gi")
        ... def simulate():
        ...     print("bound to", len(os.sched_getaffinity(0)), "CPU")
        >>> process = rw.Process(target=simulate)
        >>> process.start()
        >>> process.join()
        bound to 1 CPU
    """
    if bare:
        raise TypeError(
            "requires needs to be told what the function needs; write @ropewalk.requires(cpus=2), for example"
        )
    if unknown:
        raise ValueError(_unknown(unknown))
    try:
        resources = Resources(cpus, gpus, memory)
    except (TypeError, ValueError) as error:
        raise type(error)(f"requires(cpus={cpus!r}, gpus={gpus!r}, memory={memory!r}): {error}") from error
    size_bytes = resources.memory_bytes
    if size_bytes is not None and size_bytes < _LEAST_BYTES:
        raise ValueError(
            f"requires(memory={memory!r}) is {size_bytes} bytes, and a process needs {shown_size(_LEAST_BYTES)} at "
            'least; numbers are bytes, and texts have a unit, as in "500M" or "4Gi"'
        )

    def decorate(function: F) -> F:
        attach(function, resources)
        return function

    return decorate


meta = requires
"""The name of `requires` in Fiber."""


def resources_of(*functions: object) -> Resources | None:
    """Return the resources of the first of these functions that `requires` decorates; None if there is none."""
    return next((found for function in functions if (found := attached(function)) is not None), None)


def _unknown(given: dict[str, Never]) -> str:
    name = next(iter(given))
    return f"requires knows no {name}{instead_of(name, _NAMES, 'it takes', quoted=False)}"
