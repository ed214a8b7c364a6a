"""Memory that the processes of a host make together, once: read-only, known by the name of its recipe.

In the launcher, and in processes that no agent has started, it is memory of the process.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from collections.abc import Callable

#: Writes the content into memory that is all zeros; keeps no view of it.
Fill = Callable[[memoryview], object]

_made: weakref.WeakValueDictionary[str, mmap.mmap] = weakref.WeakValueDictionary()
_making = threading.Lock()


def made_once(name: str, size_bytes: int, fill: Fill) -> memoryview:
    """Memory with the content that `fill` writes, read-only, the same for all who ask by that name.

    Args:
        name: of the recipe: whatever decides the content is part of it.
        size_bytes: how much.
        fill: called by the first who asks.

    Returns:
        A view; the memory is freed some time after the last view.

    Raises:
        Exception: what `fill` raised; who asks next tries again.
    """
    with _making:
        made = _made.get(name)
        if made is None:
            made = mmap.mmap(-1, max(1, size_bytes))
            with memoryview(made) as whole, whole[:size_bytes] as view:
                fill(view)
            _made[name] = made
        return memoryview(made)[:size_bytes].toreadonly()


__all__ = ["Fill", "made_once"]
