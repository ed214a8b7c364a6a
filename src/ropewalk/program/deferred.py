"""`Deferred`: an argument that is built in the process that needs it, because it cannot be sent there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Deferred(Generic[T]):
    """Stands for `function(*args, **kwargs)`, called in the process that needs the value.

    For values that cannot be pickled (a database connection, a lock, a model on a GPU) or are too large to send. The
    arguments may hold handles and other deferred values.

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
        """Call the function and return its result; a new value at each call."""
        return self.function(*self.args, **self.kwargs)

    def __repr__(self) -> str:
        return f"Deferred({getattr(self.function, '__qualname__', self.function)})"
