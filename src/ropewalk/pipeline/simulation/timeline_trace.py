"""A timeline as a trace for ui.perfetto.dev or chrome://tracing (the Trace Event Format).

process   one for each device, "device 3: worker 1.0 (stage 1)"
threads   compute, and for each level of links that is used a port out and a port in
arrows    from a transfer on the sender's port to the same on the receiver's, and on to the action that reads it
counters  the bytes of memory, by purpose
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ropewalk import trace_events
from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plan_table import shown_stages
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.simulation.spans import COMPUTING, TensorTransfer
from ropewalk.pipeline.simulation.timeline_memory import memory_over_time
from ropewalk.trace_events import Event

if TYPE_CHECKING:  # `timeline.py` imports this module
    from ropewalk.pipeline.simulation.timeline import Timeline

_NAMES = {
    ActionKind.FORWARD: "forward",
    ActionKind.BACKWARD: "backward",
    ActionKind.INPUT_GRADIENT: "input gradient",
    ActionKind.WEIGHT_GRADIENT: "weight gradient",
    ActionKind.RECOMPUTE: "recompute",
    ActionKind.SEND: "send",
    ActionKind.RECEIVE: "receive",
    ActionKind.REDUCE: "reduce",
    ActionKind.STEP: "step",
}


def timeline_trace(timeline: Timeline) -> bytes:
    """Return the trace as JSON, to be opened at ui.perfetto.dev."""
    return trace_events.trace(timeline_events(timeline))


def timeline_events(timeline: Timeline) -> Iterator[Event]:
    """Yield the events of the trace."""
    for worker in timeline.workers:
        yield from _names(timeline, worker)
        yield from _actions(timeline, worker)
        yield from _memory(timeline, worker)
    readers = _readers(timeline)
    for number, transfer in enumerate(timeline.transfers):
        starts = readers[_key(transfer)]
        read_s = starts.pop(0) if starts else None  # None: sent, but never received
        if transfer.level >= 0:
            yield from _transfer(timeline, transfer, number, read_s)


def _names(timeline: Timeline, worker: PlanWorker) -> Iterator[Event]:
    device, stages = timeline.plan.device_of(worker), timeline.plan.groups[worker.group]
    yield trace_events.process_name(device, f"device {device}: worker {worker} ({shown_stages(stages)})")
    yield trace_events.process_sort_index(device, device)
    yield trace_events.thread_name(device, 0, "compute")
    for level in range(len(timeline.topology.levels)):
        for way in ("out", "in"):
            if (worker, level, way) in timeline.port_busy_s:
                yield trace_events.thread_name(device, _port(level, way), f"port {way}, level {level + 1}")


def _actions(timeline: Timeline, worker: PlanWorker) -> Iterator[Event]:
    device = timeline.plan.device_of(worker)
    for _, action, start_s, end_s in timeline.spans(worker):
        if end_s > start_s or action.kind not in (ActionKind.SEND, ActionKind.RECEIVE):
            facts = {"stage": action.stage, "micro_batch": action.micro_batch, "version": action.version}
            category = _NAMES[action.kind]
            yield trace_events.complete(device, 0, str(action), start_s, end_s, category=category, facts=facts)


def _memory(timeline: Timeline, worker: PlanWorker) -> Iterator[Event]:
    device = timeline.plan.device_of(worker)
    for memory in memory_over_time(timeline, worker):
        amounts = memory._asdict()
        del amounts["time_s"]
        yield trace_events.counter(device, "memory, bytes", memory.time_s, amounts)


def _key(transfer: TensorTransfer) -> tuple[str | None, int | None, int, int | None]:
    return transfer.tensor, transfer.source, transfer.target, transfer.micro_batch


def _readers(timeline: Timeline) -> dict[tuple[str | None, int | None, int, int | None], list[float | None]]:
    """When the action that reads each tensor began; None: no computing action follows its Receive."""
    found: dict[tuple[str | None, int | None, int, int | None], list[float | None]] = defaultdict(list)
    for worker in timeline.workers:
        following: dict[tuple[int, int | None], float] = {}
        for _, action, start_s, _ in reversed(list(timeline.spans(worker))):
            if action.kind in COMPUTING:
                following[action.stage, action.micro_batch] = start_s
            elif action.kind is ActionKind.RECEIVE:
                key = (action.edge, action.peer, action.stage, action.micro_batch)
                found[key].insert(0, following.get((action.stage, action.micro_batch)))
    return found


def _transfer(timeline: Timeline, transfer: TensorTransfer, number: int, read_s: float | None) -> Iterator[Event]:
    sender, receiver = timeline.plan.device_of(transfer.sender), timeline.plan.device_of(transfer.receiver)
    out, into = _port(transfer.level, "out"), _port(transfer.level, "in")
    name = f"{transfer.tensor}:{transfer.micro_batch}" + (" gradient" if transfer.target < transfer.source else "")
    facts = {
        "bytes": transfer.size_bytes,
        "from stage": transfer.source,
        "to stage": transfer.target,
        "sent at": transfer.sent_s,
        "arrives at": transfer.arrival_s,
    }
    for device, port, start_s in ((sender, out, transfer.out_s), (receiver, into, transfer.in_s)):
        end_s = start_s + transfer.port_s
        yield trace_events.complete(device, port, name, start_s, end_s, category="transfer", facts=facts)
    arrow = partial(trace_events.flow, category="transfer", number=number)
    yield arrow("begins", sender, out, transfer.out_s)
    yield arrow("ends" if read_s is None else "passes", receiver, into, transfer.in_s)
    if read_s is not None:
        yield arrow("ends", receiver, 0, read_s)


def _port(level: int, way: str) -> int:
    """The thread of a port; thread 0 is for computing."""
    return 1 + 2 * level + (way == "in")
