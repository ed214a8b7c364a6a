"""Looks at what this process runs, as another terminal does."""

from __future__ import annotations

import os
import time

from ropewalk import settings
from ropewalk.control.launchers import find_launchers, usual_parents
from ropewalk.control.server import Act, ActionDone, Look, ViewIs
from ropewalk.control.view import Kind, View


def look_at(kind: Kind, panels: dict[str, int] | None = None) -> View:
    """The view of the only thing of a kind that this process has announced."""
    (view,) = looks(kind, panels)
    return view


def looks(kind: Kind, panels: dict[str, int] | None = None) -> list[View]:
    """The views of all things of a kind that this process has announced."""
    views: list[View] = []
    for launcher in find_launchers(usual_parents(settings.current().run_folder)):
        if launcher.pid == os.getpid() and launcher.kind == kind:
            with launcher.connect() as conversation:
                views.append(conversation.ask(Look(panels or {}), ViewIs).view)
    return views


def ask_for(kind: Kind, action: str, process: str = "") -> str:
    """Ask the first thing of a kind for an action; the answer."""
    for launcher in find_launchers(usual_parents(settings.current().run_folder)):
        if launcher.pid == os.getpid() and launcher.kind == kind:
            with launcher.connect() as conversation:
                return conversation.ask(Act(action, process), ActionDone).text
    raise AssertionError(f"no {kind} is announced")


def within(seconds: float, condition: object) -> bool:
    """Whether a condition comes true in time."""
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False
