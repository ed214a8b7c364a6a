"""The calls of a process that wait, and what an interrupt makes of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.sharing import lock_rings, permit_ring
from ropewalk.sharing.arena import DepotArena
from ropewalk.sharing.depot_client import DepotClient
from ropewalk.sharing.host_calls import HostCalls
from ropewalk.sharing.record_words import FIRST, SECOND, THIRD
from ropewalk.sharing.shared_record import SharedRecord
from ropewalk.sharing.states.recorded import LOCK, SEMAPHORE
from tests.sharing.steps import interrupted_at


def interrupt() -> None:
    raise KeyboardInterrupt


def calls_of(arena: DepotArena, kind: int) -> HostCalls:
    """Return the calls of a process, seat 7, to a new object."""
    slot = arena.take_record()
    SharedRecord(arena, slot).begin(1, kind, -1, (0, 0, 0))
    arena.free_record(slot)  # for the next one
    link: Any = SimpleNamespace(closed="")
    return HostCalls(DepotClient(arena, 7, "it", link), slot, 0, lambda: None)


def lost(_calls: HostCalls) -> Exception:
    return AssertionError("the depot is there")


# A thread's next wait is made by the same object as its last one, which still said that it had got what it waited for
# when Ctrl-C came at the very first moment: that was given back, although it was somebody else's.


def test_an_interrupt_before_a_call_waits_gives_back_no_permit(
    arena: DepotArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = calls_of(arena, SEMAPHORE)
    monkeypatch.setattr(calls._client.alarm, "sleep_at", lambda _berth: permit_ring.grant(calls.record))
    assert calls.wait_for_permit(None, lost)
    with pytest.raises(KeyboardInterrupt):
        interrupted_at([permit_ring], 1, lambda: calls.wait_for_permit(None, lost), interrupt)
    assert calls.record.look(lambda states: states.resting) == (0, 0, 0)


def test_an_interrupt_before_a_call_waits_leaves_the_lock_to_its_owner(
    arena: DepotArena, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = calls_of(arena, LOCK)

    def wait() -> object:
        calls.words[FIRST], calls.words[SECOND], calls.words[THIRD] = 2, 22, 1  # another process has it
        return calls.wait_for_lock(False, None, lost)

    monkeypatch.setattr(calls._client.alarm, "sleep_at", lambda _berth: lock_rings.release(calls.record, 2, 22, False))
    assert wait()
    with pytest.raises(KeyboardInterrupt):
        interrupted_at([lock_rings], 1, wait, interrupt)
    assert calls.record.look(lambda states: states.resting) == (2, 22, 1)
