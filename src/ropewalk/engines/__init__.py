"""Where jobs run: one file per cluster manager, and the table of their names."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from ropewalk.engines.engine import Engine
from ropewalk.engines.local import LocalEngine
from ropewalk.errors import UnknownEngine

#: A new engine is one file and one line here.
ENGINES: dict[str, Callable[[], Engine]] = {"local": LocalEngine}


def make_engine(name: str) -> Engine:
    """The engine of that name.

    Raises:
        UnknownEngine: there is none; the message lists those there are.
    """
    if name not in ENGINES:
        near = difflib.get_close_matches(name, ENGINES, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UnknownEngine(f"there is no engine {name!r}; known engines: {', '.join(sorted(ENGINES))}.{hint}")
    return ENGINES[name]()
