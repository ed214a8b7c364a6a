"""The one door to numba, which is untyped and optional: who imports this module needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba  # pyright: ignore[reportMissingTypeStubs]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function at its first use; kept on disk beside its module, or where numba keeps its caches.

    Without fast-math: NaN has to stay NaN, and results must not depend on who compiled. Other threads of the process
    go on while it runs.
    """
    compiler = cast(Any, numba)
    try:
        return compiler.njit(function, cache=True, nogil=True)
    except RuntimeError:
        # There is no folder that the cache could be written to.
        return compiler.njit(function, nogil=True)
