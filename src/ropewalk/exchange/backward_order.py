"""The order of sending: a bucket is sent once it is full and all buckets before it have been sent.

    ready: f          e  d        c     a     b
    sent:   [f]        [e d]                   [c b a]

A full bucket waits for those before it, because every member sends in the same order although gradients become ready
in a different order on each member. Pure: no thread, no tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from ropewalk.exchange.buckets import Layout


class BackwardOrder:
    """Tracks which gradients of one step are ready."""

    def __init__(self, layouts: Sequence[Layout]) -> None:
        self._missing = [set(layout.names) for layout in layouts]
        self._at = {name: index for index, layout in enumerate(layouts) for name in layout.names}
        self._next = 0

    def ready(self, name: str) -> list[int]:
        """Record that a parameter's gradient is ready.

        Args:
            name: name of the parameter.

        Returns:
            Indices of the buckets to send now.

        Raises:
            KeyError: there is no such parameter.
            RuntimeError: the gradient was ready before.
        """
        missing = self._missing[self._at[name]]
        if name not in missing:
            raise RuntimeError(
                f"the gradient of {name!r} was ready already in this step; call finish() after each backward, or "
                "accumulate without exchange (no_sync) until the last one"
            )
        missing.remove(name)
        first = self._next
        while self._next < len(self._missing) and not self._missing[self._next]:
            self._next += 1
        return list(range(first, self._next))

    def rest(self) -> list[tuple[int, set[str]]]:
        """End the step: return the buckets that were not sent, each with the names of the parameters that it lacks."""
        first, self._next = self._next, len(self._missing)
        return [(index, self._missing[index]) for index in range(first, len(self._missing))]
