"""What keeps calls waiting the least while a state is taken: a copy of it, or a child that has all memory. Pure.

A copy takes time with the size of the state, a fork with the number of pages that the whole process uses. Both are
learned from the last time.
"""

from __future__ import annotations

import enum

#: What is assumed before anything was measured.
_COPY_BYTES_PER_S = 2e9
_FORK_S = 0.002
#: What takes longer to pickle than this is pickled by a child the next time.
_LONG_S = 0.005
#: Of 200 MB in large pages, a fork takes 2 ms.
_LONG_FORK_S = 0.004


class How(enum.Enum):
    """What keeps a state as it was while the object goes on."""

    COPY = "a copy"
    WRITE_IN_CHILD = "a child that writes what was pickled here"
    PICKLE_IN_CHILD = "a child that pickles as well"


class SnapshotCosts:
    """Chooses for one object.

    Args:
        may_fork: whether there may be a child.
    """

    def __init__(self, *, may_fork: bool) -> None:
        self._may_fork = may_fork
        self._may_pickle_in_child = may_fork
        self._copy_bytes_per_s = _COPY_BYTES_PER_S
        self._fork_s = _FORK_S
        self._pickle_s = 0.0

    @property
    def pickles_in_child(self) -> bool:
        """Whether the state is to be pickled by the child."""
        return self._may_fork and self._may_pickle_in_child and self._pickle_s > _LONG_S

    def copies(self, size_bytes: int) -> bool:
        """Whether a state that was pickled here is to be copied; else a child writes it."""
        return not self._may_fork or size_bytes / self._copy_bytes_per_s <= self._fork_s

    @property
    def forks_slowly(self) -> bool:
        """Whether the last child took longer than one should, as in a process of many small pages."""
        return self._fork_s > _LONG_FORK_S

    def pickled(self, seconds: float) -> None:
        """It was pickled here."""
        self._pickle_s = seconds

    def copied(self, size_bytes: int, seconds: float) -> None:
        """It was copied, into memory that was in use before."""
        if seconds > 0 and size_bytes:
            self._copy_bytes_per_s = size_bytes / seconds

    def forked(self, seconds: float) -> None:
        """A child was made."""
        self._fork_s = seconds

    def failed(self, how: How) -> None:
        """The child could not do it: the state holds what cannot be used in one (a GPU, a lock), or such memory."""
        if how is How.PICKLE_IN_CHILD:
            self._may_pickle_in_child = False
        elif how is How.WRITE_IN_CHILD:
            self._may_fork = False
