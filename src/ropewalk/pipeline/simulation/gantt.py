"""A Gantt chart as an SVG image: a headline, a legend, a time axis, and rows of boxes over it.

The image is self-contained (no script, no font, no network). Pointing at a box shows its
action and times. Planned and measured timelines both draw their rows with this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from ropewalk.pipeline.actions import ActionKind
from ropewalk.pipeline.simulation.spans import ActionSpan
from ropewalk.quantities import shown_duration

COLOURS = {
    ActionKind.FORWARD: ("forward", "#3b82f6"),
    ActionKind.RECOMPUTE: ("recompute", "#93c5fd"),
    ActionKind.BACKWARD: ("backward", "#16a34a"),
    ActionKind.INPUT_GRADIENT: ("input gradient", "#22a6a0"),
    ActionKind.WEIGHT_GRADIENT: ("weight gradient", "#84cc16"),
    ActionKind.REDUCE: ("reduce", "#ec4899"),
    ActionKind.STEP: ("step", "#334155"),
    ActionKind.SEND: ("wait for a transfer", "#fecaca"),
}
"""The name of each kind of action in legends, and its colour."""
_OTHER_COLOUR = "#cbd5e1"
_MUTED = "#475569"
_RIGHT, _BOTTOM, _LINE = 30, 30, 18
_LEAST_LABEL = 13
"""Least width in pixels of a box with a number."""
_UNNUMBERED = (ActionKind.SEND, ActionKind.RECEIVE)


class Gantt:
    """A chart into which rows are drawn.

    Args:
        length_s: length of the time axis in seconds.
        headlines: lines of text, the first one in bold, the others below it.
        legend: pairs of text and colour.
        width: width of the image in pixels.
        height: height of the image in pixels.
        left: x coordinate of time 0 in pixels.
    """

    def __init__(
        self,
        length_s: float,
        headlines: Sequence[str],
        legend: Iterable[tuple[str, str]],
        *,
        width: int,
        height: int,
        left: int,
    ) -> None:
        self._left, self._height, self._length_s = left, height, length_s
        self._scale = (width - left - _RIGHT) / (length_s or 1.0)
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'font-family="system-ui, sans-serif" font-size="11" fill="#0f172a">',
            '<rect width="100%" height="100%" fill="white"/>',
        ]
        for number, line in enumerate(headlines):
            self._text(20, 24 + _LINE * number, line, "" if number else 'font-size="14" font-weight="600"')
        self._legend(legend, 18 + _LINE * len(headlines))
        self._axis(self.top(len(headlines)))

    @staticmethod
    def top(num_headlines: int) -> int:
        """Return the least y coordinate of the first row, in pixels."""
        return 56 + _LINE * num_headlines

    def title(self, y: float, words: str) -> None:
        """Write the name of a row at the left edge of the image.

        Args:
            y: baseline of the text in pixels.
            words: the name.
        """
        self._text(20, y, words, 'font-weight="600"')

    def subtitle(self, y: float, words: str) -> None:
        """Write a second line below the title of a row.

        Args:
            y: baseline of the text in pixels.
            words: the text.
        """
        self._text(20, y, words, f'fill="{_MUTED}"')

    def name(self, y: float, words: str) -> None:
        """Write the name of one line of a row, left of time 0.

        Args:
            y: baseline of the text in pixels.
            words: the name.
        """
        self._text(self._left - 8, y, words, f'text-anchor="end" fill="{_MUTED}"')

    def footnote(self, words: str) -> None:
        """Write a line below all rows."""
        self._text(20, self._height - 8, words)

    def actions(
        self, spans: Iterable[ActionSpan], y: float, height: int, colours: Mapping[ActionKind, tuple[str, str]]
    ) -> None:
        """Draw a box for each action that takes time, with the number of its micro-batch if there is room.

        Args:
            spans: the actions, with their times.
            y: upper edge of the boxes in pixels.
            height: height of the boxes in pixels.
            colours: name and colour of each kind of action.
        """
        for span in spans:
            if span.end_s <= span.start_s:
                continue
            words, colour = colours.get(span.action.kind, ("", _OTHER_COLOUR))
            wide = self._width(span.start_s, span.end_s)
            edge = 'stroke="white" stroke-width="0.5"' if wide > 2 else ""  # an edge would cover narrower boxes
            box = self._rect(span.start_s, span.end_s, y, height, colour, edge)
            number = span.action.micro_batch
            has_room = wide >= max(_LEAST_LABEL, 7 * len(str(number)))
            if number is not None and has_room and span.action.kind not in _UNNUMBERED:
                centre, base = self._x(span.start_s) + wide / 2, y + height / 2 + 4
                box += f'<text x="{centre:.2f}" y="{base:g}" text-anchor="middle" fill="white">{number}</text>'
            title = f"{span.action}: {words}, {_when(span.start_s, span.end_s)}"
            self._parts.append(f"<g><title>{escape(title)}</title>{box}</g>")

    def bar(
        self, start_s: float, end_s: float, y: float, height: int, colour: str, what: str, *, opacity: float = 1.0
    ) -> None:
        """Draw a thin bar, below the actions that it belongs to.

        Args:
            start_s: start in seconds.
            end_s: end in seconds.
            y: upper edge in pixels.
            height: height in pixels.
            colour: fill colour.
            what: text that is shown when the pointer is over the bar.
            opacity: from 0 to 1.
        """
        attributes = "" if opacity == 1 else f'opacity="{opacity}"'
        rect = self._rect(start_s, end_s, y, height, colour, attributes)
        self._parts.append(f"<g><title>{escape(f'{what}, {_when(start_s, end_s)}')}</title>{rect}</g>")

    def area(self, steps: Sequence[tuple[float, float]], y: float, height: int, colour: str) -> None:
        """Fill the area below a step curve.

        Args:
            steps: pairs of a time in seconds and the curve's height from then on, as a share of `height`.
            y: upper edge in pixels.
            height: height of a share of 1, in pixels.
            colour: fill colour.
        """
        ends = [*(since for since, _ in steps[1:]), self._length_s]
        base = y + height
        path = "".join(
            f"V{base - height * share:.2f}H{self._x(end):.2f}" for (_, share), end in zip(steps, ends, strict=True)
        )
        self._parts.append(f'<path d="M{self._x(0):.2f} {base}{path}V{base}z" fill="{colour}"/>')

    def svg(self) -> str:
        """Return the SVG document."""
        return "\n".join([*self._parts, "</svg>\n"])

    def _x(self, time_s: float) -> float:
        return self._left + time_s * self._scale

    def _width(self, start_s: float, end_s: float) -> float:
        return max((end_s - start_s) * self._scale, 0.3)

    def _rect(self, start_s: float, end_s: float, y: float, height: int, colour: str, attributes: str) -> str:
        wide = self._width(start_s, end_s)
        attributes = f'fill="{colour}" {attributes}'.rstrip()
        return f'<rect x="{self._x(start_s):.2f}" y="{y}" width="{wide:.2f}" height="{height}" {attributes}/>'

    def _text(self, x: float, y: float, words: str, attributes: str = "") -> None:
        self._parts.append(f'<text x="{x:g}" y="{y:g}" {attributes}'.rstrip() + f">{escape(words)}</text>")

    def _legend(self, entries: Iterable[tuple[str, str]], y: int) -> None:
        left = 20
        for words, colour in entries:
            self._parts.append(f'<rect x="{left}" y="{y}" width="11" height="11" fill="{colour}"/>')
            self._text(left + 15, y + 10, words)
            left += 32 + 6 * len(words)

    def _axis(self, top: float) -> None:
        """Draw lines at round times, each with its time above."""
        tick = _round(self._length_s / 10) if self._length_s else 1.0
        for number in range(int(self._length_s / tick + 1e-9) + 1):
            at = self._x(number * tick)
            self._parts.append(f'<path d="M{at:.2f} {top - 8}V{self._height - _BOTTOM}" stroke="#e2e8f0"/>')
            self._text(round(at, 2), top - 12, shown_duration(number * tick), f'text-anchor="middle" fill="{_MUTED}"')


def _round(amount: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(amount))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= amount * (1 - 1e-9))


def _when(start_s: float, end_s: float) -> str:
    return f"{shown_duration(start_s)} to {shown_duration(end_s)}, {shown_duration(end_s - start_s)} long"
