"""The planned and the measured timeline as one picture: for each worker a row of each, and a row of its waits.

    worker 0.0   planned   ██F0██F1      ███B0███B1
    stage 0      measured  ███F0███F1       ████B0████B1
                                     ▂▂▂▂▂▂▂          (waited: starved, back-pressure, sums, admission)

Both have the same scale, so that a longer action is drawn longer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.plan_table import shown_stages
from ropewalk.pipeline.simulation.gantt import COLOURS, Gantt
from ropewalk.pipeline.simulation.timeline import Timeline
from ropewalk.pipeline.simulation.timeline_text import timeline_headline
from ropewalk.quantities import shown_duration
from ropewalk.training.recorder import ADMISSION, BACK_PRESSURE, STARVED, SUMS

if TYPE_CHECKING:  # measured timelines draw themselves with this
    from ropewalk.training.measured import MeasuredTimeline

_LEFT, _BOX, _LANE, _GAP = 170, 20, 7, 14
_MEASURED = {**COLOURS, ActionKind.SEND: ("send", "#ef4444"), ActionKind.RECEIVE: ("receive", "#fb7185")}
"""A planned Send waits for the port, and takes no time of the worker; a measured one does."""
_WAITS = {STARVED: "#fbbf24", BACK_PRESSURE: "#fb923c", SUMS: "#f9a8d4", ADMISSION: "#cbd5e1"}


def measured_svg(
    measured: MeasuredTimeline,
    planned: Timeline | None = None,
    *,
    called: str = "planned",
    width: int = 1400,
    max_workers: int = 64,
) -> str:
    """Draw the measured timeline and, if given, the planned one.

    Args:
        measured: the measured timeline.
        planned: the timeline to compare with.
        called: the label of `planned`.
        width: the width of the picture, in pixels.
        max_workers: the largest number of rows; the headline covers all workers.

    Returns:
        The SVG text.
    """
    shown = measured.workers[:max_workers]
    headlines = [*_headlines(planned, measured, called)]
    top = Gantt.top(len(headlines))
    each = (_BOX + 2 if planned else 0) + _BOX + _LANE + _GAP
    chart = Gantt(
        max(measured.length_s, planned.length_s if planned else 0.0),
        headlines,
        _legend(measured),
        width=width,
        height=top + len(shown) * each + 34,
        left=_LEFT,
    )
    for number, worker in enumerate(shown):
        y = top + number * each
        chart.title(y + 14, f"worker {worker}")
        chart.subtitle(y + 28, shown_stages(measured.plan.groups[worker.group]))
        if planned:
            chart.name(y + 14, called)
            chart.actions(planned.spans(worker), y, _BOX, COLOURS)
            y += _BOX + 2
        chart.name(y + 14, "measured")
        chart.actions(measured.spans(worker), y, _BOX, _MEASURED)
        for wait in measured.waits.get(worker, ()):
            what = f"waited: {wait.cause}" + ("" if wait.stage is None else f", stage {wait.stage}")
            colour = _WAITS.get(wait.cause, "#cbd5e1")
            chart.bar(wait.start_s, wait.end_s, y + _BOX + 1, _LANE - 2, colour, what)
    if len(shown) < len(measured.workers):
        chart.footnote(f"and {len(measured.workers) - len(shown)} more workers")
    return chart.svg()


def _headlines(planned: Timeline | None, measured: MeasuredTimeline, called: str) -> Iterator[str]:
    yield f"measured: {timeline_headline(measured)}"
    if planned and planned.step_s:
        more = measured.step_s / planned.step_s - 1
        yield (
            f"{called}: step {shown_duration(planned.step_s)}; measured takes {abs(100 * more):.1f} % "
            f"{'longer' if more >= 0 else 'less'}"
        )


def _legend(measured: MeasuredTimeline) -> Iterator[tuple[str, str]]:
    seen = {span.action.kind for worker in measured.workers for span in measured.spans(worker)}
    yield from (entry for kind, entry in _MEASURED.items() if kind in seen)
    causes = {wait.cause for waits in measured.waits.values() for wait in waits}
    yield from ((f"waited: {cause}", colour) for cause, colour in _WAITS.items() if cause in causes)
