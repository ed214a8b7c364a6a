"""`requires`: says what a function needs, where it is defined, for every process that is started to run it.

    @requires(cpus=4, memory="8Gi")        Process(target=simulate)  ──▶  ProcessSpec(resources, bounded)
    def simulate(): ...                                                 │
                                        engine: a job of that size ◀────┴────▶ agent: these CPUs, no more memory

The engine finds room for it, and the agent that hosts the process holds it to that, on this machine as on a cluster's.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, Never, TypeVar

from ropewalk.engines.attached_resources import attach, attached
from ropewalk.engines.resources import Resources
from ropewalk.quantities import shown_size

F = TypeVar("F", bound="Callable[..., Any] | staticmethod[..., Any] | classmethod[Any, ..., Any]")

_NAMES = ("cpus", "gpus", "memory")
#: An interpreter with this package and a small library or two; less is a mistake in the unit.
_LEAST_BYTES = 64 << 20


def requires(
    *bare: Never, cpus: float = 1, gpus: int = 0, memory: str | int | None = None, **unknown: Never
) -> Callable[[F], F]:
    """Say what a function needs; a `Process` that runs it is placed where it has that, and gets no more.

    For functions, for the `run` of a subclass of `Process` or the subclass itself, and for static and class methods.

    Args:
        cpus: CPUs that the process may use; it is bound to so many, rounded up. Those of a fraction are shared.
        gpus: whole GPUs that it sees, through CUDA_VISIBLE_DEVICES.
        memory: bytes, or a text such as "4Gi", of the process and all that it starts. An allocation beyond it
            raises MemoryError, and a process that uses more is ended. None is no limit.
        bare: nothing; `@requires` without its brackets is refused.
        unknown: nothing; other names are refused.

    Raises:
        ValueError: a name or a value that cannot be.
        TypeError: a value of the wrong kind, or what is decorated cannot carry resources.

    Example:
        >>> @requires(cpus=2, memory="1Gi")
        ... def simulate(seed):
        ...     return seed
        >>> resources_of(simulate)
        Resources(cpus=2, gpus=0, memory=1073741824)
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


#: The name that Fiber has for it.
meta = requires


def resources_of(*functions: object) -> Resources | None:
    """What `requires` says of the first of these that it says anything of; None if it says nothing."""
    return next((found for function in functions if (found := attached(function)) is not None), None)


def _unknown(given: dict[str, Never]) -> str:
    name = next(iter(given))
    near = difflib.get_close_matches(name, _NAMES, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    return f"requires knows no {name}{hint}; it takes {', '.join(_NAMES[:-1])} and {_NAMES[-1]}"
