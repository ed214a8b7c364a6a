"""Families of down-closed sets for graphs that have too many: coarse ones everywhere, fine ones near chosen cuts.

Contracting operators that belong together leaves a graph with fewer sets, each of which is
a down-closed set of the graph itself:

    a ──▶ b ──▶ d        a+b ──▶ d         a chain: b reads only a, or only b reads a
     └──▶ c ──▶ ┘         └──▶ c ┘
    a ──▶ b ──▶ d         a ──▶ b+c ──▶ d  twins: b and c read the same, and the same read them
     └──▶ c ──▶ ┘

None of this makes a circle. The pair with the least work goes first; articulation points,
through which everything flows, stay cuts until only chains of them are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from ropewalk.pipeline.down_sets import BitGraph, down_sets, members
from ropewalk.pipeline.partitioners.exact_search.blocks import BlockDownSets, Floats, crossing_bytes_of


class _Groups:
    """Operators that are contracted, as a graph of their own; each group goes by its smallest member."""

    def __init__(self, graph: BitGraph, work: Sequence[float]) -> None:
        self.graph = graph
        self.work = dict(enumerate(work))
        self.bits = {number: 1 << number for number in range(len(graph.sources))}
        self.sources = {number: set(members(bits)) for number, bits in enumerate(graph.sources)}
        self.targets = {number: set(members(bits)) for number, bits in enumerate(graph.targets)}

    def pairs(self) -> Iterable[tuple[float, int, int]]:
        """All chains and twins: their work and the two groups."""
        twins: dict[tuple[frozenset[int], frozenset[int]], int] = {}
        for number in sorted(self.bits):
            for target in self.targets[number]:
                if len(self.targets[number]) == 1 or len(self.sources[target]) == 1:
                    yield self.work[number] + self.work[target], number, target
            key = frozenset(self.sources[number]), frozenset(self.targets[number])
            if key in twins:
                yield self.work[twins[key]] + self.work[number], twins[key], number
            twins[key] = number

    def merge(self, one: int, other: int) -> None:
        """Make two groups one."""
        self.work[one] += self.work.pop(other)
        self.bits[one] |= self.bits.pop(other)
        for ours, theirs in ((self.sources, self.targets), (self.targets, self.sources)):
            for end in ours.pop(other):
                theirs[end].discard(other)
                if end != one:
                    theirs[end].add(one)
                    ours[one].add(end)
            ours[one].discard(other)

    def down_sets(self, limit: int) -> list[int] | None:
        """The down-closed sets of the groups, as sets of operators; None if there are more than `limit`."""
        order = self._order()
        place = {number: index for index, number in enumerate(order)}

        def joined(ends: Iterable[int]) -> int:
            return sum(1 << place[end] for end in ends)

        small = BitGraph(
            tuple(joined(self.sources[number]) for number in order),
            tuple(joined(self.targets[number]) for number in order),
        )
        found = down_sets(small, limit)
        if found is None:
            return None
        return [sum(self.bits[order[index]] for index in members(bits)) for bits in found]

    def _order(self) -> list[int]:
        waiting = {number: len(self.sources[number]) for number in self.bits}
        ready = [number for number in sorted(waiting) if not waiting[number]]
        order: list[int] = []
        while ready:
            number = ready.pop()
            order.append(number)
            for target in sorted(self.targets[number], reverse=True):
                waiting[target] -= 1
                if not waiting[target]:
                    ready.append(target)
        return order

    def merge_neighbours(self) -> None:
        """Where nothing else is left to contract: merge the pair of least work that stands together in an order."""
        order = self._order()
        _, one, other = min((self.work[a] + self.work[b], a, b) for a, b in pairwise(order))
        self.merge(one, other)


def coarse_sets(graph: BitGraph, work: Sequence[float], limit: int) -> list[int]:
    """At most `limit` down-closed sets (two at least), of operators contracted by their work, the least first."""
    limit = max(limit, 2)
    groups = _Groups(graph, work)
    while (found := groups.down_sets(limit)) is None:
        for _ in range(max(1, len(groups.bits) // 40)):  # a few at a time: counting takes longer than merging
            least = min(groups.pairs(), default=None)
            if least is not None:
                groups.merge(least[1], least[2])
            elif len(groups.bits) > 1:
                groups.merge_neighbours()
    return in_order(found)


def sets_near(graph: BitGraph, cut: int, num: int) -> list[int]:
    """A cut, and the down-closed sets that one, two, ... operators more or less make of it, about `num` of them."""
    found = {cut: None}
    layer = [cut]
    while layer and len(found) < num:
        following: dict[int, None] = {}
        for down_set in layer:
            for vertex in graph.may_join(down_set):
                following.setdefault(down_set | 1 << vertex)
            for vertex in graph.may_leave(down_set):
                following.setdefault(down_set & ~(1 << vertex))
        layer = [down_set for down_set in following if down_set not in found][: num - len(found)]
        found.update(dict.fromkeys(layer))
    return list(found)


class NearCuts:
    """All down-closed sets of a graph's core by the work in them, to find those near a cut that might be better."""

    def __init__(self, graph: BitGraph, parts: Sequence[BlockDownSets], work_s: Floats, values: Floats) -> None:
        self.graph, self.parts, self.work_s = graph, parts, work_s
        work = np.concatenate([of.sums(work_s) for of in parts])
        crossing = np.concatenate([crossing_bytes_of(graph, of, values) for of in parts])
        block = np.concatenate([np.full(len(of.masks), number) for number, of in enumerate(parts)])
        part = np.concatenate([np.arange(len(of.masks)) for of in parts])
        order = np.argsort(work, kind="stable")
        self._work, self._crossing, self._block, self._part = work[order], crossing[order], block[order], part[order]

    def near(self, cut: int, num: int) -> list[int]:
        """At most about `num` sets: most with nearly the work of the cut, some with more or less, of little to send."""
        core = cut & ~self.parts[0].block.strays
        here_s = float(self.work_s[list(members(core))].sum())
        steps = float(self.work_s.sum()) * np.geomspace(1e-6, 0.1, max(2, num // 4))
        edges = np.concatenate([here_s - steps[::-1], [here_s], here_s + steps])
        return [cut, *self._picked(edges, cut)]

    def everywhere(self, num: int) -> list[int]:
        """At most `num` sets of all amounts of work, half of them of little to send."""
        return self._picked(np.linspace(0.0, float(self._work[-1]), num // 2 + 1), self.graph.everything)

    def _picked(self, edges: Floats, like: int) -> list[int]:
        """Between each two amounts of work: the set with least to send, and one with about that work."""
        found: dict[int, None] = {}
        places = np.searchsorted(self._work, edges)
        for low, high in pairwise(places.tolist()):
            if low < high:
                for place in (low + int(np.argmin(self._crossing[low:high])), (low + high) // 2):
                    down_set = self.parts[int(self._block[place])].down_set(int(self._part[place]))
                    found[self._with_strays(down_set, like)] = None
        return list(found)

    def _with_strays(self, core: int, cut: int) -> int:
        """A set of the core with the strays it needs, and those of a cut that may be with it."""
        strays = self.parts[0].block.strays
        needed, ready = core, 0
        for number in reversed(range(len(self.graph.sources))):
            if needed >> number & 1:
                needed |= self.graph.sources[number] & strays
        for number in members(strays & cut):
            if not self.graph.sources[number] & ~(needed | ready):
                ready |= 1 << number
        return needed | ready


def in_order(sets: Iterable[int]) -> list[int]:
    """Without repetitions, by number of members and then as numbers, as `down_sets` gives them."""
    return sorted(set(sets), key=lambda down_set: (down_set.bit_count(), down_set))
