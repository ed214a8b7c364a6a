"""What a coding of indices promises."""

from __future__ import annotations

import abc

from ropewalk.exchange.kernels.selection import Indices
from ropewalk.exchange.wire.bits import Bytes


class IndexCoding(abc.ABC):
    """A way to write at least one ascending index below a number of components."""

    @abc.abstractmethod
    def size_bytes(self, indices: Indices, numel: int) -> int:
        """What `encode` would take, exactly, without doing it."""

    @abc.abstractmethod
    def encode(self, indices: Indices, numel: int) -> Bytes:
        """Write them."""

    @abc.abstractmethod
    def decode(self, data: Bytes, count: int, numel: int) -> Indices:
        """Read `count` indices, which is not more than `numel`, from bytes of anybody.

        Raises:
            ValueError: they are not `count` ascending indices below `numel`, in as many bytes.
        """
