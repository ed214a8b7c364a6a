"""Trace events for ui.perfetto.dev or chrome://tracing; each function returns one event, and `trace` encodes a file.

Source: Trace Event Format, Google, docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU:
complete events "X", marks "i", flows "s" "t" "f", counters "C", names "M"; times in microseconds. A file that is a
list of events may lack its closing bracket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

Event = dict[str, Any]
"""One event, as a JSON object."""
_MICROSECONDS = 1e6


def trace(events: Iterable[Event]) -> bytes:
    """Encode events as the content of a trace file."""
    return msgspec.json.encode({"traceEvents": list(events), "displayTimeUnit": "ms"})


def process_name(process: int, name: str) -> Event:
    """Return an event that names a process."""
    return {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}


def process_sort_index(process: int, index: int) -> Event:
    """Return an event that places a process below processes with a lower index."""
    return {"ph": "M", "name": "process_sort_index", "pid": process, "tid": 0, "args": {"sort_index": index}}


def thread_name(process: int, thread: int, name: str) -> Event:
    """Return an event that names a thread; threads are sorted by their numbers."""
    return {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}}


def complete(
    process: int,
    thread: int,
    name: str,
    start_s: float,
    end_s: float,
    *,
    category: str = "",
    facts: Mapping[str, Any] | None = None,
) -> Event:
    """Return an event with a duration.

    Args:
        process: number of the process.
        thread: number of the thread.
        name: label of the event.
        start_s: start time in seconds.
        end_s: end time in seconds.
        category: category of the event, for filters.
        facts: details that the viewer shows.
    """
    times = {"ts": start_s * _MICROSECONDS, "dur": (end_s - start_s) * _MICROSECONDS}
    named = {"ph": "X", "name": name, **({"cat": category} if category else {})}
    return {**named, "pid": process, "tid": thread, **times, "args": dict(facts or {})}


def mark(process: int, thread: int, name: str, at_s: float, *, facts: Mapping[str, Any] | None = None) -> Event:
    """Return an event without a duration, at `at_s` seconds."""
    times = {"ts": at_s * _MICROSECONDS, "s": "t"}  # scope "t": drawn within its thread
    return {"ph": "i", "name": name, "pid": process, "tid": thread, **times, "args": dict(facts or {})}


def counter(process: int, name: str, at_s: float, amounts: Mapping[str, float]) -> Event:
    """Return counter values that hold from `at_s` (seconds) until the next event of the same name."""
    return {"ph": "C", "name": name, "pid": process, "ts": at_s * _MICROSECONDS, "args": dict(amounts)}


def flow(
    step: Literal["begins", "passes", "ends"], process: int, thread: int, at_s: float, *, category: str, number: int
) -> Event:
    """Return one point of an arrow; points with the same category and number belong together.

    A point is attached to the event of its thread whose duration contains `at_s` (seconds).
    """
    phase: Event = {"begins": {"ph": "s"}, "passes": {"ph": "t"}, "ends": {"ph": "f", "bp": "e"}}[step]
    place = {"pid": process, "tid": thread, "ts": at_s * _MICROSECONDS}
    return {**phase, **place, "cat": category, "name": "transfer", "id": number}
