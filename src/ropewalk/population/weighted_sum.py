"""Weighted sums of noise, split into fixed blocks that run on a pool: bit-identical wherever they run.

    draws in order   ▕ block 0 ▏▕ block 1 ▏▕ 2 ▏
    parameters  0 ─    task       task      task    ─▶ part 0 = ((0 + block 0) + block 1) + 2
        65,536  ─      task       task      task    ─▶ part 1

This computes the gradient of evolution strategies from the numbers of the draws and one weight for each (Salimans, Ho,
Chen, Sidor, Sutskever: Evolution Strategies as a Scalable Alternative to Reinforcement Learning, 2017,
https://arxiv.org/abs/1703.03864, algorithm 2). As in the code of the paper, which sums in batches of 500, noise,
weights, blocks and their sum are all float32.

The split depends only on the number of draws and parameters, each task adds its draws in order, and the launcher adds
the blocks in order. So the result is bit-identical for any number of workers and any worker deaths. Multiplication and
addition are separate operations, each rounded according to IEEE 754; the order of additions in a matrix product would
depend on the processor's library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.algorithm import Map, serial_map
from ropewalk.population.noise_table import NoiseTable

_BLOCK = 256
"""Draws per block: the launcher receives one parameter vector per block, 4 of them for 2,048 mirrored candidates."""
_PART = 1 << 16
"""Parameters per task; this split does not affect the result, because each parameter is a separate sum."""
_CHUNK = 1 << 14
"""Number of parameters that are summed at a time, so that the sum stays in the processor's cache."""

Numbers = NDArray[np.int64]
Vector = NDArray[np.float32]
Group = tuple[Numbers, Vector]
"""The numbers of the draws, and the weight of each."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Numbered standard normal vectors: slices of a noise table, at indices that the seed determines."""

    table: NoiseTable
    seed: int
    dim: int
    """Length of a vector."""

    def __getitem__(self, number: int) -> Vector:
        """Return the vector of draw `number`: float32 of shape (dim,), a read-only view."""
        return self.table.slice(
            self.table.index(self.seed, int(number), self.dim), self.dim
        )  # `number` may be NumPy's int64


Task = tuple[Numbers, Vector, int, int]
"""Numbers of the draws, their weights, the first parameter, and the end of the range of parameters (exclusive)."""


@dataclass(frozen=True, slots=True)
class BlockSum:
    """The work of one task: sums of w·z, and optionally of w·z², over one block and a range of parameters."""

    draws: Draws
    squares: bool = False

    def __call__(self, task: Task) -> Vector:
        """Return the sums, one row for each power of z."""
        numbers, weights, start, stop = task
        draws = [(weight, self.draws[number]) for number, weight in zip(numbers.tolist(), weights, strict=True)]
        total = np.zeros((2 if self.squares else 1, stop - start), np.float32)
        room = np.empty(min(_CHUNK, stop - start), np.float32)
        for low in range(start, stop, _CHUNK):
            high = min(low + _CHUNK, stop)
            sums = total[:, low - start : high - start]
            term = room[: high - low]
            for weight, draw in draws:
                part = draw[low:high]
                np.multiply(part, weight, out=term)
                sums[0] += term
                if self.squares:
                    term *= part
                    sums[1] += term
        return total


def weighted_sums(
    draws: Draws, groups: Sequence[Group], map: Map = serial_map, *, squares: bool = False
) -> list[Vector]:
    """Compute several sums in one map.

    Args:
        draws: the draws that are summed.
        groups: the numbers and weights of each sum.
        map: runs the tasks.
        squares: whether to compute the sums of w·z² as well.

    Returns:
        One float32 array per group, of shape (1, dim): the sums of w·z. With `squares` its shape is (2, dim), and the
        second row holds the sums of w·z².
    """
    owners: list[int] = []
    tasks: list[Task] = []
    for owner, (numbers, weights) in enumerate(groups):
        for first in range(0, len(numbers), _BLOCK):
            block = np.asarray(numbers[first : first + _BLOCK], np.int64)
            weight = np.asarray(weights[first : first + _BLOCK], np.float32)
            for start in range(0, draws.dim, _PART):
                owners.append(owner)
                tasks.append((block, weight, start, min(start + _PART, draws.dim)))
    sums = [np.zeros((2 if squares else 1, draws.dim), np.float32) for _ in groups]
    for owner, (_, _, start, stop), part in zip(owners, tasks, map(BlockSum(draws, squares), tasks), strict=True):
        sums[owner][:, start:stop] += part
    return sums


def weighted_sum(draws: Draws, numbers: Numbers, weights: NDArray[np.floating], map: Map = serial_map) -> Vector:
    """Return the sum of w·z over these draws: float32 of shape (dim,), owned by the caller."""
    return weighted_sums(draws, [(numbers, np.asarray(weights, np.float32))], map)[0][0]
