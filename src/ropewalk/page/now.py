"""The first page: what runs now."""

from __future__ import annotations

from nicegui import ui
from starlette.requests import Request

from ropewalk.page.frame import Visit, page_frame
from ropewalk.page.style import state_color
from ropewalk.page.watcher import Seen, Watcher
from ropewalk.quantities import counted, shown_duration


def add_now_page(watcher: Watcher) -> None:
    """Serve `/`.

    Args:
        watcher: knows what runs.
    """

    @ui.page("/", title="Now")
    def now(request: Request) -> None:
        with page_frame(request, "Now") as visit:
            watcher.want(visit.client)
            visit.when_gone(lambda: watcher.unwant(visit.client))
            cards = ui.column().classes("w-full")
            shown: list[object] = []

            def refresh() -> None:
                things = watcher.things()
                state = [(seen.view, seen.problem, seen.gone) for seen in things]
                if state == shown and cards.default_slot.children:
                    return
                shown[:] = state
                cards.clear()
                with cards:
                    if not things:
                        ui.label("Nothing runs. Start a program, pool or trainer, and it appears here by itself.")
                    for seen in things:
                        _card(seen, visit)

            refresh()
            visit.every(refresh)


def _card(seen: Seen, visit: Visit) -> None:
    view = seen.view
    state = "ended" if seen.gone and not view.has_ended else view.state
    with ui.card().classes("w-full panel q-pa-sm").props("flat"):
        with ui.row().classes("items-center w-full"):
            ui.icon("circle", size="10px").style(f"color:{state_color(state, visit.style)}")
            ui.link(view.name, f"/now/{view.id}").classes("text-bold")
            ui.label(f"{view.kind} · {state} · {shown_duration(max(0.0, view.at - view.started))}").classes("muted")
            ui.label(counted(len(view.processes), "process", "es")).classes("muted")
            if seen.problem:
                ui.label(seen.problem).style(f"color:{visit.style.bad}")
        if view.last_failure:
            ui.label(view.last_failure).classes("mono").style(f"color:{visit.style.bad}")
