"""The content of tasks: what a worker needs to run the items of a unit, as bytes that are ready to send."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from ropewalk.pool.constants import Constant
from ropewalk.pool.messages import CallKind
from ropewalk.transport.frames import Part


class Content(msgspec.Struct, eq=False):
    """The content of a unit's tasks, ready to send."""

    kind: int
    seed: int
    needs: Sequence[Constant]
    """Constants that the worker must have first; the last one is the one to call."""
    parts: list[Part]
    shared: tuple[int, ...] = ()
    """Lengths in bytes of the parts, if they are in the memory file `fd`; `parts` is empty then."""
    fd: int = -1
    span: tuple[int, int, int] | None = None
    """Start, stop and step of the items if they are those of a range; they need no parts."""

    @property
    def function(self) -> str:
        """The name of what is called."""
        return self.needs[-1].label if self.needs else ""

    def described(self, index: int | None) -> str:
        """Return what a task is for users: the function, with the index of the task in a map."""
        return self.function if index is None or self.kind in CallKind.SINGLE else f"{self.function} {index}"

    def close(self) -> None:
        """Free the memory; may be called twice."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        self.parts = []
