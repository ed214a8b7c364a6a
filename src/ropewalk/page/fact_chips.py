"""`FactChips`: facts as small labels with their values below, changed in place."""

from __future__ import annotations

from collections.abc import Mapping

from nicegui import ui


class FactChips:
    """Shows facts in a row of chips.

    Args:
        row: holds them.
    """

    def __init__(self, row: ui.element) -> None:
        self._row = row
        self._values: dict[str, ui.label] = {}

    def show(self, facts: Mapping[str, str]) -> None:
        """Show facts by their names, in order."""
        if list(facts) != list(self._values):
            self._row.clear()
            self._values = {}
            with self._row:
                for name in facts:
                    with ui.element("div").classes("rw-fact"):
                        ui.label(name)
                        self._values[name] = ui.label()
        for name, value in facts.items():
            self._values[name].set_text(value)


__all__ = ["FactChips"]
