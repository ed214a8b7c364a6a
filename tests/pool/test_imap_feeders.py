"""The threads that read the iterables of `imap`."""

from __future__ import annotations

import sys
import threading
from typing import Any

import pytest

from ropewalk.pool.imap_feeders import ImapFeeders


class Nothing:
    """In the place of what feeders pass items on to."""

    most_workers = 1
    num_closed = 0
    broken = None

    def package(self, *_: object) -> Nothing:
        return self

    def submit(self, *_: object) -> None: ...

    def close(self) -> None:
        self.num_closed += 1

    def call_soon(self, _: object) -> None: ...


def test_feeders_may_end_while_others_look_at_them() -> None:
    """They end in their own threads, so `close` of a pool looks at a table that changes."""
    before = sys.getswitchinterval()
    nothing: Any = Nothing()
    feeders = ImapFeeders("pool", nothing, nothing, nothing)
    ended = threading.Semaphore(0)
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(40):
            for _ in range(20):
                feeders.start(abs, [1, 2], 1, None, ended.release, ordered=True)
            while feeders.are_feeding:
                feeders.drop_all()
            feeders.finish()
    finally:
        sys.setswitchinterval(before)
    for _ in range(800):
        assert ended.acquire(timeout=120)
    assert not feeders._feeding  # pyright: ignore[reportPrivateUsage]


def test_a_feeder_that_cannot_start_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_more_threads(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    nothing: Any = Nothing()
    feeders = ImapFeeders("pool", nothing, nothing, nothing)
    monkeypatch.setattr(threading.Thread, "start", no_more_threads)
    with pytest.raises(RuntimeError, match="new thread"):
        feeders.start(abs, [1], 1, None, lambda: None, ordered=True)
    feeders.finish()
    assert nothing.num_closed == 1, "the pool keeps its function no longer"
    assert not feeders.are_feeding
