"""The down-closed sets of a profile's graph, as bit sets: the sets of operators that may lie before a cut.

A set of operators is down-closed if it has the sources of each of its members. Every legal
cut of a model corresponds to such a set, and the stages of a plan are the differences of
nested sets (Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph
Operators, 2020, call them ideals):

    {} ⊂ {input, conv} ⊂ {input, conv, relu, pool} ⊂ everything
         └─ stage 0 ─┘   └──── stage 1 ──────────┘ ...

A bit set is a plain `int`: bit i stands for `order[i]` of the profile. So the bits are in
topological order, and a prefix of the order is a down-closed set.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ropewalk.pipeline.profiles import Profile


@dataclass(frozen=True, slots=True)
class BitGraph:
    """A graph whose vertices are numbered in topological order, with their neighbours as bit sets."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]

    @property
    def everything(self) -> int:
        """The set of all vertices."""
        return (1 << len(self.sources)) - 1

    @classmethod
    def of(cls, profile: Profile) -> BitGraph:
        """Return the graph of a profile, numbered as `profile.order`."""
        bit = {id: 1 << index for index, id in enumerate(profile.order)}

        def joined(ids: Iterable[str]) -> int:
            return sum(bit[id] for id in ids)

        return cls(
            tuple(joined(profile.sources[id]) for id in profile.order),
            tuple(joined(profile.targets[id]) for id in profile.order),
        )

    def bits_of(self, profile: Profile, ids: Iterable[str]) -> int:
        """Return these operators of the profile as a bit set."""
        inside = set(ids)
        return sum(1 << index for index, id in enumerate(profile.order) if id in inside)

    def may_join(self, down_set: int) -> Iterator[int]:
        """Yield the vertices outside a down-closed set whose sources are all in it."""
        outside = self.everything & ~down_set
        while outside:
            vertex = outside & -outside
            outside ^= vertex
            if not self.sources[vertex.bit_length() - 1] & ~down_set:
                yield vertex.bit_length() - 1

    def may_leave(self, down_set: int) -> Iterator[int]:
        """Yield the vertices of a down-closed set whose targets are all outside it."""
        for vertex in members(down_set):
            if not self.targets[vertex] & down_set:
                yield vertex


def members(bits: int) -> Iterator[int]:
    """Yield the numbers in a bit set, smallest first."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def down_sets(graph: BitGraph, limit: int) -> list[int] | None:
    """List all down-closed sets, including the empty set and the set of all vertices.

    Args:
        graph: the graph.
        limit: most sets to return.

    Returns:
        The sets, ordered by number of members and then by their bits; None if there are more than `limit`.
    """
    found = {0}
    layer = [(0, frozenset(graph.may_join(0)))]  # pairs of a set and the vertices that may join it
    while layer:
        following: dict[int, frozenset[int]] = {}
        for down_set, ready in layer:
            for vertex in ready:
                grown = down_set | 1 << vertex
                if grown in following:
                    continue
                opened = [end for end in members(graph.targets[vertex]) if not graph.sources[end] & ~grown]
                following[grown] = ready - {vertex} | frozenset(opened)
            if len(found) + len(following) > limit:
                return None
        found.update(following)
        layer = list(following.items())
    return sorted(found, key=lambda down_set: (down_set.bit_count(), down_set))
