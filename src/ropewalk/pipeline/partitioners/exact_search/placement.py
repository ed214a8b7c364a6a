"""Which devices stages may take, seen from the last stage: a graph of states that the search walks through.

Each stage takes a run of devices of one kind that nests in the levels: the last such run of
those that later stages left. A state is what remains; a move is a stage:

    4 devices:  [0 1 2 3] ── stage on (3) ──▶ [0 1 2] ── stage on (1, 2) ──▶ [0]
                          └─ stage on (2, 3) ─▶ [0 1] ─ ...

A stage's cost depends on the levels that join it to both neighbours, so a state also
promises the level that will join its earliest stage to the one before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ropewalk.pipeline.cost import level_number
from ropewalk.pipeline.topology import Topology


class State(NamedTuple):
    """The devices that later stages left, and how they join what comes before."""

    #: Of each kind, how many of its first devices are free.
    free: tuple[int, ...]
    #: Devices that later stages run on.
    used: int
    #: The first device of the following stage; -1: there is none.
    following: int
    #: Number of the level that joins the stage before to that device; -1: there will be none.
    level: int
    #: Later stages, where their number matters; else 0.
    num_stages: int


@dataclass(frozen=True, slots=True)
class Move:
    """A stage on devices, from the state after it to the state before it."""

    after: State
    before: State
    kind: int
    devices: tuple[int, ...]


def last_run(topology: Topology, kind: int, free: int, replicas: int) -> tuple[int, ...] | None:
    """The last run of so many devices, among the first `free` of a kind, that nests."""
    devices = topology.devices_of(kind)
    for end in range(free, replicas - 1, -1):
        run = devices[end - replicas : end]
        if topology.nests(run):
            return run
    return None


@dataclass(frozen=True)
class Moves:
    """All states and moves, in an order in which each state is reached before it is left."""

    start: State
    states: tuple[State, ...]
    moves: tuple[tuple[Move, ...], ...]
    """Those that leave each state."""


def moves(topology: Topology, widths: Iterable[int], num_stages: int | None = None) -> Moves:
    """Find what stages of these numbers of replicas can do; with `num_stages`, count them up to that."""
    widths = tuple(widths)
    kinds = range(len(topology.kinds))
    start = State(tuple(len(topology.devices_of(kind)) for kind in kinds), 0, -1, -1, 0)
    layers: dict[int, dict[State, None]] = {0: {start: None}}  # by devices used; dicts for their order
    found: dict[State, tuple[Move, ...]] = {}
    for used in range(topology.num_devices + 1):
        for state in layers.get(used, {}):
            if num_stages is not None and state.num_stages == num_stages:
                found[state] = ()
                continue
            leaving = tuple(_leaving(topology, state, widths, num_stages is not None))
            found[state] = leaving
            for move in leaving:
                layers.setdefault(move.before.used, {})[move.before] = None
    return Moves(start, tuple(found), tuple(found.values()))


def only(chain: Sequence[Move]) -> Moves:
    """No other moves than those of one plan, given from its first stage."""
    backwards = tuple(reversed(chain))
    states = (backwards[0].after, *(move.before for move in backwards))
    return Moves(states[0], states, (*((move,) for move in backwards), ()))


def _leaving(topology: Topology, state: State, widths: tuple[int, ...], counted: bool) -> Iterable[Move]:
    for kind, free in enumerate(state.free):
        for replicas in widths:
            run = last_run(topology, kind, free, replicas) if replicas <= free else None
            if run is None:
                continue
            if state.following >= 0 and level_number(topology, run[-1], state.following) != state.level:
                continue
            start = bisect_left(topology.devices_of(kind), run[0])
            left = (*state.free[:kind], start, *state.free[kind + 1 :])
            stages = state.num_stages + 1 if counted else 0
            for level in _levels_before(topology, left, run[0]):
                yield Move(state, State(left, state.used + replicas, run[0], level, stages), kind, run)


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
