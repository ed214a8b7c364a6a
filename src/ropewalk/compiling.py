"""The only module that imports numba, which is untyped and optional; importing this module requires it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba  # pyright: ignore[reportMissingTypeStubs]

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function at its first use; cached on disk beside its module, or where numba keeps its caches.

    Without fast-math: NaN has to stay NaN, and results must not depend on the compiling machine. Other threads of the
    process continue while the function runs.
    """
    compiler = cast(Any, numba)
    try:
        return compiler.njit(function, cache=True, nogil=True)
    except RuntimeError:
        # There is no writable folder for the cache.
        return compiler.njit(function, nogil=True)
