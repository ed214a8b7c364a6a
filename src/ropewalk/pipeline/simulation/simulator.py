"""The simulator: computes when the actions of a plan happen, from a profile's times and a topology's links.

Each worker carries out its list in order, and waits where it must: a Receive for its tensor
to arrive, a Send for a free slot of its link, a Reduce for all its members. A transfer of n
bytes passes two ports, one after the other or at once, occupies each for n / bandwidth
seconds, and arrives a latency later:

    worker 0   F0:0 │S                        S requests the port
    out of 0        └▶ ██████                 busy with this transfer alone, in order of requests
    into 1             └▶ ██████ ──latency──▶ may wait here for earlier transfers of other senders
    worker 1                                R │ F1:0        R takes the tensor, and frees the slot

Every device has one port out and one port in at each level. Ports serve requests in order of
arrival; of simultaneous requests the sender with the lower number goes first. Simplifications:
reductions do not delay transfers, and slots take no memory.

The loop needs no global clock. A worker runs ahead until it must wait, since no other worker
can change an action that it has already begun; only entries to ports in, where several senders
compete, are processed in the order of their times.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence

from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.plans import Plan, PlanWorker
from ropewalk.pipeline.profiles import Profile
from ropewalk.pipeline.resuming import round_of
from ropewalk.pipeline.schedules import Schedule, make_schedule
from ropewalk.pipeline.simulation.spans import COMPUTING, Summing, TensorTransfer
from ropewalk.pipeline.simulation.stage_load import stage_loads
from ropewalk.pipeline.simulation.standstill import standstill
from ropewalk.pipeline.simulation.stream_program import COMPUTE, SAME_DEVICE, StreamProgram
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.pipeline.topology import Topology

_NEVER = -1.0
_NOBODY = -1
_Span = tuple[float, float]
"""When an action starts and ends, in seconds."""


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
    """Simulate the action lists of a plan.

    Args:
        plan: stages on devices.
        profile: the times and sizes of its operators, for one micro-batch on a device of speed 1.
        topology: the devices and the links between them.
        actions: the actions of each worker, in order; None: those of the schedule.
        schedule: the schedule of the lists, as a name or an object; None: the plan's. With `actions` and without a
            schedule, the lists count as flushing if no worker computes after its first Step.
        slots: most tensors on a link (of one tensor, in one direction, between two workers) that are sent and not yet
            received; a Send waits for a free slot.
        overlap: whether a worker goes on computing while its tensors are transferred; False: it waits after each Send
            until the tensor has passed the receiver's port.
        update_s: seconds of a Step at each stage; 0 for stages that are missing here.
        optimizer_slots: copies of the weights that the optimizer keeps, for the memory (Adam 2, SGD with momentum 1).

    Returns:
        The timeline of all actions and transfers.

    Raises:
        PlanInvalid: the plan does not belong to the profile or the topology.
        ScheduleInvalid: the lists cannot be carried out to their ends; the message says which worker waits for what.
        ValueError: `slots` is below 1.
    """
    if slots < 1:
        raise ValueError(f"a link needs at least 1 slot, not {slots}")
    if actions is None:
        schedule = make_schedule(schedule or plan.schedule)
        actions = schedule.actions(plan)
    known = None if schedule is None else make_schedule(schedule)
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
        flushes=not _computes_after_step(actions) if known is None else known.flushes,
        round_size=1 if known is None else round_of(plan, known),
    )


def _computes_after_step(actions: Mapping[PlanWorker, Sequence[Action]]) -> bool:
    for own in actions.values():
        kinds = [action.kind for action in own]
        if ActionKind.STEP in kinds and not COMPUTING.isdisjoint(kinds[kinds.index(ActionKind.STEP) :]):
            return True
    return False


class _Run:
    """One simulation of a program: the place of each worker, and the times of each message."""

    def __init__(self, program: StreamProgram, slots: int, overlap: bool) -> None:
        num_workers, num_messages, links = len(program.workers), len(program.link_of), program.links
        self.program, self.slots, self.overlap = program, slots, overlap
        self.place = [0] * num_workers
        self.clock = [0.0] * num_workers
        self.starts: list[list[float]] = [[] for _ in program.workers]
        self.ends: list[list[float]] = [[] for _ in program.workers]
        self.ready = list(range(num_workers))[::-1]
        """Workers that may be able to go on; the last one is taken first."""

        self.asked = [_NEVER] * num_messages
        """By message: when its sender requested the port, when it began to pass each of the two ports, when it arrived.
        """
        self.out_start = [_NEVER] * num_messages
        self.in_start = [_NEVER] * num_messages
        self.arrival = [_NEVER] * num_messages
        self.reader = [_NOBODY] * num_messages
        """By message: the worker that waits for its arrival, and the worker that waits for the end of its sending."""
        self.sender = [_NOBODY] * num_messages

        levels = program.topology.levels
        self.link_seconds = [link.seconds for link in links]
        self.link_latency = [link.latency_s for link in links]
        self.is_free = [link.level == SAME_DEVICE or levels[link.level].bandwidth == float("inf") for link in links]
        self.is_inside = [link.sender == link.receiver for link in links]
        self.num_sent = [0] * len(links)
        self.received: list[list[float]] = [[] for _ in links]
        """When each receive on a link happened; the k-th frees a slot for the (k + slots)-th send."""
        self.slot_waiter = [_NOBODY] * len(links)
        """By link: the worker that waits for one of its slots."""

        self.out_port = [link.sender * len(levels) + link.level for link in links]
        """By link: its two ports. By port: the time until which it is busy."""
        self.in_port = [link.receiver * len(levels) + link.level for link in links]
        self.out_until = [0.0] * (num_workers * len(levels))
        self.in_until = [0.0] * (num_workers * len(levels))
        self.entries: list[tuple[float, int, int]] = []
        """Messages on their way to a port in, as a heap: (time, sender, message)."""

        self.present: list[list[int]] = [[] for _ in program.reductions]
        """By reduction: the workers that have reached it, when the last one did, and when the reduction was done."""
        self.sum_start = [_NEVER] * len(program.reductions)
        self.sum_end = [_NEVER] * len(program.reductions)

    def play(self) -> None:
        """Carry out all lists to their ends.

        Raises:
            ScheduleInvalid: workers wait for each other for ever.
        """
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

    # Actions of a worker at `now`: each returns its start and end, or None if the worker must wait. The event that it
    # waits for makes the worker ready again, and it tries again.

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
            owed = self.num_sent[link] - self.slots  # the receive that frees the slot
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
        """Take part in a reduction, which begins when the last of its members has reached it."""
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

    # Events of a message.

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
        """Let the earliest message pass the port in of its receiver."""
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

    # --- results ------------------------------------------------------------------------------------------------------

    def transfers(self) -> Iterator[TensorTransfer]:
        """Yield all transfers, in the order of message numbers."""
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
        """Yield all reductions."""
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
