"""File descriptors that came with a message: closed with it, unless its receiver takes them out.

A peer may send descriptors with any message, also with one that takes none, and more than it announces; what nobody
takes must not stay open, or a few hundred such messages would use up those of the process.
"""

from __future__ import annotations

import os

from ropewalk.errors import FrameError


class Descriptors(list[int]):
    """Descriptors that are closed with the last reference to them, however a call ends, unless they are taken out."""

    def take(self) -> int:
        """The next one, which is the caller's from now on.

        Raises:
            FrameError: fewer came than the message said.
        """
        if not self:
            raise FrameError("a message came without the memory file that it says it has")
        return self.pop(0)

    def close(self) -> None:
        """Close them now; may be called twice."""
        while self:
            os.close(self.pop())

    def __del__(self) -> None:
        self.close()


#: Of a message without any: shared, as nothing is ever added to it.
NONE = Descriptors()
