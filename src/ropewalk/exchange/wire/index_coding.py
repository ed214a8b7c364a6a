"""The interface of codings of indices."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import NamedTuple

from ropewalk.exchange.kernels.selection import Indices
from ropewalk.exchange.wire.bits import Bytes


class Coded(NamedTuple):
    """The plan of a coding for some indices.

    Attributes:
        size_bytes: exact size of the coded indices.
        write: codes them.
    """

    size_bytes: int
    write: Callable[[], Bytes]


class IndexCoding(abc.ABC):
    """A coding of ascending indices, at least one, below a number of components."""

    @abc.abstractmethod
    def plan(self, indices: Indices, numel: int) -> Coded:
        """Compute the coded size, so that only the smallest coding is written."""

    @abc.abstractmethod
    def decode(self, data: Bytes, count: int, numel: int) -> Indices:
        """Decode `count` indices, which is not more than `numel`, from untrusted bytes.

        Args:
            data: one-dimensional uint8.
            count: number of indices.
            numel: number of components; indices are below it.

        Raises:
            ValueError: the bytes are not exactly `count` ascending indices below `numel`.
        """
