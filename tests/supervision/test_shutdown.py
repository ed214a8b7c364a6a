"""The ladder of a shutdown, by comparing lists of instructions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.supervision.shutdown import Abandon, AskToEnd, Graces, Instruction, Kill, Rung, Shutdown, Terminate

GRACES = Graces(ask_s=5, terminate_s=2, kill_s=3)


def test_those_who_go_when_asked_are_left_in_peace() -> None:
    shutdown = Shutdown(["a", "b"], GRACES)
    assert shutdown.next_due is None
    assert shutdown.begin(100) == [AskToEnd(("a", "b"))]
    shutdown.exited("a")
    assert shutdown.tick(104) == []
    shutdown.exited("b")
    assert shutdown.done and shutdown.next_due is None
    assert shutdown.tick(200) == []


def test_those_who_stay_meet_sigterm_and_then_sigkill() -> None:
    shutdown = Shutdown(["a", "b", "c"], GRACES)
    said: list[tuple[float, list[Instruction]]] = [(0, shutdown.begin(0))]
    for now in (4.9, 5.0, 6.9, 7.0):
        if now == 6.9:
            shutdown.exited("b")
        said.append((now, shutdown.tick(now)))
    assert said == [
        (0, [AskToEnd(("a", "b", "c"))]),
        (4.9, []),
        (5.0, [Terminate(("a", "b", "c"))]),
        (6.9, []),
        (7.0, [Kill(("a", "c"))]),
    ]
    assert shutdown.next_due == 10.0


def test_what_not_even_sigkill_ends_is_abandoned_and_named() -> None:
    """A process that hangs in the kernel (a dead network disk) must not make `close` hang as well."""
    shutdown = Shutdown(["a", "b"], GRACES)
    shutdown.begin(0, at=Rung.KILL)
    shutdown.exited("a")
    assert shutdown.tick(3) == [Abandon(("b",))]
    assert shutdown.done and shutdown.left == ("b",)


def test_a_shutdown_may_begin_lower_on_the_ladder() -> None:
    assert Shutdown(["a"], GRACES).begin(0, at=Rung.TERMINATE) == [Terminate(("a",))]
    assert Shutdown(["a"], GRACES).begin(0, at=Rung.KILL) == [Kill(("a",))]
    for wrong in (Rung.RUNNING, Rung.DONE):
        with pytest.raises(ValueError, match="ASK, TERMINATE or KILL"):
            Shutdown(["a"], GRACES).begin(0, at=wrong)


def test_beginning_again_never_goes_back() -> None:
    shutdown = Shutdown(["a"], GRACES)
    assert shutdown.begin(0, at=Rung.TERMINATE) == [Terminate(("a",))]
    assert shutdown.begin(1) == []
    assert shutdown.begin(1, at=Rung.TERMINATE) == []
    assert shutdown.next_due == 2
    assert shutdown.begin(1, at=Rung.KILL) == [Kill(("a",))]


def test_somebody_who_insists_skips_the_waiting() -> None:
    shutdown = Shutdown(["a"], GRACES)
    shutdown.begin(0)
    assert [shutdown.hurry(now) for now in (1, 2, 3)] == [[Terminate(("a",))], [Kill(("a",))], []]
    assert shutdown.next_due == 5


def test_an_observer_that_was_stopped_gives_every_rung_its_time() -> None:
    shutdown = Shutdown(["a"], GRACES)
    shutdown.begin(0)
    assert shutdown.tick(1000) == [Terminate(("a",))]
    assert shutdown.tick(1000) == []
    assert shutdown.tick(1002) == [Kill(("a",))]


def test_nobody_to_end_is_done_at_once() -> None:
    shutdown = Shutdown([], GRACES)
    assert shutdown.begin(0) == [] and shutdown.done


def test_all_gone_before_the_shutdown_is_done_at_once() -> None:
    shutdown = Shutdown(["a"], GRACES)
    shutdown.exited("a")
    shutdown.exited("stranger")
    assert not shutdown.done
    assert shutdown.begin(0) == [] and shutdown.done


@pytest.mark.parametrize("field", ["ask_s", "terminate_s", "kill_s"])
@pytest.mark.parametrize("value", [-1, float("nan")])
def test_a_negative_grace_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Graces(**{field: value})


def test_without_a_grace_the_next_rung_is_due_at_once() -> None:
    shutdown = Shutdown(["a"], Graces(ask_s=0, terminate_s=0, kill_s=0))
    assert shutdown.begin(5) == [AskToEnd(("a",))]
    assert [shutdown.tick(5) for _ in range(3)] == [[Terminate(("a",))], [Kill(("a",))], [Abandon(("a",))]]


@given(
    names=st.lists(st.sampled_from("abcdef"), unique=True),
    events=st.lists(st.sampled_from(["wait", "look", "insist", "exit"]), max_size=40),
)
def test_every_shutdown_ends_and_never_signals_the_dead(names: list[str], events: list[str]) -> None:
    shutdown, now, alive = Shutdown(names, GRACES), 0.0, list(names)
    said = shutdown.begin(now)
    for event in [*events, *["wait"] * 3]:  # three graces end any shutdown, whatever came before
        match event:
            case "wait":
                now = shutdown.next_due if shutdown.next_due is not None else now + 1
                said = shutdown.tick(now)
            case "look":
                said = shutdown.tick(now)
            case "insist":
                said = shutdown.hurry(now)
            case _ if alive:
                shutdown.exited(alive.pop(0))
                said = []
            case _:
                said = []
        for instruction in said:
            assert list(instruction.names) == alive
    assert shutdown.done
    assert list(shutdown.left) == alive
