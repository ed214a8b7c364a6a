"""Which devices stages may take, seen from the last stage: a graph of states that the search walks through.

Each stage takes a run of devices of one kind that nests in the levels, before those of later
stages. A state is what remains; a move is a stage:

    4 devices:  [0 1 2 3] ── stage on (3) ──▶ [0 1 2] ── stage on (1, 2) ──▶ [0]
                          └─ stage on (2, 3) ─▶ [0 1] ─ ...

A stage's cost depends on the levels that join it to both neighbours, so a state also
promises the level that will join its earliest stage to the one before. A stage may leave
devices idle to be joined by another level than that of the nearest:

    2 servers of 2:  [0 1][2 3] ── stage on (3) ──▶ [0 1][2] ── on (2), level 0 ──▶ [0 1]
                                                             └─ on (1), level 1 ──▶ [0]      2 stays idle

Of the runs at one level the last is enough, where all devices are of one kind: any plan with
an earlier one can be moved to it, as components of a level are all alike. With several kinds
the last run of each component is tried.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ropewalk.pipeline.cost import level_number
from ropewalk.pipeline.topology import Topology


class PlacementState(NamedTuple):
    """The devices that later stages left, and how they join what comes before."""

    free: tuple[int, ...]
    """Of each kind, how many of its first devices are free."""
    used: int
    """Devices that later stages run on, where memory depends on it; else 0."""
    following: int
    """The first device of the following stage; -1: there is none."""
    level: int
    """Number of the level that joins the stage before to that device; -1: there will be none."""
    num_stages: int
    """Later stages, where their number matters; else 0."""


@dataclass(frozen=True, slots=True)
class Move:
    """A stage on devices, from the state after it to the state before it."""

    after: PlacementState
    before: PlacementState
    kind: int
    devices: tuple[int, ...]


def last_run(topology: Topology, kind: int, free: int, replicas: int) -> tuple[int, ...] | None:
    """The last run of `replicas` devices, among the first `free` of a kind, that nests."""
    devices = topology.devices_of(kind)
    for end in range(free, replicas - 1, -1):
        run = devices[end - replicas : end]
        if topology.nests(run):
            return run
    return None


@dataclass(frozen=True)
class Moves:
    """All states and moves, in an order in which each state is reached before it is left."""

    start: PlacementState
    states: tuple[PlacementState, ...]
    moves: tuple[tuple[Move, ...], ...]
    """Those that leave each state."""


def moves(
    topology: Topology, widths: Iterable[int], num_stages: int | None = None, *, counts_used: bool = True
) -> Moves:
    """Find what stages of these numbers of replicas can do.

    Args:
        topology: the devices.
        widths: the numbers of replicas that a stage may have.
        num_stages: if given, stages are counted, up to this many.
        counts_used: whether states tell how many devices later stages run on, which memory depends on.
    """
    kinds = range(len(topology.kinds))
    runs = {(kind, replicas): _nesting(topology, kind, replicas) for replicas in widths for kind in kinds}
    start = PlacementState(tuple(len(topology.devices_of(kind)) for kind in kinds), 0, -1, -1, 0)
    layers: dict[int, dict[PlacementState, None]] = {
        topology.num_devices: {start: None}
    }  # by devices left; dicts for order
    found: dict[PlacementState, tuple[Move, ...]] = {}
    for left in range(topology.num_devices, -1, -1):
        for state in layers.pop(left, {}):
            if num_stages is not None and state.num_stages == num_stages:
                found[state] = ()
                continue
            leaving = tuple(_leaving(topology, state, runs, num_stages is not None, counts_used))
            found[state] = leaving
            for move in leaving:
                layers.setdefault(sum(move.before.free), {})[move.before] = None
    return Moves(start, tuple(found), tuple(found.values()))


def only(chain: Sequence[Move]) -> Moves:
    """No other moves than those of one plan, given from its first stage."""
    backwards = tuple(reversed(chain))
    states = (backwards[0].after, *(move.before for move in backwards))
    return Moves(states[0], states, (*((move,) for move in backwards), ()))


_Runs = Mapping[tuple[int, int], Sequence[tuple[int, tuple[int, int]]]]
"""Of a kind and a number of replicas, all runs that nest: where they begin among the devices of the kind, ascending,
and the innermost component that each lies in."""


def _nesting(topology: Topology, kind: int, replicas: int) -> list[tuple[int, tuple[int, int]]]:
    devices = topology.devices_of(kind)
    found: list[tuple[int, tuple[int, int]]] = []
    for start in range(len(devices) - replicas + 1):
        run = devices[start : start + replicas]
        if topology.nests(run):
            number = level_number(topology, run[0], run[-1])
            found.append((start, (number, run[0] // topology.component_sizes[number])))
    return found


def _leaving(
    topology: Topology, state: PlacementState, runs: _Runs, counted: bool, counts_used: bool
) -> Iterable[Move]:
    several = len(topology.kinds) > 1
    stages = state.num_stages + 1 if counted else 0
    for (kind, replicas), starts in runs.items():
        devices, seen = topology.devices_of(kind), set[tuple[int, int]]()
        for start, component in reversed(starts):
            run = devices[start : start + replicas]
            if start + replicas > state.free[kind] or component in seen:
                continue
            if state.following >= 0 and level_number(topology, run[-1], state.following) != state.level:
                continue
            seen.add(component)
            left = (*state.free[:kind], start, *state.free[kind + 1 :])
            used = state.used + replicas if counts_used else 0
            for level in _levels_before(topology, left, run[0]):
                yield Move(state, PlacementState(left, used, run[0], level, stages), kind, run)
            if not several:
                break


def _levels_before(topology: Topology, free: tuple[int, ...], following: int) -> list[int]:
    """The numbers of the levels that may join a device to an earlier stage on one of the free devices."""
    found: set[int] = set()
    for kind, num in enumerate(free):
        devices = topology.devices_of(kind)
        inner = following, following + 1
        for number, size in enumerate(topology.component_sizes):
            start = following // size * size
            ranges = (start, inner[0]), (inner[1], start + size)  # of this component, without that of the level below
            if any(bisect_left(devices, low, 0, num) < bisect_left(devices, high, 0, num) for low, high in ranges):
                found.add(number)
            inner = start, start + size
    return sorted(found) or [-1]
