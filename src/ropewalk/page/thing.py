"""The page of one thing that runs: its header, its pictures, its processes and its events."""

from __future__ import annotations

from nicegui import ui
from starlette.requests import Request

from ropewalk.page.actions import Actor
from ropewalk.page.chart import Chart
from ropewalk.page.frame import Visit, page_frame, panel
from ropewalk.page.picture import Picture
from ropewalk.page.pictures import pictures_of
from ropewalk.page.watcher import Seen, Watcher


def add_thing_page(watcher: Watcher, actor: Actor | None) -> None:
    """Serve `/now/ID`.

    Args:
        watcher: knows what runs.
        actor: acts on it; None: nothing can be done here.
    """

    @ui.page("/now/{id}")
    def thing(request: Request, id: str) -> None:
        seen = watcher.seen(id)
        with page_frame(request, seen.view.name if seen else id) as visit:
            panels = frozenset(seen.view.offers) if seen else frozenset[str]()
            watcher.want(visit.client, id, panels)
            visit.when_gone(lambda: watcher.unwant(visit.client))
            if seen is None:
                ui.label("This is not running any more, or never did; its run may be among the runs.")
                return
            _pictures(seen, visit)


def _pictures(seen: Seen, visit: Visit) -> None:
    with ui.row().classes("w-full"):
        for picture in pictures_of(seen.view.offers):
            with panel(picture.title, help=picture.help):
                _chart(seen, picture, visit)


def _chart(seen: Seen, picture: Picture, visit: Visit) -> None:
    chart = Chart(f"{seen.view.name} {picture.title}", picture.height)
    last: list[object] = [None]

    def refresh() -> None:
        data = seen.panels.get(picture.panel)
        if data is not None and data is not last[0]:
            last[0] = data
            chart.show(picture.option(data, visit.style))

    refresh()
    visit.every(refresh)
