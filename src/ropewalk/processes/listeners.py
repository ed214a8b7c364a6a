"""`Listeners`: the handlers of something that happens, which any thread may add and take away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

_Handler = TypeVar("_Handler", bound=Callable[..., object])


class Listeners(Generic[_Handler]):
    """Handlers in the order in which they were added; one that is added while others are called is not called yet."""

    def __init__(self) -> None:
        self._handlers: tuple[_Handler, ...] = ()

    def __iter__(self) -> Iterator[_Handler]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)

    def add(self, handler: _Handler) -> Callable[[], None]:
        """Add a handler; returns a function that takes it away, and may be called twice."""
        self._handlers = (*self._handlers, handler)

        def stop() -> None:
            self._handlers = tuple(each for each in self._handlers if each is not handler)

        return stop


__all__ = ["Listeners"]
