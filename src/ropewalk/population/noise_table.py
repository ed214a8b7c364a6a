"""A table of standard normal numbers that all processes on a host share: noise is sent as an index into it.

Salimans, Ho, Chen, Sidor, Sutskever: Evolution Strategies as a Scalable Alternative to Reinforcement Learning, 2017
(https://arxiv.org/abs/1703.03864), section 2.1; Such et al.: Deep Neuroevolution, 2017
(https://arxiv.org/abs/1712.06567), section 3.

    seed ─▶ chunk 0 │ chunk 1 │ chunk 2 …   one generator per chunk: any number of threads computes the same table
                  └── slice(index, dim) ──┘
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ropewalk.argument_kinds import check_number
from ropewalk.processes.host_memory import made_once

_CHUNK = 1 << 20
_MOST_THREADS = 8
"""More threads than this do not help, because memory bandwidth is the limit."""
_ITEM_BYTES = 4
_WORD = 0xFFFFFFFFFFFFFFFF
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""2**64 divided by the golden ratio, and the multipliers of SplitMix64's finaliser (Steele, Lea, Flood 2014)."""


class NoiseTable:
    """Standard normal float32 numbers, computed when they are first needed, once on each host of a run.

    The table is pickled as its two arguments. The numbers and the results of `index` depend only on them, on any
    machine.

    Args:
        size: number of entries, of four bytes each. Vectors are slices of the table, so it must be larger than the
            largest vector, and should be much larger: slices that overlap are not independent.
        seed: seed of the numbers.
    """

    def __init__(self, size: int = 2**25, seed: int = 0) -> None:
        check_number("size of a noise table", size, Integral, "a whole number", least=1, required=True)
        check_number("seed of a noise table", seed, Integral, "a whole number", least=0, required=True)
        self.size = size
        self.seed = seed
        self._array: NDArray[np.float32] | None = None

    def __repr__(self) -> str:
        return f"NoiseTable(size={self.size}, seed={self.seed})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NoiseTable) and (self.size, self.seed) == (other.size, other.seed)

    def __hash__(self) -> int:
        return hash((self.size, self.seed))

    def __reduce__(self) -> Any:
        return NoiseTable, (self.size, self.seed)

    @property
    def array(self) -> NDArray[np.float32]:
        """The whole table: float32 of shape (size,), read-only."""
        if self._array is None:
            name = f"noise/standard_normal/float32/{self.size}/{self.seed}"
            self._array = np.frombuffer(made_once(name, self.size * _ITEM_BYTES, self._fill), np.float32)
            _newest[:] = [self._array]
        return self._array

    def slice(self, index: int, dim: int) -> NDArray[np.float32]:
        """Return the `dim` numbers from `index` on: float32 of shape (dim,), a read-only view.

        Raises:
            ValueError: the slice does not lie inside the table.
        """
        if not 0 <= index <= self.size - dim:
            raise ValueError(
                f"{dim} numbers from {index} on are not inside a noise table of {self.size}; take the index from "
                "index(seed, number, dim) of a table of this size"
            )
        return self.array[index : index + dim]

    def index(self, seed: int, number: int, dim: int) -> int:
        """Return the index at which the noise of draw `number` begins.

        It is the same for the same arguments, and otherwise independent and uniformly distributed.

        Args:
            seed: seed of a series of draws, such as those of a generation; 64 bits.
            number: number of this draw, from 0.
            dim: length of the slice.

        Raises:
            ValueError: the table is smaller than `dim`.
        """
        if dim > self.size:
            raise ValueError(
                f"a vector of {dim} numbers does not fit into a noise table of {self.size}; "
                f"make it with NoiseTable(size={_roomy(dim)}) or more"
            )
        mixed = _mix((_mix((seed + _GOLDEN) & _WORD) + number * _GOLDEN) & _WORD)
        return mixed * (self.size - dim + 1) >> 64

    def _fill(self, view: memoryview) -> None:
        array = np.frombuffer(view, np.float32)
        num_chunks = -(-self.size // _CHUNK)

        def fill(chunk: int) -> None:
            generator = np.random.Generator(np.random.SFC64([self.seed, chunk]))
            generator.standard_normal(out=array[chunk * _CHUNK : (chunk + 1) * _CHUNK], dtype=np.float32)

        num_threads = min(num_chunks, os.cpu_count() or 1, _MOST_THREADS)  # all processes of the host wait for this
        with ThreadPoolExecutor(num_threads, "ropewalk-noise") as threads:
            list(threads.map(fill, range(num_chunks)))


_newest: list[NDArray[np.float32]] = []
"""The array that this process used last: pools of the standard library unpickle the table for each chunk of tasks, and
without an agent that keeps the array, it would be computed again each time."""


def _mix(word: int) -> int:
    """SplitMix64's finaliser: a bijection of 64 bits in which each input bit flips half of the output bits."""
    word = (word ^ (word >> 30)) * _FIRST & _WORD
    word = (word ^ (word >> 27)) * _SECOND & _WORD
    return word ^ (word >> 31)


def _roomy(dim: int) -> int:
    """Return a power of two that is at least 16 times as large as `dim`."""
    return 1 << (16 * dim - 1).bit_length()


__all__ = ["NoiseTable"]
