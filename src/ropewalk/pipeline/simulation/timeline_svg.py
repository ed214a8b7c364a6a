"""A timeline as a picture: a row for each worker with what it computes, its ports, and its memory below.

The picture stands alone (no script, no font, no network). Pointing at a box shows what it
is and when.

    0.0   ███F0███ ██F1██      ██████B0██████
          ▂▂▂  ▂▂▂  ▂▂▂          (ports: out above, in below)
          ▁▁▁▁▂▂▂▂▃▃▃▃▃▃▃▃▂▂▂▂▁▁ (memory: fixed, older weights, activations)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from html import escape
from typing import TYPE_CHECKING

from ropewalk.pipeline.actions import Kind
from ropewalk.pipeline.plans import Worker
from ropewalk.pipeline.simulation.spans import Span, Transfer
from ropewalk.pipeline.simulation.timeline_memory import Memory, memory_over_time
from ropewalk.pipeline.simulation.timeline_text import timeline_headline
from ropewalk.quantities import shown_duration, shown_size

if TYPE_CHECKING:  # timelines draw themselves with this
    from ropewalk.pipeline.simulation.timeline import Timeline

_LEFT, _TOP, _BOX, _LANE, _MEMORY, _GAP = 130, 74, 24, 5, 26, 12
_ROW = _BOX + 2 * _LANE + _MEMORY + _GAP
#: What each action is called in a legend, and its colour.
COLOURS = {
    Kind.FORWARD: ("forward", "#3b82f6"),
    Kind.RECOMPUTE: ("recompute", "#93c5fd"),
    Kind.BACKWARD: ("backward", "#16a34a"),
    Kind.INPUT_GRADIENT: ("input gradient", "#22a6a0"),
    Kind.WEIGHT_GRADIENT: ("weight gradient", "#84cc16"),
    Kind.REDUCE: ("reduce", "#ec4899"),
    Kind.STEP: ("step", "#334155"),
    Kind.SEND: ("wait for a transfer", "#fecaca"),
}
_TRANSFER = "#b91c1c"
_FIXED, _STASHED, _ACTIVATIONS = "#94a3b8", "#a855f7", "#f59e0b"
_IN_FLIGHT = ("activations",)
#: Narrower boxes have no room for a number.
_LEAST_LABEL = 13


def timeline_svg(timeline: Timeline, *, width: int = 1400, max_workers: int = 64) -> str:
    """Draw a timeline.

    Args:
        timeline: what happened.
        width: of the picture, in pixels.
        max_workers: rows at most; the headline tells of all of them.
    """
    shown = timeline.workers[:max_workers]
    scale = (width - _LEFT - 20) / (timeline.length_s or 1.0)
    height = _TOP + len(shown) * _ROW + 40

    def x(time_s: float) -> float:
        return _LEFT + time_s * scale

    curves = {worker: memory_over_time(timeline, worker) for worker in shown}
    most = max(memory.total for curve in curves.values() for memory in curve) or 1
    sent: dict[Worker, list[Transfer]] = defaultdict(list)
    received: dict[Worker, list[Transfer]] = defaultdict(list)
    for transfer in timeline.transfers:
        if transfer.level < 0:
            continue  # within a device
        sent[transfer.sender].append(transfer)
        received[transfer.receiver].append(transfer)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="#0f172a">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="20" y="24" font-size="14" font-weight="600">{escape(timeline_headline(timeline))}</text>',
        *_legend(timeline, any(memory.stashed for curve in curves.values() for memory in curve)),
        *axis(timeline.length_s, x, _TOP, height - 30),
    ]
    for row, worker in enumerate(shown):
        y = _TOP + row * _ROW
        parts += _label(timeline, worker, y, max(memory.total for memory in curves[worker]))
        parts += (_box(span, x, y) for span in timeline.spans(worker) if span.end_s > span.start_s)
        parts += (_lane(transfer, transfer.out_s, x, y + _BOX) for transfer in sent[worker])
        parts += (_lane(transfer, transfer.in_s, x, y + _BOX + _LANE) for transfer in received[worker])
        parts += _memory(curves[worker], timeline.length_s, x, y + _BOX + 2 * _LANE, most)
    if len(shown) < len(timeline.workers):
        hidden = len(timeline.workers) - len(shown)
        parts.append(f'<text x="20" y="{height - 8}">and {hidden} more workers</text>')
    return "\n".join([*parts, "</svg>\n"])


def _label(timeline: Timeline, worker: Worker, y: float, peak: int) -> Iterator[str]:
    stages = ", ".join(map(str, timeline.plan.groups[worker.group]))
    yield f'<text x="20" y="{y + 16}" font-weight="600">worker {worker}</text>'
    yield f'<text x="20" y="{y + 30}" fill="#475569">stage {stages}, device {timeline.plan.device_of(worker)}</text>'
    yield f'<text x="20" y="{y + 56}" fill="#475569">at most {shown_size(peak)}</text>'


def _box(span: Span, x: Callable[[float], float], y: float) -> str:
    words, colour = COLOURS.get(span.action.kind, ("", "#cbd5e1"))
    left, wide = x(span.start_s), x(span.end_s) - x(span.start_s)
    title = f"{span.action}: {words}, {shown_span(span.start_s, span.end_s)}"
    box = (
        f'<rect x="{left:.2f}" y="{y}" width="{wide:.2f}" height="{_BOX}" fill="{colour}" '
        f'stroke="white" stroke-width="0.5"/>'
    )
    number = span.action.micro_batch
    if number is not None and wide >= max(_LEAST_LABEL, 7 * len(str(number))) and span.action.kind is not Kind.SEND:
        centre = left + wide / 2
        box += f'<text x="{centre:.2f}" y="{y + 16}" text-anchor="middle" fill="white">{number}</text>'
    return f"<g><title>{escape(title)}</title>{box}</g>"


def _lane(transfer: Transfer, start_s: float, x: Callable[[float], float], y: float) -> str:
    end_s = start_s + transfer.port_s
    what = "gradient of " if transfer.target < transfer.source else ""
    title = (
        f"{what}{transfer.tensor}, micro-batch {transfer.micro_batch}, stage {transfer.source} to {transfer.target}, "
        f"{shown_size(transfer.size_bytes)}, {shown_span(start_s, end_s)}"
    )
    wide = max(x(end_s) - x(start_s), 0.6)
    return (
        f'<rect x="{x(start_s):.2f}" y="{y + 1}" width="{wide:.2f}" height="{_LANE - 1}" fill="{_TRANSFER}" '
        f'opacity="{0.5 if what else 0.9}"><title>{escape(title)}</title></rect>'
    )


def _memory(curve: list[Memory], length_s: float, x: Callable[[float], float], top: float, most: int) -> Iterator[str]:
    """Three areas, each drawn over the one that reaches higher."""
    for colour, left_out in ((_ACTIVATIONS, ()), (_STASHED, _IN_FLIGHT), (_FIXED, (*_IN_FLIGHT, "stashed"))):
        steps: list[tuple[float, int]] = []
        for memory in curve:
            size = memory.total - sum(getattr(memory, part) for part in left_out)
            if not steps or steps[-1][1] != size:
                steps.append((memory.time_s, size))
        base = top + _MEMORY
        path = "".join(f"V{base - _MEMORY * size / most:.2f}H{x(until):.2f}" for size, until in _until(steps, length_s))
        yield f'<path d="M{x(0):.2f} {base}{path}V{base}z" fill="{colour}"/>'


def _until(steps: list[tuple[float, int]], end_s: float) -> Iterator[tuple[int, float]]:
    """Each height, and until when it lasts."""
    for number, (_, size) in enumerate(steps):
        yield size, steps[number + 1][0] if number + 1 < len(steps) else end_s


def _legend(timeline: Timeline, has_stashed: bool) -> Iterator[str]:
    seen = {
        span.action.kind for worker in timeline.workers for span in timeline.spans(worker) if span.end_s > span.start_s
    }
    entries = [entry for kind, entry in COLOURS.items() if kind in seen]
    entries += [("transfers (out, in)", _TRANSFER)] if timeline.transfers else []
    entries += [("weights and optimizer", _FIXED), ("activations", _ACTIVATIONS)]
    entries += [("older weights", _STASHED)] if has_stashed else []
    left = 20.0
    for words, colour in entries:
        yield f'<rect x="{left}" y="36" width="11" height="11" fill="{colour}"/>'
        yield f'<text x="{left + 15}" y="46">{words}</text>'
        left += 32 + 6 * len(words)


def axis(length_s: float, x: Callable[[float], float], top: float, bottom: float) -> Iterator[str]:
    """Lines at round times with what they are, down from `top`."""
    tick = _round(length_s / 10) if length_s else 1.0
    for number in range(int(length_s / tick + 1e-9) + 1):
        at = x(number * tick)
        yield f'<path d="M{at:.2f} {top - 8}V{bottom}" stroke="#e2e8f0"/>'
        time = shown_duration(number * tick)
        yield f'<text x="{at:.2f}" y="{top - 12}" fill="#475569" text-anchor="middle">{time}</text>'


def _round(amount: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(amount))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= amount * (1 - 1e-9))


def shown_span(start_s: float, end_s: float) -> str:
    """When something was, in words."""
    return f"{shown_duration(start_s)} to {shown_duration(end_s)}, {shown_duration(end_s - start_s)} long"
