"""What the end of a process does with its sessions."""

from __future__ import annotations

import signal

import pytest

from ropewalk.processes import open_sessions


class Interrupted:
    """A session whose end the user interrupts."""

    def __init__(self) -> None:
        self.is_killed = False
        self.at_interrupt: object = None

    def close(self) -> None:
        open_sessions.remove(self)
        raise KeyboardInterrupt

    def kill(self) -> None:
        self.is_killed = True
        self.at_interrupt = signal.getsignal(signal.SIGINT)

    def forget(self) -> None:
        pass

    def settle_records(self, timeout_s: float) -> bool:
        return timeout_s > 0


def test_an_interrupt_of_the_end_kills_what_it_waits_for_and_prints_no_traceback(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another Ctrl-C while a script ended printed "Exception ignored in atexit callback" and where it had waited.

    So did a third one.
    """
    before = signal.getsignal(signal.SIGINT)
    sessions = [Interrupted(), Interrupted()]
    monkeypatch.setattr(open_sessions, "_sessions", {id(session): session for session in sessions})
    monkeypatch.setattr(open_sessions, "_last_calls", [])
    try:
        open_sessions._end()
    finally:
        signal.signal(signal.SIGINT, before)
    assert all(session.is_killed and session.at_interrupt is signal.SIG_DFL for session in sessions)
