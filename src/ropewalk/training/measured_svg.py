"""Planned and measured as one picture: for each worker a row of what was to happen, one of what did, and its waits.

    worker 0.0   planned   ██F0██F1      ███B0███B1
    stage 0      measured  ███F0███F1       ████B0████B1
                                     ▂▂▂▂▂▂▂          (waited: starved, back-pressure, sums, admission)

The picture stands alone (no script, no font, no network). Pointing at a box shows what it
is and when. Both have one scale, so that what takes longer is longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING

from ropewalk.pipeline.actions import Kind
from ropewalk.pipeline.plans import Worker
from ropewalk.pipeline.simulation.spans import Span
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.pipeline.simulation.timeline_svg import COLOURS, axis, shown_span
from ropewalk.pipeline.simulation.timeline_text import timeline_headline
from ropewalk.quantities import shown_duration
from ropewalk.training.recorder import ADMISSION, BACK_PRESSURE, STARVED, SUMS

if TYPE_CHECKING:  # measured timelines draw themselves with this
    from ropewalk.training.measured import MeasuredTimeline, Wait

_LEFT, _TOP, _BOX, _LANE, _GAP = 170, 92, 20, 7, 14
#: A planned Send waits for the port, and takes no work; a measured one is work.
_MEASURED = {**COLOURS, Kind.SEND: ("send", "#ef4444"), Kind.RECEIVE: ("receive", "#fb7185")}
_WAITS = {STARVED: "#fbbf24", BACK_PRESSURE: "#fb923c", SUMS: "#f9a8d4", ADMISSION: "#cbd5e1"}
#: Narrower boxes have no room for a number.
_LEAST_LABEL = 13


def measured_svg(
    measured: MeasuredTimeline,
    planned: Timeline | None = None,
    *,
    called: str = "planned",
    width: int = 1400,
    max_workers: int = 64,
) -> str:
    """Draw what happened, and if it is given, what was planned.

    Args:
        measured: what happened.
        planned: the timeline to compare with.
        called: what that is called.
        width: of the picture, in pixels.
        max_workers: rows at most; the headline tells of all of them.
    """
    shown = measured.workers[:max_workers]
    length_s = max(measured.length_s, planned.length_s if planned else 0.0)
    scale = (width - _LEFT - 30) / (length_s or 1.0)
    each = (_BOX + 2 if planned else 0) + _BOX + _LANE + _GAP
    height = _TOP + len(shown) * each + 34

    def x(time_s: float) -> float:
        return _LEFT + time_s * scale

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="#0f172a">',
        '<rect width="100%" height="100%" fill="white"/>',
        *_headlines(planned, measured, called),
        *_legend(measured),
        *axis(length_s, x, _TOP, height - 28),
    ]
    for number, worker in enumerate(shown):
        y = _TOP + number * each
        parts += _label(measured, worker, y)
        if planned:
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end" fill="#475569">{escape(called)}</text>')
            parts += (_box(span, x, y, COLOURS) for span in planned.spans(worker) if span.end_s > span.start_s)
            y += _BOX + 2
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end" fill="#475569">measured</text>')
        parts += (_box(span, x, y, _MEASURED) for span in measured.spans(worker) if span.end_s > span.start_s)
        parts += (_wait(wait, x, y + _BOX) for wait in measured.waits.get(worker, ()))
    if len(shown) < len(measured.workers):
        hidden = len(measured.workers) - len(shown)
        parts.append(f'<text x="20" y="{height - 8}">and {hidden} more workers</text>')
    return "\n".join([*parts, "</svg>\n"])


def _headlines(planned: Timeline | None, measured: MeasuredTimeline, called: str) -> Iterator[str]:
    lines = [f"measured: {timeline_headline(measured)}"]
    if planned and planned.step_s:
        more = measured.step_s / planned.step_s - 1
        lines.append(
            f"{called}: step {shown_duration(planned.step_s)}; measured takes {abs(100 * more):.1f} % "
            f"{'longer' if more >= 0 else 'less'}"
        )
    for number, line in enumerate(lines):
        weight = "" if number else ' font-size="14" font-weight="600"'
        yield f'<text x="20" y="{24 + 18 * number}"{weight}>{escape(line)}</text>'


def _label(timeline: Timeline, worker: Worker, y: float) -> Iterator[str]:
    stages = timeline.plan.groups[worker.group]
    named = f"stage{'s' if len(stages) > 1 else ''} {', '.join(map(str, stages))}"
    yield f'<text x="20" y="{y + 14}" font-weight="600">worker {worker}</text>'
    yield f'<text x="20" y="{y + 28}" fill="#475569">{named}</text>'


def _box(span: Span, x: Callable[[float], float], y: float, colours: dict[Kind, tuple[str, str]]) -> str:
    words, colour = colours.get(span.action.kind, ("", "#cbd5e1"))
    left, wide = x(span.start_s), max(x(span.end_s) - x(span.start_s), 0.3)
    title = f"{span.action}: {words}, {shown_span(span.start_s, span.end_s)}"
    edge = ' stroke="white" stroke-width="0.5"' if wide > 2 else ""  # it would cover what is narrower
    box = f'<rect x="{left:.2f}" y="{y}" width="{wide:.2f}" height="{_BOX}" fill="{colour}"{edge}/>'
    number = span.action.micro_batch
    passes = span.action.kind in (Kind.SEND, Kind.RECEIVE)
    if number is not None and wide >= max(_LEAST_LABEL, 7 * len(str(number))) and not passes:
        centre = left + wide / 2
        box += f'<text x="{centre:.2f}" y="{y + 14}" text-anchor="middle" fill="white">{number}</text>'
    return f"<g><title>{escape(title)}</title>{box}</g>"


def _wait(wait: Wait, x: Callable[[float], float], y: float) -> str:
    whom = "" if wait.stage is None else f", stage {wait.stage}"
    title = f"waited: {wait.cause}{whom}, {shown_span(wait.start_s, wait.end_s)}"
    wide = max(x(wait.end_s) - x(wait.start_s), 0.3)
    return (
        f'<rect x="{x(wait.start_s):.2f}" y="{y + 1}" width="{wide:.2f}" height="{_LANE - 2}" '
        f'fill="{_WAITS.get(wait.cause, "#cbd5e1")}"><title>{escape(title)}</title></rect>'
    )


def _legend(measured: MeasuredTimeline) -> Iterator[str]:
    seen = {span.action.kind for worker in measured.workers for span in measured.spans(worker)}
    entries = [entry for kind, entry in _MEASURED.items() if kind in seen]
    causes = {wait.cause for waits in measured.waits.values() for wait in waits}
    entries += [(f"waited: {cause}", colour) for cause, colour in _WAITS.items() if cause in causes]
    left = 20.0
    for words, colour in entries:
        yield f'<rect x="{left}" y="52" width="11" height="11" fill="{colour}"/>'
        yield f'<text x="{left + 15}" y="62">{words}</text>'
        left += 32 + 6 * len(words)
