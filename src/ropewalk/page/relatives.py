"""Links from the page of a thing to the whole that it is a part of, and to its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nicegui import ui

from ropewalk.control.parts import pool_of, wholes_of
from ropewalk.control.view import View
from ropewalk.escaping import escaped

_MOST_PARTS = 12


@dataclass(frozen=True, slots=True)
class Relatives:
    """The things that belong to one thing; each is a text and an id.

    Attributes:
        whole: what it is a part of; None if it is a part of nothing.
        parts: its parts, oldest first, without the pool whose workers are shown as its processes.
    """

    whole: tuple[str, str] | None
    parts: tuple[tuple[str, str], ...]


def relatives(view: View, views: Sequence[View]) -> Relatives:
    """Return what belongs to a thing.

    Args:
        view: of the thing.
        views: of everything that is known.
    """
    wholes, by_id = wholes_of(views), {each.id: each for each in views}
    whole = by_id.get(wholes.get(view.id, ""))
    pool = pool_of(view, views)
    mine = [by_id[id] for id, of in wholes.items() if of == view.id and by_id[id] is not pool]
    parts = sorted(mine, key=lambda part: part.started)
    return Relatives(
        (f"{whole.kind} {whole.name}{_where(view, whole)}", whole.id) if whole else None,
        tuple((f"{part.kind} {part.name}{_where(part, view)}", part.id) for part in parts),
    )


def _where(part: View, whole: View) -> str:
    """Return the process of the whole that launched the part, in words."""
    names = [process.name for process in whole.processes if process.pid == part.pid != whole.pid]
    return f" (in {names[0]})" if names else ""


class RelativeLinks:
    """The links in one line, which is not there while there are none. Make it where it stands."""

    def __init__(self) -> None:
        self._shown = Relatives(None, ())
        self._row = ui.row().classes("w-full rw-small items-baseline").style("gap: 2px 14px")
        self._row.set_visibility(False)

    def show(self, related: Relatives) -> None:
        """Show what belongs to the thing now."""
        if related == self._shown:
            return
        self._shown = related
        self._row.clear()
        self._row.set_visibility(bool(related.whole or related.parts))
        with self._row:
            if related.whole:
                ui.label("part of")
                _link(*related.whole)
            if related.parts:
                ui.label("parts:")
            for words, id in related.parts[:_MOST_PARTS]:
                _link(words, id)
            if len(related.parts) > _MOST_PARTS:
                ui.label(f"and {len(related.parts) - _MOST_PARTS} more, which “Now” lists below it")


def _link(words: str, id: str) -> None:
    ui.link(escaped(words), f"/now/{id}")


__all__ = ["RelativeLinks", "Relatives", "relatives"]
