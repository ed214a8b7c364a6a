"""What a coding of indices promises."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import NamedTuple

from ropewalk.exchange.kernels.selection import Indices
from ropewalk.exchange.wire.bits import Bytes


class Coded(NamedTuple):
    """Indices that a coding could write.

    Attributes:
        size_bytes: what they would take, exactly.
        write: does it.
    """

    size_bytes: int
    write: Callable[[], Bytes]


class IndexCoding(abc.ABC):
    """A way to write at least one ascending index below a number of components."""

    @abc.abstractmethod
    def plan(self, indices: Indices, numel: int) -> Coded:
        """Say what they would take, so that only the smallest coding is written."""

    @abc.abstractmethod
    def decode(self, data: Bytes, count: int, numel: int) -> Indices:
        """Read `count` indices, which is not more than `numel`, from bytes of anybody.

        Raises:
            ValueError: they are not `count` ascending indices below `numel`, in as many bytes.
        """
