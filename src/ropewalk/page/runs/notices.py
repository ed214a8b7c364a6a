"""What pages of runs have in common: their frame, and messages: what an action did or why not."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

from nicegui import ui
from starlette.requests import Request

from ropewalk.escaping import escaped, escaped_lines
from ropewalk.page.browser import add_runs_head
from ropewalk.page.frame import Visit, page_frame
from ropewalk.page.runs.store_reader import StoreUnreadable

_RETRY_S = 5.0


@contextlib.contextmanager
def runs_frame(request: Request, title: str) -> Generator[Visit]:
    """Draw what every page of runs has; its own content is drawn in the block. As `page_frame`."""
    with page_frame(request, escaped(title)) as visit:
        add_runs_head(visit.style)
        yield visit


def tell(words: str, *, is_good: bool = True) -> None:
    """Say what an action did, or why it did nothing; it stays until it is closed if it is bad.

    Args:
        words: text.
        is_good: whether it was done.
    """
    ui.notify(
        escaped_lines(words), type="positive" if is_good else "negative", multi_line=True, position="bottom",
        timeout=8000 if is_good else 0, actions=[{"label": "close", "color": "white"}],
    )  # fmt: skip


def show_unreadable(error: StoreUnreadable) -> None:
    """Show why the store cannot be read, and try again now and then."""
    with ui.card().classes("panel w-full").props("flat"):
        ui.label("The runs cannot be shown").classes("text-bold")
        ui.label(escaped_lines(str(error))).classes("mono")
        ui.label("This page tries again by itself.").classes("muted")
    ui.timer(_RETRY_S, lambda: ui.navigate.reload())


__all__ = ["runs_frame", "show_unreadable", "tell"]
