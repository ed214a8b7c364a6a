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
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class GraphBlock:
    """A stretch between two articulation points, as bit sets."""

    before: int
    """All blocks before it with their ends; empty for the first."""
    inside: int
    start: int
    """The articulation points at its two ends; -1: there is none."""
    end: int
    strays: int


def blocks(graph: BitGraph) -> list[GraphBlock]:
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
    found: list[GraphBlock] = []
    before, start = 0, -1
    for number in members(core):
        if not core & ~(ancestors[number] | descendants[number] | 1 << number):
            inside = ancestors[number] & core & ~before
            found.append(GraphBlock(before, inside, start, number, strays))
            before, start = before | inside | 1 << number, number
    found.append(GraphBlock(before, core & ~before, start, -1, strays))
    return found


@dataclass(frozen=True, slots=True)
class BlockDownSets:
    """The down-closed parts of a block, as masks over the operators inside; the first is the part of nothing."""

    block: GraphBlock
    inside: tuple[int, ...]
    masks: Masks
    complete: bool
    """Whether these are all; else it is only the part of nothing."""

    def sums(self, amounts: Floats) -> Floats:
        """Of amounts of operators, the sums over all that lies before a cut through each part."""
        places = np.arange(len(self.inside), dtype=np.uint64)
        bits = (self.masks[:, None] >> places & np.uint64(1)).astype(np.float64)
        return float(amounts[list(members(self.block.before))].sum()) + bits @ amounts[list(self.inside)]

    def holds(self, number: int) -> Flags:
        """Of each part, whether it holds an operator of the block."""
        if not self.complete:
            return np.zeros(len(self.masks), dtype=np.bool_)
        return (self.masks >> np.uint64(self.inside.index(number)) & np.uint64(1)).astype(np.bool_)

    def leaves_out(self, numbers: int) -> Flags:
        """Of each part, whether it lacks any of these operators of the block, a bit set."""
        if not self.complete:  # its one part holds nothing, and masks have too few bits for its operators
            return np.full(len(self.masks), bool(numbers & self.block.inside))
        local = np.uint64(sum(1 << index for index, number in enumerate(self.inside) if numbers >> number & 1))
        return (self.masks & local) != local

    def down_set(self, number: int) -> int:
        """The down-closed set of the core that a part makes."""
        mask = int(self.masks[number])
        return self.block.before | sum(1 << self.inside[index] for index in members(mask))


def down_closed_parts(graph: BitGraph, limit: int) -> list[BlockDownSets]:
    """The down-closed parts of each block; only the part of nothing where they would be more than `limit`."""
    return [_parts(graph, block, limit) for block in blocks(graph)]


def _parts(graph: BitGraph, block: GraphBlock, limit: int) -> BlockDownSets:
    inside = tuple(members(block.inside))
    nothing = np.zeros(1, dtype=np.uint64)
    if len(inside) > 62:
        return BlockDownSets(block, inside, nothing, complete=False)
    local = local_masks(graph.sources, inside)
    layers = [nothing]
    num = 1
    while len(layers[-1]):
        grown: list[Masks] = [layers[-1][:0]]
        for index, needed in enumerate(local):
            bit, mask = np.uint64(1 << index), np.uint64(needed)
            ready = ((layers[-1] & mask) == mask) & ((layers[-1] & bit) == 0)
            grown.append(layers[-1][ready] | bit)
        layers.append(np.unique(np.concatenate(grown)))
        num += len(layers[-1])
        if num > limit:
            return BlockDownSets(block, inside, nothing, complete=False)
    return BlockDownSets(block, inside, np.concatenate(layers), complete=True)


def crossing_bytes_of(graph: BitGraph, parts: BlockDownSets, amounts: Floats) -> Floats:
    """The bytes of the values that cross a cut through each part."""
    found = np.zeros(len(parts.masks))
    for number in (*members(parts.block.inside), *([parts.block.start] if parts.block.start >= 0 else [])):
        crosses = parts.leaves_out(graph.targets[number])
        if graph.targets[number] & ~parts.block.inside:
            crosses = np.ones(len(parts.masks), dtype=np.bool_)
        if number != parts.block.start:
            crosses = crosses & parts.holds(number)
        found += amounts[number] * crosses
    return found


def local_masks(neighbours: Sequence[int], inside: Sequence[int]) -> list[int]:
    """The neighbours of each of some operators, as far as they are among them, as masks over them."""
    place = {number: index for index, number in enumerate(inside)}
    return [sum(1 << place[end] for end in members(neighbours[number]) if end in place) for number in inside]
