"""A timeline as a trace for ui.perfetto.dev or chrome://tracing (the Trace Event Format).

    process   one for each device, "device 3: worker 1.0 (stage 1)"
    threads   compute, and for each level of links that is used a port out and a port in
    arrows    from a transfer on the sender's port to the same on the receiver's, and on to the action that reads it
    counters  the bytes of memory, by what they are for

Source: Trace Event Format, Google, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU:
complete events "X", flows "s" "t" "f", counters "C", names "M"; times in microseconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ropewalk.pipeline.actions import Kind
from ropewalk.pipeline.plans import Worker
from ropewalk.pipeline.simulation.spans import COMPUTING, Transfer
from ropewalk.pipeline.simulation.timeline_memory import memory_over_time

if TYPE_CHECKING:  # timelines draw themselves with this
    from ropewalk.pipeline.simulation.timeline import Timeline

#: The unit of all times in a trace.
MICROSECONDS = 1e6
_NAMES = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.INPUT_GRADIENT: "input gradient",
    Kind.WEIGHT_GRADIENT: "weight gradient",
    Kind.RECOMPUTE: "recompute",
    Kind.SEND: "send",
    Kind.RECEIVE: "receive",
    Kind.REDUCE: "reduce",
    Kind.STEP: "step",
}


def timeline_trace(timeline: Timeline) -> bytes:
    """The trace as JSON."""
    return msgspec.json.encode({"traceEvents": list(timeline_events(timeline)), "displayTimeUnit": "ms"})


def timeline_events(timeline: Timeline) -> Iterator[dict[str, Any]]:
    """The events of the trace."""
    for worker in timeline.workers:
        yield from _names(timeline, worker)
        yield from _actions(timeline, worker)
        yield from _memory(timeline, worker)
    readers = _readers(timeline)
    for number, transfer in enumerate(timeline.transfers):
        starts = readers[_key(transfer)]
        read_s = starts.pop(0) if starts else None  # sent, but never received
        if transfer.level >= 0:
            yield from _transfer(timeline, transfer, number, read_s)


def _names(timeline: Timeline, worker: Worker) -> Iterator[dict[str, Any]]:
    device, stages = timeline.plan.device_of(worker), timeline.plan.groups[worker.group]
    named = f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"
    yield _meta("process_name", device, 0, name=f"device {device}: worker {worker} ({named})")
    yield _meta("process_sort_index", device, 0, sort_index=device)
    yield _meta("thread_name", device, 0, name="compute")
    for level in range(len(timeline.topology.levels)):
        for way in ("out", "in"):
            if (worker, level, way) in timeline.port_busy_s:
                yield _meta("thread_name", device, _port(level, way), name=f"port {way}, level {level + 1}")


def _actions(timeline: Timeline, worker: Worker) -> Iterator[dict[str, Any]]:
    device = timeline.plan.device_of(worker)
    for _, action, start_s, end_s in timeline.spans(worker):
        if end_s > start_s or action.kind not in (Kind.SEND, Kind.RECEIVE):
            facts = {"stage": action.stage, "micro_batch": action.micro_batch, "version": action.version}
            yield _slice(device, 0, str(action), _NAMES[action.kind], start_s, end_s, facts)


def _memory(timeline: Timeline, worker: Worker) -> Iterator[dict[str, Any]]:
    device = timeline.plan.device_of(worker)
    for memory in memory_over_time(timeline, worker):
        amounts = memory._asdict()
        del amounts["time_s"]
        yield {"ph": "C", "name": "memory, bytes", "pid": device, "ts": memory.time_s * MICROSECONDS, "args": amounts}


def _key(transfer: Transfer) -> tuple[str | None, int | None, int, int | None]:
    return transfer.tensor, transfer.source, transfer.target, transfer.micro_batch


def _readers(timeline: Timeline) -> dict[tuple[str | None, int | None, int, int | None], list[float | None]]:
    """When the action that reads each tensor began; None: nothing that computes follows its Receive."""
    found: dict[tuple[str | None, int | None, int, int | None], list[float | None]] = defaultdict(list)
    for worker in timeline.workers:
        following: dict[tuple[int, int | None], float] = {}
        for _, action, start_s, _ in reversed(list(timeline.spans(worker))):
            if action.kind in COMPUTING:
                following[action.stage, action.micro_batch] = start_s
            elif action.kind is Kind.RECEIVE:
                key = (action.edge, action.peer, action.stage, action.micro_batch)
                found[key].insert(0, following.get((action.stage, action.micro_batch)))
    return found


def _transfer(timeline: Timeline, transfer: Transfer, number: int, read_s: float | None) -> Iterator[dict[str, Any]]:
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
    yield _slice(sender, out, name, "transfer", transfer.out_s, transfer.out_s + transfer.port_s, facts)
    yield _slice(receiver, into, name, "transfer", transfer.in_s, transfer.in_s + transfer.port_s, facts)
    flow = {"cat": "transfer", "name": "transfer", "id": number}
    yield {"ph": "s", "pid": sender, "tid": out, "ts": transfer.out_s * MICROSECONDS, **flow}
    if read_s is None:
        yield {"ph": "f", "bp": "e", "pid": receiver, "tid": into, "ts": transfer.in_s * MICROSECONDS, **flow}
    else:
        yield {"ph": "t", "pid": receiver, "tid": into, "ts": transfer.in_s * MICROSECONDS, **flow}
        yield {"ph": "f", "bp": "e", "pid": receiver, "tid": 0, "ts": read_s * MICROSECONDS, **flow}


def _slice(
    device: int, thread: int, name: str, category: str, start_s: float, end_s: float, facts: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "pid": device,
        "tid": thread,
        "ts": start_s * MICROSECONDS,
        "dur": (end_s - start_s) * MICROSECONDS,
        "args": facts,
    }


def _meta(what: str, device: int, thread: int, **facts: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": device, "tid": thread, "args": facts}


def _port(level: int, way: str) -> int:
    """Thread 0 computes."""
    return 1 + 2 * level + (way == "in")
