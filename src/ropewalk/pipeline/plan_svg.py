"""A plan as an SVG image: a column for each stage with its times and memory, arcs for transfers between stages.

The image is self-contained (no script, no font, no network), so that a page or a paper can
include it without changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from ropewalk.pipeline.plan_table import headline, remarks, shown_devices
from ropewalk.pipeline.prediction import Prediction
from ropewalk.quantities import shown_duration, shown_size

if TYPE_CHECKING:  # `plans.py` imports this module
    from ropewalk.pipeline.plans import Plan

_COLUMN, _GAP, _LEFT, _MARGIN, _BAR = 170, 46, 24, 100, 180
_FORWARD, _BACKWARD = "#3b82f6", "#16a34a"
_MEMORY = {
    "weights": "#475569", "gradients": "#64748b", "optimizer": "#94a3b8",
    "stashed": "#a855f7", "buffers": "#cbd5e1", "activations": "#f59e0b",
}  # fmt: skip


def plan_svg(plan: Plan, prediction: Prediction) -> str:
    """Draw a plan as an SVG document; a dashed line shows the memory limit of a device, if there is one.

    Args:
        plan: the plan to draw.
        prediction: its times and memory.
    """
    memory_bytes = prediction.memory_bytes
    top = 60 + 22 * _arc_levels(plan)
    notes = list(remarks(plan, prediction))
    right = _LEFT + len(plan.stages) * (_COLUMN + _GAP) - _GAP
    words = max(int(8.5 * len(headline(plan, prediction))), *(int(6.4 * len(note)) for note in notes))
    width = max(right + _MARGIN, _LEFT + words)
    height = top + _BAR + 130 + 18 * (len(notes) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="#0f172a">',
        '<defs><marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0 0 L8 4 L0 8 z" fill="#b91c1c"/></marker></defs>',
        '<rect width="100%" height="100%" fill="white"/>',
        _text(_LEFT, 26, headline(plan, prediction), weight="600", size=15),
        *_arcs(prediction, top),
    ]
    slowest = max(stage.forward_s + stage.backward_s for stage in prediction.stages) or 1.0
    fullest = max(memory_bytes or 0, *(stage.memory.total for stage in prediction.stages)) or 1
    for number in range(len(plan.stages)):
        parts += _stage(plan, prediction, number, top, slowest, fullest)
    if memory_bytes:
        y = top + 34 + _BAR * (1 - memory_bytes / fullest)
        parts.append(f'<path d="M{_LEFT} {y:.1f} H{right}" stroke="#b91c1c" stroke-dasharray="6 4"/>')
        parts.append(_text(right + 6, y + 4, f"{shown_size(memory_bytes)} each", colour="#b91c1c"))
    parts += _legend(top + _BAR + 112)
    for line, note in enumerate(notes):
        parts.append(_text(_LEFT, top + _BAR + 138 + 18 * line, note, colour="#334155"))
    return "\n".join([*parts, "</svg>", ""])


def _stage(plan: Plan, prediction: Prediction, number: int, top: int, slowest: float, fullest: int) -> Iterator[str]:
    stage, predicted = plan.stages[number], prediction.stages[number]
    x = _LEFT + number * (_COLUMN + _GAP)
    replicas = f" x {stage.replicas}" if stage.replicas > 1 else ""
    yield f'<rect x="{x}" y="{top}" width="{_COLUMN}" height="{_BAR + 96}" rx="8" fill="#f8fafc" stroke="#cbd5e1"/>'
    yield _text(x + _COLUMN / 2, top + 20, f"stage {number}{replicas}", weight="600", anchor="middle")
    base = top + 34 + _BAR
    y = float(base)
    times = ((predicted.forward_s, _FORWARD, "forward"), (predicted.backward_s, _BACKWARD, "backward"))
    for seconds, colour, name in times:
        tall = _BAR * seconds / slowest
        y -= tall
        yield _bar(x + 22, y, tall, colour, f"{name} {shown_duration(seconds)}")
    y = float(base)
    for name, colour in _MEMORY.items():
        size_bytes = getattr(predicted.memory, name)
        tall = _BAR * size_bytes / fullest
        y -= tall
        if size_bytes:
            yield _bar(x + 98, y, tall, colour, f"{name} {shown_size(size_bytes)}")
    time = shown_duration(predicted.forward_s + predicted.backward_s)
    yield _text(x + 47, base + 15, time, anchor="middle")
    yield _text(x + 123, base + 15, shown_size(predicted.memory.total), anchor="middle")
    first, last = stage.operators[0], stage.operators[-1]
    for line, words in enumerate((f"devices {shown_devices(stage.devices)}", f"{first} ..", last)):
        yield _text(x + _COLUMN / 2, base + 32 + 14 * line, words[:28], anchor="middle", size=10, colour="#475569")


def _arc_levels(plan: Plan) -> int:
    return max((target - edge.source for edge in plan.edges for target in edge.targets), default=1)


def _arcs(prediction: Prediction, top: int) -> Iterator[str]:
    """One arc for each pair of stages; arcs between stages that are farther apart are higher."""
    for link in prediction.links:
        start = _LEFT + link.source * (_COLUMN + _GAP) + _COLUMN * 0.75
        end = _LEFT + link.target * (_COLUMN + _GAP) + _COLUMN * 0.25
        peak = top - 22 * (link.target - link.source)
        both = f"stage {link.source} -> {link.target}: {shown_size(link.forward_bytes)} forward, "
        yield (
            f'<path d="M{start:.0f} {top} C{start:.0f} {peak} {end:.0f} {peak} {end:.0f} {top}" fill="none" '
            f'stroke="#b91c1c" stroke-width="1.5" marker-end="url(#tip)">'
            f"<title>{both}{shown_size(link.backward_bytes)} back in a step</title></path>"
        )
        label = shown_size(link.forward_bytes)
        yield _text((start + end) / 2, peak + 1, label, anchor="middle", size=10, colour="#b91c1c")


def _legend(y: float) -> Iterator[str]:
    x = float(_LEFT)
    for name, colour in {"forward": _FORWARD, "backward": _BACKWARD, **_MEMORY}.items():
        yield f'<rect x="{x:.0f}" y="{y - 9:.0f}" width="10" height="10" fill="{colour}"/>'
        yield _text(x + 14, y, name, size=11)
        x += 26 + 7 * len(name)


def _bar(x: float, y: float, height: float, colour: str, title: str) -> str:
    return (
        f'<rect x="{x:.0f}" y="{y:.1f}" width="50" height="{max(height, 0.5):.1f}" fill="{colour}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 12,
    weight: str = "400",
    anchor: str = "start",
    colour: str = "#0f172a",
) -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{colour}">{escape(words)}</text>'
    )
