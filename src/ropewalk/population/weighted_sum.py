"""Sums of noise with weights, cut into fixed blocks that run on a pool: the same bits wherever they run.

    draws in order   ▕ block 0 ▏▕ block 1 ▏▕ 2 ▏
    parameters  0 ─    task       task      task    ─▶ part 0 = ((0 + block 0) + block 1) + 2
        65,536  ─      task       task      task    ─▶ part 1

This is the gradient of evolution strategies, from what travels: numbers of draws and one weight for each (Salimans, Ho,
Chen, Sidor, Sutskever: Evolution Strategies as a Scalable Alternative to Reinforcement Learning, 2017,
https://arxiv.org/abs/1703.03864, algorithm 2). As in the code of the paper, which sums in batches of 500, all of it is
float32: noise, weights, blocks and their sum.

Where the cuts are depends on the number of draws and parameters only, each task adds its draws in order, and the
launcher adds the blocks in order. So the bits are the same for any number of workers and whoever dies. Multiplying and
adding are steps of their own, each rounded as IEEE 754 says; a matrix product adds in the order that the library for
this processor likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropewalk.population.algorithm import Map, serial_map
from ropewalk.population.noise_table import NoiseTable

#: Draws of a block: the launcher receives the parameters once for each block, 4 times for 2,048 mirrored candidates.
_BLOCK = 256
#: Parameters of a task; cutting there changes no bit, as each parameter is a sum of its own.
_PART = 1 << 16
#: Parameters that are summed at a time, so that the sum stays in the processor's cache.
_CHUNK = 1 << 14

Numbers = NDArray[np.int64]
Vector = NDArray[np.float32]
Group = tuple[Numbers, Vector]
"""Numbers of draws, and the weight of each."""


@dataclass(frozen=True, slots=True)
class Draws:
    """Numbered standard normal vectors: slices of a noise table, at places that the seed decides."""

    table: NoiseTable
    seed: int
    dim: int
    """Numbers of a vector."""

    def __getitem__(self, number: int) -> Vector:
        """The vector of that number; read-only, not copied."""
        return self.table.slice(
            self.table.index(self.seed, int(number), self.dim), self.dim
        )  # of numpy's int64 as well


Task = tuple[Numbers, Vector, int, int]
"""Draws, weights, first parameter, the one behind the last."""


@dataclass(frozen=True, slots=True)
class BlockSum:
    """What a worker does for one block: sums of w·z, and if asked of w·z² as well, for some of the parameters."""

    draws: Draws
    squares: bool = False

    def __call__(self, task: Task) -> Vector:
        """The sums, a row for each power."""
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
    """Several sums in one map.

    Args:
        draws: what is summed.
        groups: the numbers and weights of each sum.
        map: where the blocks are summed.
        squares: whether the sums of w·z² are wanted as well.

    Returns:
        For each group an array of one row, the sums of w·z for each parameter; with `squares` a second row.
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
    """The sum of w·z over these draws: `dim` numbers, the caller's."""
    return weighted_sums(draws, [(numbers, np.asarray(weights, np.float32))], map)[0][0]
