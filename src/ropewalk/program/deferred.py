"""`Deferred`: an argument that is built where it is needed, because it cannot be sent there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Deferred(Generic[T]):
    """Stands for `function(*args, **kwargs)`, called in the process that needs the value.

    For what cannot be pickled (a database connection, a lock, a model on a GPU) or is too large to be worth it.
    Its arguments may hold handles and other deferred values.

    Example:
        >>> import sqlite3
        >>> Deferred(sqlite3.connect, ":memory:").build().execute("select 1").fetchone()
        (1,)

    Raises:
        TypeError: `function` cannot be called.
    """

    def __init__(self, function: Callable[..., T], /, *args: Any, **kwargs: Any) -> None:
        if not callable(function):
            raise TypeError(
                f"Deferred needs a class or function to call, not {function!r}; pass its arguments after it"
            )
        self.function: Callable[..., T] = function
        self.args = args
        self.kwargs = kwargs

    def build(self) -> T:
        """Make the value; a new one at each call."""
        return self.function(*self.args, **self.kwargs)

    def __repr__(self) -> str:
        return f"Deferred({getattr(self.function, '__qualname__', self.function)})"
