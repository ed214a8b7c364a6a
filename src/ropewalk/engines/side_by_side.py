"""Many slow questions to a cluster manager, asked side by side."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: So many at once. Docker, for one, starts containers about 1.4 times as fast so (12 containers, 2 cores).
_PARALLEL = 8


def side_by_side(act: Callable[[_Item], _Result], items: Sequence[_Item]) -> list[_Result]:
    """What `act` returns for each item, in order; it is called in several threads.

    Also when the interpreter ends, where sessions are closed and no thread can be started: then one after the other.
    """
    if len(items) > 1:
        with contextlib.suppress(RuntimeError):
            with ThreadPoolExecutor(min(_PARALLEL, len(items)), "ropewalk-engine") as threads:
                return list(threads.map(act, items))
    return [act(item) for item in items]
