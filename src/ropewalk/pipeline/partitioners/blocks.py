"""The blocks of a graph: the stretches between its articulation points, through which everything flows.

Every down-closed set holds all blocks up to one, and some down-closed part of that one:

    ──▶ a ──▶ [ b c d ... ] ──▶ e ──▶ [ f g ... ] ──▶ h ──▶      a, e, h: articulation points
        └── before ┘└ inside ┘  └ end

Operators that lie on no way from the largest source to the largest sink (late inputs, dead
ends) are strays: they are in no block, and in any set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ropewalk.pipeline.down_sets import BitGraph, members

Masks = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Block:
    """A stretch between two articulation points, as bit sets."""

    #: All blocks before it with their ends; empty for the first.
    before: int
    inside: int
    #: The articulation points at its two ends; -1: there is none.
    start: int
    end: int
    strays: int


def blocks(graph: BitGraph) -> list[Block]:
    """The blocks of a graph, in order."""
    num = len(graph.sources)
    ancestors, descendants = [0] * num, [0] * num
    for number in range(num):
        for source in members(graph.sources[number]):
            ancestors[number] |= ancestors[source] | 1 << source
    for number in reversed(range(num)):
        for target in members(graph.targets[number]):
            descendants[number] |= descendants[target] | 1 << target
    source = max(range(num), key=lambda number: descendants[number].bit_count())
    sink = max(range(num), key=lambda number: ancestors[number].bit_count())
    core = (descendants[source] | 1 << source) & (ancestors[sink] | 1 << sink) or graph.everything
    strays = graph.everything & ~core
    found: list[Block] = []
    before, start = 0, -1
    for number in members(core):
        if not core & ~(ancestors[number] | descendants[number] | 1 << number):
            inside = ancestors[number] & core & ~before
            found.append(Block(before, inside, start, number, strays))
            before, start = before | inside | 1 << number, number
    found.append(Block(before, core & ~before, start, -1, strays))
    return found


def down_closed_parts(graph: BitGraph, block: Block, limit: int) -> tuple[list[int], Masks] | None:
    """The operators inside a block, and its down-closed parts as masks over them; None if there are too many."""
    inside = list(members(block.inside))
    if len(inside) > 62:
        return None
    local = local_masks(graph.sources, inside)
    layers = [np.zeros(1, dtype=np.uint64)]
    num = 1
    while len(layers[-1]):
        grown: list[Masks] = []
        for index, needed in enumerate(local):
            bit, mask = np.uint64(1 << index), np.uint64(needed)
            ready = ((layers[-1] & mask) == mask) & ((layers[-1] & bit) == 0)
            grown.append(layers[-1][ready] | bit)
        layers.append(np.unique(np.concatenate(grown)) if grown else layers[-1][:0])
        num += len(layers[-1])
        if num > limit:
            return None
    return inside, np.concatenate(layers)


def local_masks(neighbours: Sequence[int], inside: Sequence[int]) -> list[int]:
    """The neighbours of each of some operators, as far as they are among them, as masks over them."""
    place = {number: index for index, number in enumerate(inside)}
    return [sum(1 << place[end] for end in members(neighbours[number]) if end in place) for number in inside]
