"""Things as a watcher has seen them, for tests of what the page shows of them."""

from __future__ import annotations

from typing import Any

from ropewalk.control.view import ProcessView, View
from ropewalk.page.watcher import LookResult, Seen, Watcher


def view(*processes: ProcessView, at: float = 100.0, **more: Any) -> View:
    fields: dict[str, Any] = {"kind": "pool", "name": "es", "id": "es", "pid": 7, "state": "running", "started": 0.0}
    fields.update(at=at, processes=processes, **more)
    return View(**fields)


def seen_of(*views: View) -> Seen:
    """What a watcher knows after it has seen views of one thing, one after the other."""

    class Views:
        looks: list[LookResult]

        def look(self, panels: object) -> list[LookResult]:
            return self.looks

    source = Views()
    watcher = Watcher(source)
    for one in views:
        source.looks = [LookResult(one.id, one)]
        watcher.look()
    seen = watcher.seen(views[-1].id)
    assert seen
    return seen
