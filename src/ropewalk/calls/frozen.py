"""`Frozen`: a value that nobody will change any more, so that it can be pickled once and shared."""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Frozen(Generic[T]):
    """A value that nobody will change any more. Other processes get the value itself.

    As what a method returns: it is pickled once, however often the same `Frozen` is returned, and if it is large, all
    callers on the host share its memory. One that writes to an array gets its own copy of the pages that it writes to.

    As what `state_dict` returns: calls do not wait for it to be pickled. For objects whose state consists of parts that
    are replaced, and never written to.

    Example:
        >>> class Learner:
        ...     def publish(self):  # a new version, which is a copy, as training goes on changing the weights
        ...         self._published = Frozen(self._weights.copy())
        ...     def weights(self):  # called by many actors
        ...         return self._published

    Attributes:
        value: what it was made of.
    """

    def __init__(self, value: T) -> None:
        self.value = value
        self.lock: threading.Lock = threading.Lock()
        """Guards `packed`."""
        self.packed: Any = None
        """What is sent to callers, after the first one has asked."""

    def __reduce__(self) -> Any:
        return Frozen, (self.value,)

    def __repr__(self) -> str:
        return f"Frozen({self.value!r})"


__all__ = ["Frozen"]
