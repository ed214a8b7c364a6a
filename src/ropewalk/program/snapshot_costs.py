"""Chooses the way to preserve a state that delays calls least: a copy, or a forked child with all memory. Pure.

The time of a copy grows with the size of the state, that of a fork with the number of pages of the whole process. Both
are learned from the last time. A time that is longer than is assumed counts less with every snapshot that is made the
other way: otherwise one slow fork, or copy, would decide for good, because it is not measured again.
"""

from __future__ import annotations

import enum

_COPY_BYTES_PER_S = 2e9
"""Copy speed that is assumed before the first measurement."""
_FORK_S = 0.002
_FADING = 0.95
"""Factor of a measured time with every snapshot made the other way. A fork that always takes twice the time of a copy
is so tried again after 14 copies, and one that took 20 times as long, as in a moment of paging, after 59."""
_LONG_S = 0.005
"""A state that takes longer than this (seconds) to pickle is pickled by a child the next time."""
_LONG_FORK_S = 0.004
"""A fork that takes longer than this (seconds) is slow; with 200 MB in large pages, a fork takes 2 ms."""


class How(enum.Enum):
    """The way to preserve a state while the object goes on."""

    COPY = "a copy"
    WRITE_IN_CHILD = "a child that writes what was pickled here"
    PICKLE_IN_CHILD = "a child that pickles as well"


class SnapshotCosts:
    """Chooses for one object.

    Args:
        may_fork: whether children may be forked.
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
        """Whether a state that was pickled here is to be copied; otherwise a child writes it."""
        return not self._may_fork or size_bytes / self._copy_bytes_per_s <= self._fork_s

    @property
    def forks_slowly(self) -> bool:
        """Whether the last fork took longer than it should, as in a process with a large number of small pages."""
        return self._fork_s > _LONG_FORK_S

    def pickled(self, seconds: float) -> None:
        """Note the time that pickling took in this process."""
        self._pickle_s = seconds

    def copied(self, size_bytes: int, seconds: float) -> None:
        """Note the time of a copy into memory that was in use before."""
        if seconds > 0 and size_bytes:
            self._copy_bytes_per_s = size_bytes / seconds
        if self._fork_s > _FORK_S:
            self._fork_s = max(_FORK_S, _FADING * self._fork_s)

    def forked(self, seconds: float) -> None:
        """Note the time of a fork."""
        self._fork_s = seconds
        if self._copy_bytes_per_s < _COPY_BYTES_PER_S:
            self._copy_bytes_per_s = min(_COPY_BYTES_PER_S, self._copy_bytes_per_s / _FADING)

    def failed(self, how: How) -> None:
        """The child failed: the state holds objects, or memory, that cannot be used in a child (a GPU, a lock)."""
        if how is How.PICKLE_IN_CHILD:
            self._may_pickle_in_child = False
        elif how is How.WRITE_IN_CHILD:
            self._may_fork = False
