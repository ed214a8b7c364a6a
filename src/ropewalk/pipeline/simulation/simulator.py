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

from ropewalk.pipeline.actions import Action, Kind
from ropewalk.pipeline.plans import Plan, Worker
from ropewalk.pipeline.profiles import Profile
from ropewalk.pipeline.schedules import Schedule, make_schedule
from ropewalk.pipeline.simulation.spans import COMPUTING, Summing, Transfer
from ropewalk.pipeline.simulation.stage_load import stage_loads
from ropewalk.pipeline.simulation.standstill import standstill
from ropewalk.pipeline.simulation.stream_program import COMPUTE, SAME_DEVICE, StreamProgram
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.pipeline.topology import Topology

_NEVER = -1.0


def simulate(
    plan: Plan,
    profile: Profile,
    topology: Topology,
    actions: Mapping[Worker, Sequence[Action]] | None = None,
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


def _computes_after_step(actions: Mapping[Worker, Sequence[Action]]) -> bool:
    for own in actions.values():
        kinds = [action.kind for action in own]
        if Kind.STEP in kinds and not COMPUTING.isdisjoint(kinds[kinds.index(Kind.STEP) :]):
            return True
    return False


class _Run:
    """One run over a program: where each worker stands, and when each message passed."""

    def __init__(self, program: StreamProgram, slots: int, overlap: bool) -> None:
        num_workers, num_messages, num_links = len(program.workers), len(program.link_of), len(program.links)
        self.program, self.slots, self.overlap = program, slots, overlap
        self.place = [0] * num_workers
        self.starts: list[list[float]] = [[] for _ in program.workers]
        self.ends: list[list[float]] = [[] for _ in program.workers]
        self.asked = [_NEVER] * num_messages
        self.out_start = [_NEVER] * num_messages
        self.in_start = [_NEVER] * num_messages
        self.arrival = [_NEVER] * num_messages
        self.num_sent = [0] * num_links
        #: When each receive on a link happened; the k-th frees a slot for the (k + slots)-th send.
        self.received: list[list[float]] = [[] for _ in program.links]
        #: Who has come to each reduction, when the last came, and when it was done.
        self.present: list[list[int]] = [[] for _ in program.reductions]
        self.sum_start = [_NEVER] * len(program.reductions)
        self.sum_end = [_NEVER] * len(program.reductions)

    def play(self) -> None:
        """Carry out all lists."""
        program, slots, overlap = self.program, self.slots, self.overlap
        links, link_of = program.links, program.link_of
        asked, out_start, in_start, arrival = self.asked, self.out_start, self.in_start, self.arrival
        num_sent, received, place = self.num_sent, self.received, self.place
        link_seconds = [link.seconds for link in links]
        link_latency = [link.latency_s for link in links]
        num_levels = len(program.topology.levels)
        out_port = [link.sender * num_levels + link.level for link in links]
        in_port = [link.receiver * num_levels + link.level for link in links]
        is_free = [
            link.level == SAME_DEVICE or program.topology.levels[link.level].bandwidth == float("inf") for link in links
        ]
        is_inside = [link.sender == link.receiver for link in links]
        out_until = [0.0] * (len(program.workers) * num_levels)
        in_until = [0.0] * (len(program.workers) * num_levels)
        clock = [0.0] * len(program.workers)
        #: Who waits for a message to arrive, for one to be sent off, for a slot of a link.
        reader = [-1] * len(link_of)
        sender_of = [-1] * len(link_of)
        slot_waiter = [-1] * len(links)
        entries: list[tuple[float, int, int]] = []  # to ports in: (when, sender, message)
        ready = list(range(len(program.workers)))[::-1]
        while True:
            while ready:
                worker = ready.pop()
                codes, durations = program.codes[worker], program.durations[worker]
                starts, ends = self.starts[worker], self.ends[worker]
                now, at, num = clock[worker], place[worker], len(codes)
                while at < num:
                    code = codes[at]
                    if code == COMPUTE:
                        starts.append(now)
                        now += durations[at]
                        ends.append(now)
                    elif code < 0:
                        done = self._take_part(-2 - code, worker, now, ready)
                        if done < 0:
                            break
                        starts.append(self.sum_start[-2 - code] if done > now else now)
                        now = done if done > now else now
                        ends.append(now)
                    elif code & 1:  # receive
                        message = code >> 1
                        when = arrival[message]
                        if when < 0:
                            reader[message] = worker
                            break
                        if when > now:
                            now = when
                        starts.append(now)
                        ends.append(now)
                        link = link_of[message]
                        received[link].append(now)
                        if slot_waiter[link] >= 0:
                            ready.append(slot_waiter[link])
                            slot_waiter[link] = -1
                    else:  # send
                        message = code >> 1
                        link = link_of[message]
                        if asked[message] < 0:
                            owed = num_sent[link] - slots  # the receive that frees our slot
                            if owed >= 0 and not is_inside[link]:
                                if owed >= len(received[link]):
                                    slot_waiter[link] = worker
                                    break
                                if received[link][owed] > now:
                                    now = received[link][owed]
                            num_sent[link] += 1
                            asked[message] = now
                            if is_free[link]:
                                out_start[message] = in_start[message] = now
                                arrival[message] = now + link_latency[link]
                                if reader[message] >= 0:
                                    ready.append(reader[message])
                            else:
                                port = out_port[link]
                                begin = out_until[port]
                                if begin < now:
                                    begin = now
                                out_start[message] = begin
                                out_until[port] = begin + link_seconds[link]
                                heapq.heappush(entries, (begin, worker, message))
                        if overlap:
                            starts.append(now)
                        elif in_start[message] < 0:
                            sender_of[message] = worker
                            break
                        else:
                            starts.append(asked[message])
                            now = in_start[message] + link_seconds[link]
                        ends.append(now)
                    at += 1
                clock[worker], place[worker] = now, at
            if not entries:
                break
            begin, _, message = heapq.heappop(entries)
            link = link_of[message]
            port = in_port[link]
            if begin < in_until[port]:
                begin = in_until[port]
            in_start[message] = begin
            in_until[port] = begin = begin + link_seconds[link]
            arrival[message] = begin + link_latency[link]
            if reader[message] >= 0:
                ready.append(reader[message])
            if sender_of[message] >= 0:
                ready.append(sender_of[message])
        if any(at < len(codes) for at, codes in zip(place, program.codes, strict=True)):
            raise standstill(program, place, slots)

    def _take_part(self, number: int, worker: int, now: float, ready: list[int]) -> float:
        """When the reduction is done; below 0 while others are missing."""
        if self.sum_end[number] >= 0:
            return self.sum_end[number]
        reduction, present = self.program.reductions[number], self.present[number]
        present.append(worker)
        self.sum_start[number] = max(self.sum_start[number], now)
        if len(present) < len(reduction.members):
            return _NEVER
        self.sum_end[number] = self.sum_start[number] + reduction.seconds
        ready.extend(present[:-1])
        return self.sum_end[number]

    # --- what came of it ----------------------------------------------------------------------------------------------

    def transfers(self) -> Iterator[Transfer]:
        """All that passed, in the order in which messages are numbered."""
        workers = self.program.workers
        for message, number in enumerate(self.program.link_of):
            if self.asked[message] >= 0:
                link = self.program.links[number]
                yield Transfer(
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
