"""Which constants a pool keeps: all that are in use, and the newest of the others up to a limit. Pure.

The next map often needs what the last one needed (the code of a generation, weights that have not changed), so a
constant is not forgotten with its last task.
"""

from __future__ import annotations

from collections.abc import Iterator

from ropewalk.pool.constants import Constant

MAX_CONSTANTS = 64
"""Number and bytes of all constants together above which those that no task needs are forgotten."""
MAX_BYTES = 128 << 20


class KeptConstants:
    """Constants by the hash of their content, each with the number of tasks and callers that hold it."""

    def __init__(self) -> None:
        self._constants: dict[str, Constant] = {}
        self._size_bytes = 0

    def __iter__(self) -> Iterator[Constant]:
        return iter(self._constants.values())

    def get(self, id: str) -> Constant | None:
        """Return the constant with this hash, or None if it is not kept."""
        return self._constants.get(id)

    def use(self, constant: Constant) -> None:
        """Count one more holder of a constant."""
        constant.users += 1
        if constant.id not in self._constants:
            self._constants[constant.id] = constant
            self._size_bytes += constant.size_bytes

    def unuse(self, constant: Constant) -> None:
        """Count one holder less; the constant stays while there is room."""
        constant.users -= 1

    def crowded_out(self) -> list[Constant]:
        """Remove constants above the limits, the oldest that nothing holds first; the caller frees their memory."""
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
