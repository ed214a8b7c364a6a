"""A source of views that a test makes, in place of launchers."""

from __future__ import annotations

from collections.abc import Mapping

from ropewalk.control.view import ProcessView, View
from ropewalk.page.watcher import LookResult, Watcher

START = 1_700_000_000.0


class PretendSource:
    """Shows the views that a test sets; remembers what was asked for."""

    def __init__(self, *views: View) -> None:
        self.views = list(views)
        self.problems: dict[str, str] = {}
        self.asked: list[tuple[str, str, str]] = []

    def look(self, panels: Mapping[str, dict[str, int]]) -> list[LookResult]:
        looks = [LookResult(view.id, view) for view in self.views if view.id not in self.problems]
        return looks + [LookResult(id, None, problem) for id, problem in self.problems.items()]

    def act(self, id: str, action: str, process: str) -> str:
        self.asked.append((id, action, process))
        return "it is killed"


def process(name: str, **fields: object) -> ProcessView:
    values = {"kind": "worker", "host": "this host", "pid": 7, "state": "running", **fields}
    return ProcessView(name=name, **values)  # pyright: ignore[reportArgumentType]


def view(id: str = "a", *processes: ProcessView, at: float = START + 60, **fields: object) -> View:
    values = {"kind": "pool", "name": f"pool-{id}", "pid": 12, "state": "running", "started": START, **fields}
    values = {"actions": ("stop",), "process_actions": ("kill",), **values}
    return View(id=id, at=at, processes=processes, **values)  # pyright: ignore[reportArgumentType]


def watched(source: PretendSource, *later: View) -> Watcher:
    """A watcher that has looked once, and again after the views were replaced by later ones."""
    watcher = Watcher(source)
    watcher.look()
    if later:
        source.views = list(later)
        watcher.look()
    return watcher
