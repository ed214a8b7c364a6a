"""The future of a call, as a notebook shows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from ropewalk.calls.call_future import CallFuture


def future_of(method: str) -> CallFuture:
    replica: Any = SimpleNamespace(name="replay")
    request: Any = SimpleNamespace(facts=SimpleNamespace(name=method), over=lambda: None)
    return CallFuture(replica, request)


def test_a_notebook_shows_which_call_runs_and_how_it_ended() -> None:
    future = future_of("<sample>")
    assert "replay.&lt;sample&gt;" in future._repr_html_() and "running" in future._repr_html_()
    future.finish(5)
    assert "done" in future._repr_html_()
    failed = future_of("add")
    failed.finish(None, ValueError("<b>"))
    assert "failed" in failed._repr_html_() and "&lt;b&gt;" in failed._repr_html_()
