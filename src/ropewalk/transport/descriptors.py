"""File descriptors that came with a message: closed with it, unless its receiver takes them.

A peer may send descriptors with any message, also with one that needs none, and more than it announces. Descriptors
that the receiver does not take must not stay open, or a few hundred such messages would use up those of the process.
"""

from __future__ import annotations

import os

from ropewalk.errors import FrameError


class Descriptors(list[int]):
    """Descriptors that are closed with the last reference to them, however a call ends, unless they are taken."""

    def take(self) -> int:
        """Take the next descriptor, which the caller owns from now on.

        Raises:
            FrameError: fewer descriptors came than the message said.
        """
        if not self:
            raise FrameError("a message came without the memory file that it says it has")
        return self.pop(0)

    def close(self) -> None:
        """Close the descriptors now; may be called twice."""
        while self:
            os.close(self.pop())

    def __del__(self) -> None:
        self.close()


NONE = Descriptors()
"""The descriptors of a message that has none: shared, as nothing is ever added to it."""
