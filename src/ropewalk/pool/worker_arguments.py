"""The arguments of a pool that are checked before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence


def check_worker_arguments(
    initializer: Callable[..., object] | None,
    maxtasksperchild: int | None,
    max_deaths: int,
    task_timeout_s: float | None,
    preload: Sequence[str],
) -> None:
    """Check those arguments of `Pool` that need no session, before one is opened.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of its range.
    """
    if isinstance(preload, str):
        raise TypeError(f"preload must be a list of module names, not the string {preload!r}; write [{preload!r}]")
    if maxtasksperchild is not None and (not isinstance(maxtasksperchild, int) or maxtasksperchild <= 0):
        raise ValueError(f"maxtasksperchild must be a positive int or None, not {maxtasksperchild!r}")
    if max_deaths < 1:
        raise ValueError(f"max_deaths must be at least 1, not {max_deaths}")
    if task_timeout_s is not None and not task_timeout_s > 0:
        raise ValueError(f"task_timeout_s must be a number of seconds above 0, or None, not {task_timeout_s}")
    if initializer is not None and not callable(initializer):
        raise TypeError(f"initializer must be callable, not {initializer!r}")
