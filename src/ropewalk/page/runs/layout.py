"""How pages of runs arrange what they show: tiles that fill the width, and tables of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nicegui import ui

from ropewalk.escaping import escaped_lines
from ropewalk.page.browser import call_browser


def tiles(width: int, *, fill: bool = False) -> ui.element:
    """Return a place whose parts stand beside each other, as many as the width has room for; use it with `with`.

    Args:
        width: the least width of a part, in pixels.
        fill: keep the room of parts that are not there, so that few parts do not become wider.
    """
    kind = "fill" if fill else "fit"
    columns = f"repeat(auto-{kind}, minmax(min(100%, {width}px), 1fr))"
    return ui.element("div").classes("w-full").style(f"display: grid; gap: 10px; grid-template-columns: {columns}")


def plain_table(
    name: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    right: Sequence[int] = (),
    grow: int | None = None,
    most_px: int = 0,
) -> None:
    """Draw a table of texts, which can be saved as CSV; a cell may be a function that draws it.

    Args:
        name: of the file that is saved.
        heads: above the columns.
        rows: texts, which are escaped, or functions.
        right: numbers of the columns that are aligned right.
        grow: number of the column that takes the room that is left.
        most_px: its height, above which it is scrolled; 0: it is as high as its rows.
    """
    widths = ["minmax(120px, 1fr)" if at == grow else "max-content" for at in range(len(heads))]
    height = f"max-height: {most_px}px; overflow-y: auto" if most_px else ""
    columns = f"grid-template-columns: {' '.join(widths)}; column-gap: 20px; row-gap: 3px; overflow-x: auto; {height}"
    with ui.element("div").classes("w-full relative-position"):
        table = ui.element("div").classes("w-full").style(f"display: grid; {columns}")
        save_button(lambda: call_browser("saveTable", table.id, len(heads), f"{name}.csv")).classes("rw-save")
    with table:
        for at, head in enumerate(heads):
            ui.label(head).classes("muted text-caption").style("text-align: right" if at in right else "")
        for row in rows:
            for at, cell in enumerate(row):
                if callable(cell):
                    with ui.element("div").style("text-align: right" if at in right else ""):
                        cell()
                else:
                    ui.label(escaped_lines(str(cell))).classes("mono").style(
                        f"overflow-wrap: anywhere; {'text-align: right' if at in right else ''}"
                    )


def save_button(save: Callable[[], object]) -> ui.button:
    """Draw the button that saves a table as CSV.

    Args:
        save: does it.
    """
    words = 'flat round dense size="xs" title="save as CSV" aria-label="save as CSV"'
    return ui.button(icon="table_view", on_click=lambda: save()).props(words).classes("muted")


__all__ = ["plain_table", "save_button", "tiles"]
