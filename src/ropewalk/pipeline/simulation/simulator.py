"""The simulator: plays the action lists of a plan against the clock, on a profile's times and a topology's links.

Each worker carries its list out in order, and waits where it must: a Receive for its
tensor to arrive, a Send for a free slot of its link, a Reduce for all its members. A
transfer of n bytes passes two ports, one after the other or at once, n / bandwidth seconds
of each, and arrives a latency later:

    worker 0   F0:0 │S                        S asks for the port
    out of 0        └▶ ██████                 busy with this transfer alone, in the order of asking
    into 1             └▶ ██████ ──latency──▶ may wait here, if transfers of others are before it
    worker 1                                R │ F1:0        R takes the tensor, and frees the slot

Every device has one port out and one port in per level. Ports serve first come, first
served; of those that come at the same instant the sender with the lower number goes first.
What is left out: reductions do not hold up transfers, and slots take no memory.

The loop needs no clock of its own. A worker runs ahead until it must wait, since nothing
another does can change what it has already begun; only entries to ports in, where senders
meet, are settled in the order of their times.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.profiles import Profile
from ropewalk.pipeline.schedules import Schedule, make_schedule
from ropewalk.pipeline.simulation.spans import COMPUTING, Summing, TensorTransfer
from ropewalk.pipeline.simulation.stage_load import stage_loads
from ropewalk.pipeline.simulation.standstill import standstill
from ropewalk.pipeline.simulation.stream_program import COMPUTE, SAME_DEVICE, StreamProgram
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.pipeline.topology import Topology

_NEVER = -1.0
_NOBODY = -1
#: When an action starts and ends, in seconds.
_Span = tuple[float, float]


def simulate(
    plan: Plan,
    profile: Profile,
    topology: Topology,
    actions: Mapping[PlanWorker, Sequence[Action]] | None = None,
    *,
    schedule: str | Schedule | None = None,
    slots: int = 2,
    overlap: bool = True,
    update_s: Mapping[int, float] | None = None,
    optimizer_slots: int = 2,
) -> Timeline:
    """Play the action lists of a plan, and say when each action happens.

    Args:
        plan: stages on devices.
        profile: the times and sizes of its operators, for one micro-batch on a device of speed 1.
        topology: the devices and the links between them.
        actions: what each worker does, in order. None: what the schedule says.
        schedule: the schedule that the lists are of, by name or configured; None: the plan's, or for lists of one's own
            none, and then they are taken to flush if no worker computes after its first Step.
        slots: how many tensors each link (of one tensor, in one direction, between two workers) holds that were sent
            and not yet received; a Send waits for a free one.
        overlap: whether a worker goes on computing while its tensors are on their way; False: it waits for each one it
            sends until the receiver's port has it.
        update_s: seconds of a Step at each stage; a stage that is not named takes none.
        optimizer_slots: copies of the weights that the optimizer keeps, for the memory (Adam 2, SGD with momentum 1).

    Raises:
        PlanInvalid: the plan does not belong to the profile or the topology.
        ScheduleInvalid: the lists cannot be carried out to their ends; says who waits for what.
    """
    if slots < 1:
        raise ValueError(f"a link needs at least 1 slot, not {slots}")
    if actions is None:
        schedule = make_schedule(schedule or plan.schedule)
        actions = schedule.actions(plan)
    flushes = make_schedule(schedule).flushes if schedule is not None else not _computes_after_step(actions)
    loads = stage_loads(plan, profile, topology)
    program = StreamProgram(plan, profile, topology, loads, actions, update_s or {})
    run = _Run(program, slots, overlap)
    run.play()
    return Timeline(
        plan=plan,
        topology=topology,
        loads=loads,
        optimizer_slots=optimizer_slots,
        actions=dict(zip(program.workers, program.lists, strict=True)),
        starts=dict(zip(program.workers, run.starts, strict=True)),
        ends=dict(zip(program.workers, run.ends, strict=True)),
        transfers=tuple(run.transfers()),
        sums=tuple(run.sums()),
        flushes=flushes,
    )


def _computes_after_step(actions: Mapping[PlanWorker, Sequence[Action]]) -> bool:
    for own in actions.values():
        kinds = [action.kind for action in own]
        if ActionKind.STEP in kinds and not COMPUTING.isdisjoint(kinds[kinds.index(ActionKind.STEP) :]):
            return True
    return False


class _Run:
    """One run over a program: where each worker stands, and when each message passed."""

    def __init__(self, program: StreamProgram, slots: int, overlap: bool) -> None:
        num_workers, num_messages, links = len(program.workers), len(program.link_of), program.links
        self.program, self.slots, self.overlap = program, slots, overlap
        self.place = [0] * num_workers
        self.clock = [0.0] * num_workers
        self.starts: list[list[float]] = [[] for _ in program.workers]
        self.ends: list[list[float]] = [[] for _ in program.workers]
        #: Workers that may be able to go on; the last one is taken first.
        self.ready = list(range(num_workers))[::-1]

        #: By message: when its sender asked for the port, and when it began to pass each of the two ports and arrived.
        self.asked = [_NEVER] * num_messages
        self.out_start = [_NEVER] * num_messages
        self.in_start = [_NEVER] * num_messages
        self.arrival = [_NEVER] * num_messages
        #: By message: the worker that waits for it to arrive, and the one that waits for it to be sent off.
        self.reader = [_NOBODY] * num_messages
        self.sender = [_NOBODY] * num_messages

        levels = program.topology.levels
        self.link_seconds = [link.seconds for link in links]
        self.link_latency = [link.latency_s for link in links]
        self.is_free = [link.level == SAME_DEVICE or levels[link.level].bandwidth == float("inf") for link in links]
        self.is_inside = [link.sender == link.receiver for link in links]
        self.num_sent = [0] * len(links)
        #: When each receive on a link happened; the k-th frees a slot for the (k + slots)-th send.
        self.received: list[list[float]] = [[] for _ in links]
        #: By link: the worker that waits for a slot of it.
        self.slot_waiter = [_NOBODY] * len(links)

        #: By link its two ports; by port, until when it is busy.
        self.out_port = [link.sender * len(levels) + link.level for link in links]
        self.in_port = [link.receiver * len(levels) + link.level for link in links]
        self.out_until = [0.0] * (num_workers * len(levels))
        self.in_until = [0.0] * (num_workers * len(levels))
        #: Messages on their way to a port in, as a heap: (when, sender, message).
        self.entries: list[tuple[float, int, int]] = []

        #: By reduction: the workers that have come to it, when the last came, and when it was done.
        self.present: list[list[int]] = [[] for _ in program.reductions]
        self.sum_start = [_NEVER] * len(program.reductions)
        self.sum_end = [_NEVER] * len(program.reductions)

    def play(self) -> None:
        """Carry out all lists."""
        ready, entries = self.ready, self.entries
        while ready or entries:
            if ready:
                self._run_ahead(ready.pop())
            else:
                self._enter_port()
        if any(at < len(codes) for at, codes in zip(self.place, self.program.codes, strict=True)):
            raise standstill(self.program, self.place, self.slots)

    def _run_ahead(self, worker: int) -> None:
        """Carry out a worker's list until it ends, or the worker must wait."""
        codes, durations = self.program.codes[worker], self.program.durations[worker]
        starts, ends = self.starts[worker], self.ends[worker]
        now, at, num = self.clock[worker], self.place[worker], len(codes)
        while at < num:
            code = codes[at]
            if code == COMPUTE:
                starts.append(now)
                now += durations[at]
            else:
                if code < 0:
                    span = self._take_part(-2 - code, worker, now)
                elif code & 1:
                    span = self._receive(code >> 1, worker, now)
                else:
                    span = self._send(code >> 1, worker, now)
                if span is None:
                    break
                start, now = span
                starts.append(start)
            ends.append(now)
            at += 1
        self.clock[worker], self.place[worker] = now, at

    # What a worker does at `now`: when it starts and ends, or None if the worker must wait. Whatever it waits for puts
    # it back among the ready ones, and it tries again.

    def _receive(self, message: int, worker: int, now: float) -> _Span | None:
        when = self.arrival[message]
        if when < 0:
            self.reader[message] = worker
            return None
        if when > now:
            now = when
        link = self.program.link_of[message]
        self.received[link].append(now)
        if self.slot_waiter[link] >= 0:
            self.ready.append(self.slot_waiter[link])
            self.slot_waiter[link] = _NOBODY
        return now, now

    def _send(self, message: int, worker: int, now: float) -> _Span | None:
        link = self.program.link_of[message]
        if self.asked[message] < 0:
            received = self.received[link]
            owed = self.num_sent[link] - self.slots  # the receive that frees our slot
            if owed >= 0 and not self.is_inside[link]:
                if owed >= len(received):
                    self.slot_waiter[link] = worker
                    return None
                if received[owed] > now:
                    now = received[owed]
            self.num_sent[link] += 1
            self._ask_for_port(message, link, worker, now)
        if self.overlap:
            return now, now
        if self.in_start[message] < 0:
            self.sender[message] = worker
            return None
        return self.asked[message], self.in_start[message] + self.link_seconds[link]

    def _take_part(self, number: int, worker: int, now: float) -> _Span | None:
        """Take part in a reduction, which begins when the last of its members has come."""
        if self.sum_end[number] < 0:
            reduction, present = self.program.reductions[number], self.present[number]
            present.append(worker)
            self.sum_start[number] = max(self.sum_start[number], now)
            if len(present) < len(reduction.members):
                return None
            self.sum_end[number] = self.sum_start[number] + reduction.seconds
            self.ready.extend(present[:-1])
        done = self.sum_end[number]
        return (self.sum_start[number], done) if done > now else (now, now)

    # What a message does.

    def _ask_for_port(self, message: int, link: int, worker: int, now: float) -> None:
        self.asked[message] = now
        if self.is_free[link]:
            self.out_start[message] = self.in_start[message] = now
            self._arrive(message, now + self.link_latency[link])
            return
        port = self.out_port[link]
        begin = self.out_until[port]
        if begin < now:
            begin = now
        self.out_start[message] = begin
        self.out_until[port] = begin + self.link_seconds[link]
        heapq.heappush(self.entries, (begin, worker, message))

    def _enter_port(self) -> None:
        """Have the message that comes first pass the port in of its receiver."""
        begin, _, message = heapq.heappop(self.entries)
        link = self.program.link_of[message]
        port = self.in_port[link]
        if begin < self.in_until[port]:
            begin = self.in_until[port]
        self.in_start[message] = begin
        self.in_until[port] = end = begin + self.link_seconds[link]
        self._arrive(message, end + self.link_latency[link])
        if self.sender[message] >= 0:
            self.ready.append(self.sender[message])

    def _arrive(self, message: int, when: float) -> None:
        self.arrival[message] = when
        if self.reader[message] >= 0:
            self.ready.append(self.reader[message])

    # --- what came of it ----------------------------------------------------------------------------------------------

    def transfers(self) -> Iterator[TensorTransfer]:
        """All that passed, in the order in which messages are numbered."""
        workers = self.program.workers
        for message, number in enumerate(self.program.link_of):
            if self.asked[message] >= 0:
                link = self.program.links[number]
                yield TensorTransfer(
                    link.tensor,
                    link.source,
                    link.target,
                    self.program.micro_batch_of[message],
                    workers[link.sender],
                    workers[link.receiver],
                    link.level,
                    link.size_bytes,
                    link.seconds,
                    self.asked[message],
                    self.out_start[message],
                    self.in_start[message],
                    self.arrival[message],
                )

    def sums(self) -> Iterator[Summing]:
        """All reductions."""
        workers = self.program.workers
        for number, reduction in enumerate(self.program.reductions):
            yield Summing(
                reduction.group,
                reduction.stage,
                reduction.version,
                tuple(workers[member] for member in reduction.members),
                reduction.level,
                reduction.size_bytes,
                self.sum_start[number],
                self.sum_end[number],
            )
