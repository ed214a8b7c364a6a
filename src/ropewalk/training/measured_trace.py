"""A measured timeline as a trace for ui.perfetto.dev, alone or beside the planned one.

process   one for each device, "device 3: worker 1.0 (stage 1)", and right above it "planned device 3: ..."
threads   its actions, and below, its waits
arrows    from each Send to its Receive
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from ropewalk import trace_events
from ropewalk.pipeline.actions import Action, ActionKind
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.pipeline.simulation.timeline_trace import timeline_events
from ropewalk.trace_events import Event

if TYPE_CHECKING:  # measured timelines draw themselves with this
    from ropewalk.training.measured import MeasuredTimeline

_WAITING = 99
"""Thread 0 computes; the next threads are ports."""


def measured_trace(measured: MeasuredTimeline, planned: Timeline | None = None, *, called: str = "planned") -> bytes:
    """Return the trace as JSON."""
    events = [*(_planned(planned, called) if planned else ()), *_events(measured, doubled=planned is not None)]
    return trace_events.trace(events)


def _planned(planned: Timeline, called: str) -> Iterator[Event]:
    first = planned.topology.num_devices
    for event in timeline_events(planned):
        event["pid"] += first
        if event["name"] == "process_name":
            event["args"]["name"] = f"{called} {event['args']['name']}"
        if event["name"] == "process_sort_index":
            event["args"]["sort_index"] = 2 * (event["pid"] - first)
        if event.get("cat") == "transfer":
            event["cat"] = f"{called} transfer"
        yield event


def _events(measured: MeasuredTimeline, *, doubled: bool) -> Iterator[Event]:
    for event in timeline_events(measured):
        if event["name"] == "process_sort_index" and doubled:
            event["args"]["sort_index"] = 2 * event["pid"] + 1
        if event["ph"] != "C":  # bytes in memory are not measured by action
            yield event
    yield from _waits(measured)
    yield from _arrows(measured)


def _waits(measured: MeasuredTimeline) -> Iterator[Event]:
    for worker, waits in measured.waits.items():
        device = measured.plan.device_of(worker)
        yield trace_events.thread_name(device, _WAITING, "waits for")
        for cause, stage, start_s, end_s in waits:
            name = cause if stage is None else f"{cause}, stage {stage}"
            yield trace_events.complete(device, _WAITING, name, start_s, end_s, category="wait")


def _arrows(measured: MeasuredTimeline) -> Iterator[Event]:
    """Yield arrows from Sends to Receives, the k-th of a tensor to the k-th; one without a counterpart gets none."""
    sends: dict[tuple[object, ...], list[tuple[int, float]]] = defaultdict(list)
    receives: dict[tuple[object, ...], list[tuple[int, float]]] = defaultdict(list)
    for worker in measured.workers:
        device = measured.plan.device_of(worker)
        for _, action, start_s, _ in measured.spans(worker):
            if action.kind in (ActionKind.SEND, ActionKind.RECEIVE):
                (sends if action.kind is ActionKind.SEND else receives)[_tensor(action)].append((device, start_s))
    number = 0
    for key, begins in sends.items():
        for (sender, sent_s), (receiver, received_s) in zip(begins, receives[key], strict=False):
            if received_s < sent_s:
                continue  # its Send is outside the window
            arrow = partial(trace_events.flow, category="measured transfer", number=number)
            yield arrow("begins", sender, 0, sent_s)
            yield arrow("ends", receiver, 0, received_s)
            number += 1


def _tensor(action: Action) -> tuple[object, ...]:
    ends = (action.stage, action.peer) if action.kind is ActionKind.SEND else (action.peer, action.stage)
    return action.edge, *ends, action.micro_batch
