"""How many agents, and how large: from the waiting processes to the shares to ask for. Pure.

A share is the part of a host that one job gets: room for a number of processes of one kind. Processes of another kind
use up a part of it: one of which `n` fit into a job takes 1/n.

Where an engine finds a host for every job, all hosts are taken for equal (`shares`). Where it has a fixed
number of them, each share is cut to the room that is left on one (`shares_of_places`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from ropewalk.engines.engine import HostSlots
from ropewalk.engines.resources import HostCapacity, Resources
from ropewalk.quantities import counted

PerJob = Mapping[Resources, int | None]
"""How many processes of a kind fit into one job, None for any number."""
_ROUNDING = 1e-9


class Share(msgspec.Struct, frozen=True):
    """The part of a host that one agent may use."""

    slots: int | None
    """How many processes like `kind` it has room for; None for any number."""
    kind: Resources
    place: str = ""
    """The host of which it is a part, if the engine has a fixed number of them."""

    @property
    def resources(self) -> Resources:
        """The resources that its job asks the engine for."""
        n = self.slots or 1
        memory = self.kind.memory_bytes
        return Resources(self.kind.cpus * n, self.kind.gpus * n, memory * n if memory else None)


def fits(share: Share, hosted: Iterable[Resources], another: Resources, leaving: Iterable[Resources] = ()) -> bool:
    """Return whether a share has room for another process beside those that it hosts.

    Where its job names no memory, as much as the engine gives by itself, memory is not counted.

    Args:
        share: the share.
        hosted: the processes that it hosts, without those that leave.
        another: the other process.
        leaving: processes that end by themselves soon: their CPUs are shared until then, and their GPUs and memory are
            in use.
    """
    if share.slots is None:
        return True
    staying = [*hosted, another]
    processes = [*staying, *leaving]
    room = share.resources
    cpus, gpus = sum(each.cpus for each in staying), sum(each.gpus for each in processes)
    memory = sum(each.memory_bytes or 0 for each in processes)
    return cpus <= room.cpus + _ROUNDING and gpus <= room.gpus and memory <= (room.memory_bytes or memory)


def suits(share: Share, process: Resources) -> bool:
    """Return whether a process may use the room of a share that was made for processes of another kind.

    One without GPUs leaves those that are there to the processes that need them.
    """
    return share.slots is None or bool(share.kind.gpus) == bool(process.gpus)


def shares(
    waiting: Sequence[Resources],
    per_job: PerJob,
    coming: Sequence[Share],
    *,
    hosts: int | None,
    most: int | None,
    now: int,
) -> list[Share]:
    """Return the agents to ask for, from an engine that finds hosts for them.

    Args:
        waiting: processes that no agent has room for; with `hosts`, at least one of the kind to make room for.
        per_job: the engine's answer for each kind that waits.
        coming: agents that are being started, and will take some of them.
        hosts: the number of agents that the user has asked for; they are as large as a job may be.
        most: how many agents there can be at once.
        now: how many agents there are, including those that are being started.
    """
    if hosts is not None:
        kind = waiting[0]
        return [Share(per_job.get(kind), kind)] * max(0, hosts - now)
    wanted: list[Share] = []
    for kind, count in _lacking(waiting, coming).items():
        largest = per_job.get(kind)
        if largest is None:
            wanted += [Share(None, kind)] if count > 0 and not (now or wanted or coming) else []
            continue
        num_jobs = math.ceil(count / largest)
        # Evenly: 5 processes of which 4 fit are 3 and 2, not 4 and 1.
        wanted += [Share(len(range(job, count, num_jobs)), kind) for job in range(num_jobs)]
    return wanted if most is None else wanted[: max(0, most - now)]


def shares_of_places(
    waiting: Sequence[Resources],
    per_job: PerJob,
    coming: Sequence[Share],
    *,
    hosts: int | None,
    free: Mapping[str, HostCapacity],
    now: int,
) -> list[Share]:
    """Return the agents to ask for, from an engine that has a fixed number of hosts, which may be of different sizes.

    Args:
        waiting: processes that no agent has room for; with `hosts`, at least one of the kind to make room for.
        per_job: the most processes of each kind that the engine puts into one job.
        coming: agents that are being started, and will take some of them.
        hosts: the number of agents that the user has asked for, each on a host of its own and as large as that allows.
        free: what no agent has yet of each host, by name.
        now: how many agents there are, including those that are being started.

    Returns:
        Shares with places, on as few hosts as possible; room for fewer processes than wait if no more is left.
    """
    left = dict(free)
    wanted: list[Share] = []
    if hosts is not None:
        kind = waiting[0]
        for name, room in _roomiest(left, kind)[: max(0, hosts - now)]:
            wanted.append(Share(_at_most(room, per_job.get(kind)), kind, name))
        return wanted
    # The large ones first: small ones fit in beside them, and not the other way round.
    for kind, count in sorted(_lacking(waiting, coming).items(), key=lambda item: _size(item[0]), reverse=True):
        for name, num in _spread(_roomiest(left, kind), count):
            for start in range(0, num, per_job.get(kind) or num):
                share = Share(_at_most(num - start, per_job.get(kind)), kind, name)
                left[name] = left[name].without(share.resources)
                wanted.append(share)
    return wanted


def too_many(processes: Sequence[Resources], places: HostSlots, hosts: int | None = None) -> str:
    """Explain why these processes can never run at the same time on these places; empty if they may.

    Combinations that it refuses can never run. Processes of several kinds may still not fit where it refuses nothing.

    Args:
        processes: all processes that must run at the same time.
        places: the places of the engine.
        hosts: the number of agents that the user has asked for.
    """
    if hosts and hosts > len(places.rooms):
        return f"{places.words} has fewer than the {hosts} hosts that were asked for; ask for fewer, {places.advice}"
    rooms = list(places.rooms.values())
    counts = Counter(processes)
    have = {kind: sum(room.holds(kind) for room in rooms) for kind in counts}
    total = HostCapacity(
        sum(room.cpus for room in rooms),
        sum(room.gpus for room in rooms),
        None if any(room.memory_bytes is None for room in rooms) else sum(room.memory_bytes or 0 for room in rooms),
    )
    asked_memory = sum(each.memory_bytes or 0 for each in processes)
    over = [
        f"{asked:g} {what}, of {of:g}"
        for what, asked, of in (
            ("CPUs", sum(each.cpus for each in processes), total.cpus),
            ("GPUs", sum(each.gpus for each in processes), total.gpus),
            ("bytes of memory", asked_memory, asked_memory if total.memory_bytes is None else total.memory_bytes),
        )
        if asked > of + _ROUNDING
    ]
    few = [
        f"it has room for {have[kind]}" + f" of {described(kind)}" * (len(counts) > 1)
        for kind, count in counts.items()
        if count > have[kind]
    ]
    if not over and not few:
        return ""
    asked = " and ".join(f"{count} process{'es' * (count > 1)} of {described(kind)}" for kind, count in counts.items())
    why = "; ".join(few or [f"together they ask for {' and '.join(over)}"])
    return (
        f"{places.words} is too small for {asked}: {why}. Ask for fewer processes, for less for each (of two with "
        f"cpus=0.5, one CPU is enough), {places.advice}"
    )


def described(kind: Resources) -> str:
    """Describe the resources that a process asks for."""
    parts = [f"{kind.cpus:g} CPU{'s' * (kind.cpus != 1)}"]
    parts += [counted(kind.gpus, "GPU")] * bool(kind.gpus)
    parts += [f"{kind.memory_bytes:,} bytes of memory"] if kind.memory_bytes else []
    return ", ".join(parts)


def _lacking(waiting: Sequence[Resources], coming: Sequence[Share]) -> dict[Resources, int]:
    """Return how many of each kind no agent that is being started will take."""
    room = Counter[Resources]()
    for share in coming:
        room[share.kind] += share.slots if share.slots is not None else len(waiting)
    return {kind: max(0, count - room[kind]) for kind, count in Counter(waiting).items()}


def _roomiest(free: Mapping[str, HostCapacity], kind: Resources) -> list[tuple[str, int]]:
    """Return the places with room for such processes, with the number of these, those with most room first."""
    rooms = [(name, num) for name, room in free.items() if (num := room.holds(kind))]
    return sorted(rooms, key=lambda place: -place[1])


def _spread(places: Sequence[tuple[str, int]], count: int) -> list[tuple[str, int]]:
    """Distribute processes over as few of the first places as hold them, evenly as far as their room allows."""
    used: list[tuple[str, int]] = []
    held = 0
    for place in places:
        if held >= count:
            break
        used.append(place)
        held += place[1]
    dealt: list[tuple[str, int]] = []
    left = count
    for number, (name, room) in enumerate(reversed(used)):  # least room first: the others take the rest
        num = min(room, math.ceil(left / (len(used) - number)))
        dealt.append((name, num))
        left -= num
    return dealt[::-1]


def _at_most(count: int, limit: int | None) -> int:
    return count if limit is None else min(count, limit)


def _size(kind: Resources) -> tuple[int, float, int]:
    return kind.gpus, kind.cpus, kind.memory_bytes or 0
