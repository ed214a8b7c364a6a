"""What `CallServer` does that no call shows: the numbers of its objects, and what follows where no thread starts."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest

from ropewalk.calls.directory import ReplicaLocation
from ropewalk.calls.incoming import Served
from ropewalk.calls.server import CallServer
from ropewalk.calls.threads import Threads
from tests.calls.ends import End
from tests.calls.objects import Target
from tests.patience import PATIENCE_S


def test_objects_that_are_numbered_at_the_same_time_have_different_numbers(end: End) -> None:
    """Another thread may ask between any two lines of `next_target`; here it does so before each of them."""
    server = end.server
    numbers: list[int] = []

    def interrupting(frame: FrameType, event: str, _: object) -> Any:
        if frame.f_code is not CallServer.next_target.__code__:
            return None
        if event == "line":
            numbers.append(server.next_target())  # nothing is traced while a tracer runs
        return interrupting

    before = sys.gettrace()
    sys.settrace(interrupting)
    try:
        mine = server.next_target()
    finally:
        sys.settrace(before)
    assert numbers and len({mine, *numbers}) == 1 + len(numbers)


def refuse(_threads: Threads, _call: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_call_for_which_no_thread_starts_fails_and_holds_up_no_other(
    end: End, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It kept its turn for ever, and every later call of its method waited for that.
    target = end.client("target", Target)
    with monkeypatch.context() as patch:
        patch.setattr(Threads, "run", refuse)
        for _ in range(5):  # of four that may run at a time
            with pytest.raises(RuntimeError, match="can't start new thread") as failed:
                target.open.future().result(PATIENCE_S)
            assert "target.open needs a thread" in str(failed.value.__notes__)
    target.open.future().result(PATIENCE_S)
    assert not served.running


def test_a_call_that_waits_for_a_thread_to_send_it_fails_where_none_starts(
    end: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was taken for one that is being sent, and no later one was sent, either.
    end.places.put("starting", ReplicaLocation("waiting"))
    target = end.client("starting", Target)
    with monkeypatch.context() as patch:
        patch.setattr(Threads, "run", refuse)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="can't start new thread"):
                target.read.future().result(PATIENCE_S)
