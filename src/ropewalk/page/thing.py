"""The page of one thing that runs: its header, its processes, its pictures and its events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nicegui import ui
from nicegui.events import GenericEventArguments
from starlette.requests import Request

from ropewalk.control.parts import pool_of
from ropewalk.escaping import escaped
from ropewalk.page.actions import ActionOutcome, Actions, Actor
from ropewalk.page.browser import add_now_head, call_browser
from ropewalk.page.call_rates import CallRates
from ropewalk.page.chart import Chart
from ropewalk.page.event_panel import EventPanel
from ropewalk.page.frame import Panel, Visit, page_frame
from ropewalk.page.picture import Picture
from ropewalk.page.pictures import pictures_of
from ropewalk.page.pictures.graph import graph_height
from ropewalk.page.process_dialog import ProcessDialog
from ropewalk.page.process_panel import ProcessPanel
from ropewalk.page.relatives import RelativeLinks, Relatives, relatives
from ropewalk.page.stream_panel import StreamPanel
from ropewalk.page.thing_header import ThingHeader
from ropewalk.page.watcher import Seen, Watcher

_WITH_PROCESSES = ("program", "pool", "trainer")
"""Kinds that say that they have no processes yet."""
_LOOKS_BEFORE_GONE = 3
"""Looks without a thing after which the page says that it is not there."""


def add_thing_page(watcher: Watcher, actor: Actor | None) -> None:
    """Serve `/now/ID`.

    Args:
        watcher: knows what runs.
        actor: acts on it; None: nothing can be done here.
    """
    actions = Actions(actor) if actor else None

    @ui.page("/now/{id}")
    def thing(request: Request, id: str) -> None:
        seen = watcher.seen(id)
        with page_frame(request, escaped(seen.view.name) if seen else id) as visit:
            add_now_head(visit.style)
            visit.when_gone(lambda: watcher.unwant(visit.client))
            page = _ThingPage(watcher, actions, visit, id, request.query_params)
            page.show()
            visit.every(page.refresh)


class _ThingPage:
    """The page in one tab: waits until the thing is seen, and then shows it."""

    def __init__(
        self, watcher: Watcher, actions: Actions | None, visit: Visit, id: str, given: Mapping[str, str]
    ) -> None:
        self._watcher = watcher
        self._visit = visit
        self._id = id
        self._actions = actions
        self._given = given
        self._shown: tuple[object, ...] | None = None
        self._parts: _ThingParts | None = None
        self._first_look = watcher.num_looks
        with ui.row().classes("items-baseline muted").style("gap: 5px") as self._waiting:
            self._words = ui.label("Looking for it…")
            self._elsewhere = ui.link("Its run may be among the runs.", "/runs")
            self._elsewhere.set_visibility(False)
        self._content = ui.column().classes("w-full").style("gap: 12px")
        visit.when_gone(self._close)
        ui.on("rw_process", self._open)

    async def refresh(self) -> None:
        """Show what is known now, and what was written since to the log that is open."""
        self.show()
        if self._parts:
            await self._parts.dialog.follow()

    def show(self) -> None:
        """Show what is known now."""
        seen = self._watcher.seen(self._id)
        self._watcher.want(self._visit.client, self._id if seen else "", frozenset(seen.view.offers if seen else ()))
        if seen is None:
            if self._watcher.num_looks - self._first_look >= _LOOKS_BEFORE_GONE and self._parts is None:
                self._words.set_text("This does not run any more, or never did.")
                self._elsewhere.set_visibility(True)
            return
        things = {thing.view.id: thing for thing in self._watcher.things()}
        views = [thing.view for thing in things.values()]
        pool_view = pool_of(seen.view, views)
        pool = things[pool_view.id] if pool_view else None
        shown = seen.view.offers, pool and pool.view.id
        if shown != self._shown:
            self._shown = shown
            self._close()
            self._content.clear()
            self._waiting.set_visibility(False)
            with self._content:
                self._parts = _ThingParts(seen, pool, self._actions, self._visit, self._given)
        if self._parts:
            self._parts.show(seen, pool, self._watcher.age_s(seen), relatives(seen.view, views))

    async def _open(self, event: GenericEventArguments) -> None:
        if self._parts:
            await self._parts.dialog.open(str(event.args))

    def _close(self) -> None:
        if self._parts:
            self._parts.dialog.close()


class _ThingParts:
    """Everything on the page of a thing with certain panels, whose processes may be those of its pool."""

    def __init__(
        self, seen: Seen, pool: Seen | None, actions: Actions | None, visit: Visit, given: Mapping[str, str]
    ) -> None:
        self._seen = seen
        self._actions = actions
        self._visit = visit
        may_act = visit.may_act and actions is not None
        ui.page_title(f"{escaped(seen.view.name)} · Ropewalk")
        self._header = ThingHeader(seen.view.actions if may_act else (), self._act)
        self._relatives = RelativeLinks()
        with ui.element("div").classes("w-full") as self._place_of_processes:
            self._processes = ProcessPanel(pool or seen, given.get("processes", ""), is_pool=pool is not None)
        self.dialog = ProcessDialog(pool or seen, actions, may_act=may_act)
        self._charts: list[_LiveChart] = []
        self._stream: StreamPanel | None = None
        with ui.element("div").classes("rw-pictures"):
            pictures = pictures_of(seen.view.offers)
            halves = [picture for picture in pictures if not picture.wide]
            alone = halves[-1:] if len(halves) % 2 else []
            for picture in pictures:
                with ui.element("div").classes("rw-wide" if picture.wide or picture in alone else ""):
                    if picture.panel == "stream":
                        self._stream = StreamPanel(seen, visit)
                    else:
                        with Panel(picture.title, help=picture.help):
                            self._charts.append(_LiveChart(seen, picture, visit))
        self._events = EventPanel(seen, visit.style, given.get("events", ""))
        ui.timer(0.5, lambda: call_browser("openHash"), once=True)

    def show(self, seen: Seen, pool: Seen | None, age_s: float, related: Relatives) -> None:
        """Show what is known now."""
        self._seen = seen
        self._header.show(seen, age_s, pool)
        self._relatives.show(related)
        self._processes.show(pool or seen)
        may_have = bool(seen.view.processes) or pool is not None or seen.view.kind in _WITH_PROCESSES
        self._place_of_processes.set_visibility(may_have)
        for chart in self._charts:
            chart.show(seen)
        if self._stream:
            self._stream.show(seen)
        self._events.show(seen)
        self.dialog.show(pool or seen)

    async def _act(self, action: str) -> ActionOutcome:
        actions, view = self._actions, self._seen.view
        if actions is None or not self._visit.may_act:
            return ActionOutcome(False, "Only an owner may do this; this tab was opened with a reader's token.")
        actor = actions.actor

        def call() -> str:
            return actor.stop(view.id) if action == "stop" else actor.act(view.id, action)

        return await actions.do(f"{action} {view.name}", call)


class _LiveChart:
    """A picture of a panel's data, drawn again when the data changes."""

    def __init__(self, seen: Seen, picture: Picture, visit: Visit) -> None:
        self._picture = picture
        self._visit = visit
        self._last: Mapping[str, Any] | None = None
        self._rates = CallRates() if picture.panel == "graph" else None
        self._chart = Chart(f"{seen.view.name} {picture.title}", picture.height, nothing=picture.nothing)

    def show(self, seen: Seen) -> None:
        """Draw the data, if it is new."""
        data = seen.panels.get(self._picture.panel)
        if data is None or (data is self._last and self._rates is None):  # a rate falls while nothing is new
            return
        rates = self._rates.add(data, seen.view.at) if self._rates else None
        if not self._chart.is_due:
            return
        self._last = data
        if rates:
            self._chart.set_height(graph_height(rates))
        self._chart.show(self._picture.option(rates or data, self._visit.style))
