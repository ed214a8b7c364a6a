"""Which constants a pool keeps: those in use, and of the others as many as fit, the newest. Pure.

The next map often needs what the last one needed (a generation's code, yesterday's
weights), so a constant is not forgotten with its last task.
"""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.pool.constants import Constant

#: All constants together, before those that no task needs just now are forgotten.
MAX_CONSTANTS = 64
MAX_BYTES = 128 << 20


class KeptConstants:
    """Constants by the hash of their content, with the number of tasks and callers that hold each."""

    def __init__(self) -> None:
        self._constants: dict[str, Constant] = {}
        self._size_bytes = 0

    def __iter__(self) -> Iterator[Constant]:
        return iter(self._constants.values())

    def get(self, id: str) -> Constant | None:
        """The constant of that content, if it is kept."""
        return self._constants.get(id)

    def use(self, constant: Constant) -> None:
        """One more holds it."""
        constant.users += 1
        if constant.id not in self._constants:
            self._constants[constant.id] = constant
            self._size_bytes += constant.size_bytes

    def unuse(self, constant: Constant) -> None:
        """One less holds it; it stays while there is room."""
        constant.users -= 1

    def crowded_out(self) -> list[Constant]:
        """Remove what is too much, of what nobody holds the oldest first; the caller gives the memory back."""
        removed: list[Constant] = []
        if self._fits():
            return removed
        for constant in [constant for constant in self._constants.values() if not constant.users]:
            if self._fits():
                break
            self._size_bytes -= constant.size_bytes
            removed.append(self._constants.pop(constant.id))
        return removed

    def _fits(self) -> bool:
        return len(self._constants) <= MAX_CONSTANTS and self._size_bytes <= MAX_BYTES
