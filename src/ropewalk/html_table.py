"""Tables in HTML, for `_repr_html_` in notebooks and for reports: escaped, without scripts, in the colours around them.

    ● running   name, facts                 html_headline
    name      state     done                html_table
    worker.0  ● idle      12

Every text is data: control characters are shown as escape sequences, and what HTML would act on as text. Colours are
readable on white and on black, since a notebook does not say which of them it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from ropewalk.escaping import escaped, escaped_lines

_GOOD, _WARN, _BAD, _OTHER = "#1a9e6c", "#c98a00", "#d9480f", "#808890"
_STATES = {
    "running": _GOOD, "completed": _GOOD, "done": _GOOD, "idle": _GOOD, "ready": _GOOD, "open": _GOOD,
    "RUN": _GOOD, "CLOSE": _WARN, "TERMINATE": _WARN,  # of multiprocessing's pools
    "starting": _WARN, "restarting": _WARN, "stopping": _WARN, "waiting": _WARN, "paused": _WARN, "closing": _WARN,
    "failed": _BAD, "lost": _BAD, "killed": _BAD, "broken": _BAD,
}  # fmt: skip
_CELL = "padding:1px 10px 1px 0;border:0;background:none;vertical-align:top;"
_MUTED = "opacity:0.7;font-weight:normal;"
_MOST_ROWS = 100
_MOST_CHARACTERS = 300
"""Of a cell: a notebook keeps its outputs in its file."""


class StateCell(msgspec.Struct, frozen=True):
    """A cell with a state, before which is a dot in its colour."""

    state: str


Cell = str | StateCell


def html_text(text: str) -> str:
    r"""Return a text as one line of HTML.

    Example:
        >>> html_text("<b>\x1b[2J")
        '&lt;b&gt;\\x1b[2J'
    """
    return _escaped(escaped(text))


def html_lines(text: str) -> str:
    """Return a text of several lines as HTML that keeps them, to be put into an element such as `pre`."""
    return _escaped(escaped_lines(text))


def _escaped(text: str) -> str:
    import html  # its table of entities takes 1 ms, for which a first process would wait

    return html.escape(text)


def state_dot(state: str) -> str:
    """Return a state with a dot in its colour before it."""
    color = _STATES.get(state, _OTHER)
    return f'<span style="color:{color}" aria-hidden="true">&#9679;</span> {html_text(state)}'


def html_headline(name: str, state: str, facts: Iterable[tuple[str, str]] = ()) -> str:
    """Return a line with a name, a state, and facts.

    Args:
        name: of what is shown.
        state: of it; "" for none.
        facts: pairs of a name, which may be empty, and a value.
    """
    shown = [f"{html_text(label)} {html_text(value)}".strip() for label, value in facts]
    words = [f"<strong>{html_text(name)}</strong>", *([state_dot(state)] if state else []), *shown]
    return f"<div>{' &nbsp; '.join(words)}</div>"


def html_table(
    head: Sequence[str], rows: Sequence[Sequence[Cell]], *, right: Collection[int] = (), most_rows: int = _MOST_ROWS
) -> str:
    """Return a table.

    Args:
        head: the headings.
        rows: cells of each row, as many as headings.
        right: indices of the columns that are aligned to the right, such as numbers.
        most_rows: further rows are only counted.

    Example:
        >>> html_table(["name"], [["<x>"]]).count("&lt;x&gt;")
        1
    """
    lines = ['<table style="border-collapse:collapse;border:0;font-size:inherit">', "<thead><tr>"]
    lines += [f'<th style="{_style(at, right)}{_MUTED}">{html_text(name)}</th>' for at, name in enumerate(head)]
    lines.append("</tr></thead><tbody>")
    for row in rows[:most_rows]:
        if len(row) != len(head):
            raise ValueError(f"a row has {len(row)} cells, and there are {len(head)} headings")
        lines.append("<tr>")
        lines += [f'<td style="{_style(at, right)}">{_cell(cell)}</td>' for at, cell in enumerate(row)]
        lines.append("</tr>")
    lines.append("</tbody></table>")
    if len(rows) > most_rows:
        lines.append(f'<div style="{_MUTED}">and {len(rows) - most_rows} more</div>')
    return "".join(lines)


def html_box(*parts: str) -> str:
    """Return parts of HTML in one element, as `_repr_html_` returns it."""
    return f'<div style="font-family:system-ui,sans-serif;font-size:13px;line-height:1.5">{"".join(parts)}</div>'


def html_failure(text: str) -> str:
    """Return a line about a failure; nothing for an empty text."""
    return f'<div style="color:{_BAD};white-space:pre-wrap">{html_lines(_cut(text))}</div>' if text else ""


def _cell(cell: Cell) -> str:
    return state_dot(cell.state) if isinstance(cell, StateCell) else html_text(_cut(cell))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"


def _style(at: int, right: Collection[int]) -> str:
    return f"{_CELL}text-align:{'right' if at in right else 'left'};"


__all__ = [
    "Cell",
    "StateCell",
    "html_box",
    "html_failure",
    "html_headline",
    "html_lines",
    "html_table",
    "html_text",
    "state_dot",
]
