"""Messages of the page: what an action did or why not, and why nothing can be shown."""

from __future__ import annotations

from nicegui import ui

from ropewalk.escaping import escaped_lines
from ropewalk.page.runs.store_reader import StoreUnreadable

_RETRY_S = 5.0


def tell(words: str, *, is_good: bool = True) -> None:
    """Say what an action did, or why it did nothing; it stays until it is closed if it is bad.

    Args:
        words: text.
        is_good: whether it was done.
    """
    ui.notify(
        escaped_lines(words), type="positive" if is_good else "negative", multi_line=True, position="bottom",
        close_button="close", timeout=6000 if is_good else 0,
    )  # fmt: skip


def show_unreadable(error: StoreUnreadable) -> None:
    """Show why the store cannot be read, and try again now and then."""
    with ui.card().classes("panel w-full").props("flat"):
        ui.label("The runs cannot be shown").classes("text-bold")
        ui.label(escaped_lines(str(error))).classes("mono")
        ui.label("This page tries again by itself.").classes("muted")
    ui.timer(_RETRY_S, lambda: ui.navigate.reload())


__all__ = ["show_unreadable", "tell"]
