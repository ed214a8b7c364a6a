"""The source of this program's `__main__`, for a global that can be had only by running it again, as spawn does.

A database connection or a tensor on a GPU cannot be sent. In a process that multiprocessing spawns such a global
exists, because the script is imported again, as `__mp_main__`. Here this is done only where it is the only way, and
only for scripts that expect it: those with an `if __name__ == "__main__":`, which keeps their work from starting again.

    sender: `db` cannot be pickled ─▶ definition of `db`: "what the source has under this name" ─▶ receiver runs it once
"""

from __future__ import annotations

import ast
import functools
import sys
from typing import Any

import msgspec


class MainSource(msgspec.Struct, frozen=True):
    """What another process needs to import this program's `__main__`."""

    text: str
    file: str
    """Its path at the sender, for tracebacks."""
    has_guard: bool
    """Whether it has an `if __name__ == "__main__":`."""


def main_source() -> MainSource | None:
    """Return the source of `__main__`; None in a notebook, with `-c`, on the console, and where there is no source."""
    main = sys.modules["__main__"]
    file, loader = getattr(main, "__file__", None), getattr(main, "__loader__", None)
    get_source = getattr(loader, "get_source", None)
    if not file or get_source is None:
        return None
    spec = getattr(main, "__spec__", None)
    return _read(get_source, spec.name if spec else "__main__", file)


@functools.lru_cache(maxsize=1)
def _read(get_source: Any, name: str, file: str) -> MainSource | None:
    try:
        text = get_source(name)
        tree = ast.parse(text) if text else None
    except (ImportError, OSError, SyntaxError, ValueError):  # the file was deleted or changed since
        return None
    return MainSource(text, file, any(map(_is_guard, tree.body))) if tree else None


def _is_guard(statement: ast.stmt) -> bool:
    """Return whether a statement is `if __name__ == "__main__":`, with the operands in either order."""
    if not isinstance(statement, ast.If) or not isinstance(statement.test, ast.Compare):
        return False
    test = statement.test
    sides = [test.left, *test.comparators]
    names = [side.id for side in sides if isinstance(side, ast.Name)]
    values = [side.value for side in sides if isinstance(side, ast.Constant)]
    return names == ["__name__"] and values == ["__main__"] and isinstance(test.ops[0], ast.Eq)


__all__ = ["MainSource", "main_source"]
