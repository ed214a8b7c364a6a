"""`Frozen`: a value that will not change any more, so that it can be pickled once and shared."""

from __future__ import annotations

import threading
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Frozen(Generic[T]):
    """A value that will not change any more. Other processes get the value itself.

    When a method returns it: it is pickled once, even if the same `Frozen` is returned many times. If it is large, all
    callers on the host share its memory; a caller that writes to an array gets its own copy of the pages written to.

    When `state_dict` returns it: calls do not wait until it is pickled. This is for objects whose state consists of
    parts that are replaced and never written to.

    Example:
        >>> class Learner:
        ...     def publish(self):  # a new version, which is a copy, as training goes on changing the weights
        ...         self._published = Frozen(self._weights.copy())
        ...     def weights(self):  # called by many actors
        ...         return self._published

    Attributes:
        value: the value itself.
    """

    def __init__(self, value: T) -> None:
        self.value = value
        self.lock: threading.Lock = threading.Lock()
        """Guards `packed`."""
        self.packed: Any = None
        """The message parts that are sent to callers, set by the first call."""

    def __reduce__(self) -> Any:
        return Frozen, (self.value,)

    def __repr__(self) -> str:
        return f"Frozen({self.value!r})"


__all__ = ["Frozen"]
