"""A timeline as text for a terminal: a row for each worker, time from left to right.

    step 18 s, bubble 6 s (33 %), 33 % idle

    0.0  F0━F1━      B0━━━B1━━━
    1.0     F0━B0━━━F1━B1━━━
         0 s                 18 s

A letter gives the kind of action (F, B, I, W, C as actions print; A sums gradients, S waits for a tensor to be sent), a
number the micro-batch. An action that is too short for its letter and number shows as much of them as fits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.quantities import shown_duration, shown_size

if TYPE_CHECKING:  # `timeline.py` imports this module
    from ropewalk.pipeline.simulation.timeline import Timeline


def timeline_text(timeline: Timeline, *, width: int = 120, max_workers: int = 64) -> str:
    """Draw a timeline as text.

    Args:
        timeline: the timeline to draw.
        width: columns of the text.
        max_workers: most workers to draw; a last line gives the number that is left out.
    """
    shown = timeline.workers[:max_workers]
    margin = max(len(str(worker)) for worker in shown) + 2
    columns = max(1, width - margin)
    rows = [f"{worker!s:<{margin}}{_row(timeline, worker, columns)}".rstrip() for worker in shown]
    end = shown_duration(timeline.length_s)
    scale = f"{'':{margin}}{'0 s':<{max(3, columns - len(end))}}{end}"
    hidden = [f"and {len(timeline.workers) - len(shown)} more workers"] if len(shown) < len(timeline.workers) else []
    return "\n".join([timeline_headline(timeline), "", *rows, scale, *hidden])


def timeline_headline(timeline: Timeline) -> str:
    """Summarise a timeline in one line: step time, bubble, idle share, memory and busiest resource."""
    bubble, whole = timeline.bubble_s, timeline.range_s
    peak = max(memory.total for memory in timeline.peak_memory.values())
    held = f"at most {shown_size(peak)} on a device; " if peak else ""  # 0: the memory of the stages is not known
    return (
        f"step {shown_duration(timeline.step_s)}, bubble {shown_duration(bubble)} "
        f"({100 * bubble / whole if whole else 0:.0f} %), {100 * timeline.idle:.0f} % idle, "
        f"{held}{timeline.busiest}"
    )


def _row(timeline: Timeline, worker: PlanWorker, columns: int) -> str:
    row = [" "] * columns
    scale = columns / timeline.length_s if timeline.length_s else 0.0
    for _, action, start_s, end_s in timeline.spans(worker):
        if end_s <= start_s:
            continue
        first = min(int(start_s * scale), columns - 1)
        last = max(first + 1, int(end_s * scale))
        if action.kind in (ActionKind.SEND, ActionKind.RECEIVE) and (end_s - start_s) * scale < 1:
            continue  # measured ones take microseconds, and would cover the computing actions
        number = (
            ""
            if action.micro_batch is None or action.kind in (ActionKind.SEND, ActionKind.RECEIVE)
            else action.micro_batch
        )
        label = f"{action.kind.value}{number}"[: last - first]
        row[first:last] = label.ljust(last - first, "━")
    return "".join(row[:columns])
