"""When a process tells its launcher that calls are held up."""

from __future__ import annotations

from ropewalk.calls.waits import LaneWaits, RunningCall, WaitingCall
from ropewalk.program.held_up import HeldUp

RUNNING = RunningCall(1, "a.step", [(0, 1)], "unix:/b", 7)


def lane(*waiting: int, limit: int = 1) -> LaneWaits:
    return LaneWaits(1, limit, [RUNNING], [WaitingCall(key, f"a.call{key}", (9, key)) for key in waiting])


def test_what_waits_for_a_while_for_what_waits_itself_is_told_again_and_again() -> None:
    held = HeldUp()
    assert not held.look([lane(2)], 0.0) and not held.look([lane(2)], 0.2)
    assert held.look([lane(2)], 0.3) and not held.look([lane(2)], 0.4)
    assert held.look([lane(2)], 0.8)


def test_one_call_after_the_other_is_not_held_up() -> None:
    held = HeldUp()
    assert not any(held.look([lane(key)], key / 10) for key in range(20))


def test_where_nobody_waits_or_more_may_run_nothing_is_held_up() -> None:
    held = HeldUp()
    assert not any(held.look([lane(), lane(2, limit=2)], now / 10) for now in range(20))


def test_it_says_how_long_each_call_has_waited() -> None:
    held = HeldUp()
    held.look([lane(2)], 0.0)
    held.look([lane(2, 3)], 0.5)
    (timed,) = held.timed([lane(2, 3, 4)], 1.0)
    assert [call.waited_s for call in timed.waiting] == [1.0, 0.5, 0.0]
