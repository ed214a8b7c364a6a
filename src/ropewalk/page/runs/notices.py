"""What pages of runs have in common: their frame, and messages: what an action did or why not."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from nicegui import ui
from starlette.requests import Request

from ropewalk.escaping import escaped, escaped_lines
from ropewalk.page.actions import ActionFailed, ActionOutcome, NumberedActions
from ropewalk.page.browser import add_runs_head
from ropewalk.page.frame import Visit, page_frame
from ropewalk.page.runs.store_reader import StoreReader, StoreUnreadable
from ropewalk.page.thing_header import notify

if TYPE_CHECKING:  # stores need an extra
    from ropewalk.tracking.store.store import RunStore

_RETRY_S = 5.0


@contextlib.contextmanager
def runs_frame(request: Request, title: str) -> Generator[Visit]:
    """Draw what every page of runs has; its own content is drawn in the block. As `page_frame`."""
    with page_frame(request, escaped(title)) as visit:
        add_runs_head(visit.style)
        yield visit


def tell(words: str, *, is_good: bool = True) -> None:
    """Say what was done, or why nothing was."""
    notify(ActionOutcome(is_good, words))


async def carry_out(
    visit: Visit, reader: StoreReader, actions: NumberedActions, what: str, change: Callable[[RunStore], str]
) -> bool:
    """Change something for a visitor, and say what became of it; returns whether it was done.

    Args:
        visit: whose it is. Buttons are only drawn for those who may act, and this is what protects the runs.
        reader: reads and writes the store.
        actions: numbers and logs it.
        what: in words, such as "pause brisk-otter".
        change: does it, in a thread, and returns what was done; raises `ActionFailed`.
    """
    if not visit.may_act:
        tell("Only an owner may do this; this tab was opened with a reader's token.", is_good=False)
        return False

    def call() -> str:
        try:
            return reader.read_now(change)
        except StoreUnreadable as error:
            raise ActionFailed(str(error)) from error

    busy = ui.notification(escaped(f"{what}: waiting for the answer"), spinner=True, timeout=None)
    outcome = await actions.do(what, call)
    busy.dismiss()
    notify(outcome)
    return outcome.done


def show_unreadable(error: StoreUnreadable) -> None:
    """Show why the store cannot be read, and try again now and then."""
    with ui.card().classes("panel w-full").props("flat"):
        ui.label(error.title).classes("text-bold")
        ui.label(escaped_lines(str(error))).classes("mono")
        ui.label("This page tries again by itself.").classes("muted")
    ui.timer(_RETRY_S, lambda: ui.navigate.reload())


__all__ = ["carry_out", "runs_frame", "show_unreadable", "tell"]
