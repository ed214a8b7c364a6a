"""A timeline as an SVG image: a row for each worker with its actions, its ports, and its memory below.

0.0   ███F0███ ██F1██      ██████B0██████
      ▂▂▂  ▂▂▂  ▂▂▂          (ports: out above, in below)
      ▁▁▁▁▂▂▂▂▃▃▃▃▃▃▃▃▂▂▂▂▁▁ (memory: fixed, older weights, activations)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ropewalk.pipeline.plan_table import shown_stages
from ropewalk.pipeline.plans import PlanWorker
from ropewalk.pipeline.simulation.gantt import COLOURS, Gantt
from ropewalk.pipeline.simulation.spans import TensorTransfer
from ropewalk.pipeline.simulation.timeline_memory import MemorySample, memory_over_time
from ropewalk.pipeline.simulation.timeline_text import timeline_headline
from ropewalk.quantities import shown_size

if TYPE_CHECKING:  # `timeline.py` imports this module
    from ropewalk.pipeline.simulation.timeline import Timeline

_LEFT, _BOX, _LANE, _MEMORY, _GAP = 130, 24, 5, 26, 12
_ROW = _BOX + 2 * _LANE + _MEMORY + _GAP
_TRANSFER = "#b91c1c"
_FIXED, _STASHED, _ACTIVATIONS = "#94a3b8", "#a855f7", "#f59e0b"


def timeline_svg(timeline: Timeline, *, width: int = 1400, max_workers: int = 64) -> str:
    """Draw a timeline as an SVG document.

    Args:
        timeline: the timeline to draw.
        width: width of the image in pixels.
        max_workers: most workers to draw; the headline counts all of them.
    """
    shown = timeline.workers[:max_workers]
    curves = {worker: memory_over_time(timeline, worker) for worker in shown}
    most = max(memory.total for curve in curves.values() for memory in curve) or 1
    sent: dict[PlanWorker, list[TensorTransfer]] = defaultdict(list)
    received: dict[PlanWorker, list[TensorTransfer]] = defaultdict(list)
    for transfer in timeline.transfers:
        if transfer.level < 0:
            continue  # within one device
        sent[transfer.sender].append(transfer)
        received[transfer.receiver].append(transfer)
    has_stashed = any(memory.stashed for curve in curves.values() for memory in curve)
    top = Gantt.top(num_headlines=1)
    chart = Gantt(
        timeline.length_s,
        [timeline_headline(timeline)],
        _legend(timeline, has_stashed),
        width=width,
        height=top + len(shown) * _ROW + 40,
        left=_LEFT,
    )
    for row, worker in enumerate(shown):
        y = top + row * _ROW
        stages = shown_stages(timeline.plan.groups[worker.group])
        chart.title(y + 16, f"worker {worker}")
        chart.subtitle(y + 30, f"{stages}, device {timeline.plan.device_of(worker)}")
        chart.subtitle(y + 56, f"at most {shown_size(max(memory.total for memory in curves[worker]))}")
        chart.actions(timeline.spans(worker), y, _BOX, COLOURS)
        for transfer in sent[worker]:
            _transfer(chart, transfer, transfer.out_s, y + _BOX)
        for transfer in received[worker]:
            _transfer(chart, transfer, transfer.in_s, y + _BOX + _LANE)
        _memory(chart, curves[worker], y + _BOX + 2 * _LANE, most)
    if len(shown) < len(timeline.workers):
        chart.footnote(f"and {len(timeline.workers) - len(shown)} more workers")
    return chart.svg()


def _transfer(chart: Gantt, transfer: TensorTransfer, start_s: float, y: int) -> None:
    goes_back = transfer.target < transfer.source
    what = (
        f"{'gradient of ' if goes_back else ''}{transfer.tensor}, micro-batch {transfer.micro_batch}, "
        f"stage {transfer.source} to {transfer.target}, {shown_size(transfer.size_bytes)}"
    )
    end_s = start_s + transfer.port_s
    chart.bar(start_s, end_s, y + 1, _LANE - 1, _TRANSFER, what, opacity=0.5 if goes_back else 0.9)


def _memory(chart: Gantt, curve: Sequence[MemorySample], top: int, most: int) -> None:
    """Draw three areas, each over the one that reaches higher."""
    for colour, left_out in ((_ACTIVATIONS, ()), (_STASHED, ("activations",)), (_FIXED, ("activations", "stashed"))):
        steps: list[tuple[float, float]] = []
        for memory in curve:
            share = (memory.total - sum(getattr(memory, part) for part in left_out)) / most
            if not steps or steps[-1][1] != share:
                steps.append((memory.time_s, share))
        chart.area(steps, top, _MEMORY, colour)


def _legend(timeline: Timeline, has_stashed: bool) -> Iterator[tuple[str, str]]:
    seen = {
        span.action.kind for worker in timeline.workers for span in timeline.spans(worker) if span.end_s > span.start_s
    }
    yield from (entry for kind, entry in COLOURS.items() if kind in seen)
    if timeline.transfers:
        yield "transfers (out, in)", _TRANSFER
    yield "weights and optimizer", _FIXED
    yield "activations", _ACTIVATIONS
    if has_stashed:
        yield "older weights", _STASHED
