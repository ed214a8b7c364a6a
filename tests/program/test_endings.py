"""The order in which units are ended: asked, terminated, killed; services after those that call them."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from ropewalk.program.endings import GRACE_S, Endings
from ropewalk.program.instructions import EndReplica
from ropewalk.program.messages import AskStatus, StopUnit, UnitName
from ropewalk.program.units import UnitReplica, Units
from tests.program.recording import RecordingHosting, name_of, service, worker

STORE, ACTOR = name_of("store"), name_of("actor")


class Ending:
    """A program of one service and one worker, both of which live."""

    def __init__(self, *, threads: bool = False) -> None:
        self.units = Units([service("store"), worker("actor")])
        self.abandoned: list[tuple[UnitName, str]] = []
        self.hosting = RecordingHosting(shares_host=threads)
        self.overdue: list[tuple[UnitName, float]] = []
        self.endings = Endings(
            self.units, lambda unit, grace_s: self.overdue.append((unit.name, grace_s)), self._abandoned
        )
        self.endings.begin(self.hosting)
        self.time = self.hosting.time
        for name in (STORE, ACTOR):
            self.units.begin(name)

    def _abandoned(self, unit: UnitReplica, why: str) -> None:
        self.abandoned.append((unit.name, why))
        self.units.end(unit)

    def end(self, *names: UnitName, of_program: bool = True, patient: bool = True) -> None:
        for name in names:
            end = EndReplica(name.unit, name.replica, name.generation, "over")
            self.endings.end(end, of_program=of_program, patient=patient)
        self.endings.settle()

    def dies(self, name: UnitName) -> None:
        unit = self.units.find(name)
        assert unit
        self.units.end(unit)
        if unit.timer:
            unit.timer.cancel()
        self.endings.settle()

    @property
    def asked(self) -> list[tuple[UnitName, float]]:
        return [(message.name, message.grace_s) for message in self.hosting.heard(StopUnit)]


@pytest.fixture
def ending() -> Ending:
    return Ending()


def test_services_are_asked_to_end_when_the_last_worker_has_ended(ending: Ending) -> None:
    ending.end(STORE, ACTOR)
    assert ending.asked == [(ACTOR, GRACE_S)]
    ending.time.advance(1)
    ending.dies(ACTOR)
    assert ending.asked == [(ACTOR, GRACE_S), (STORE, GRACE_S)]
    ending.dies(STORE)
    ending.time.advance(100)
    assert ending.hosting.signals == [] and ending.time.num_planned == 0


def test_services_are_asked_after_the_grace_though_a_worker_is_still_there(ending: Ending) -> None:
    ending.end(STORE, ACTOR)
    ending.time.advance(GRACE_S)
    assert ending.asked == [(ACTOR, GRACE_S), (STORE, GRACE_S)]
    ending.time.advance(0)
    assert ending.hosting.signals == [(ACTOR, signal.SIGTERM)]


def test_what_does_not_end_is_terminated_after_its_grace_and_killed_a_second_later(ending: Ending) -> None:
    ending.end(ACTOR)
    ending.time.advance(GRACE_S - 0.01)
    assert ending.hosting.signals == []
    ending.time.advance(0.01)
    assert ending.hosting.signals == [(ACTOR, signal.SIGTERM)]
    ending.time.advance(1)
    assert ending.hosting.signals == [(ACTOR, signal.SIGTERM), (ACTOR, signal.SIGKILL)]


def test_a_service_that_is_scaled_away_is_asked_at_once(ending: Ending) -> None:
    ending.end(STORE, of_program=False)
    assert ending.asked == [(STORE, GRACE_S)]


def test_what_is_started_again_gets_a_second_at_most(ending: Ending) -> None:
    ending.end(STORE, of_program=False, patient=False)
    assert ending.asked == [(STORE, 1.0)]
    ending.time.advance(1)
    assert ending.hosting.signals == [(STORE, signal.SIGTERM)]
    ending.endings.grace_s = 0.25
    ending.end(ACTOR, of_program=False, patient=False)
    assert ending.asked[-1] == (ACTOR, 0.25)


def test_without_a_grace_everything_is_asked_and_terminated_at_once(ending: Ending) -> None:
    ending.endings.grace_s = 0.0
    ending.end(STORE, ACTOR)
    assert ending.asked == [(STORE, 0.0), (ACTOR, 0.0)]
    ending.time.advance(0)
    assert ending.hosting.signals == [(STORE, signal.SIGTERM), (ACTOR, signal.SIGTERM)]


def test_only_the_start_that_is_meant_is_ended(ending: Ending) -> None:
    ending.dies(ACTOR)
    ending.units.begin(name_of("actor", 0, 1))
    ending.end(ACTOR)
    assert ending.asked == []


def test_a_service_that_died_while_it_was_held_is_not_asked(ending: Ending) -> None:
    ending.end(STORE, ACTOR)
    ending.dies(STORE)
    ending.dies(ACTOR)
    ending.time.advance(100)
    assert ending.asked == [(ACTOR, GRACE_S)] and ending.hosting.signals == []


def test_threads_that_do_not_end_are_abandoned(ending: Ending) -> None:
    ending = Ending(threads=True)
    ending.end(STORE, ACTOR)
    ending.time.advance(GRACE_S)
    assert ending.abandoned == [(ACTOR, "did not end when it was asked to, and a thread cannot be killed")]
    ending.time.advance(GRACE_S)
    assert [name for name, _ in ending.abandoned] == [ACTOR, STORE]


def test_hurry_shortens_what_was_asked_and_asks_what_was_held(ending: Ending) -> None:
    ending.end(STORE, ACTOR)
    ending.time.advance(1)
    ending.endings.hurry(0.5)
    assert ending.asked == [(ACTOR, GRACE_S), (STORE, 0.5)]
    ending.time.advance(0.5)
    assert sorted(ending.hosting.signals, key=str) == [(ACTOR, signal.SIGTERM), (STORE, signal.SIGTERM)]


def test_what_has_to_hurry_is_asked_what_it_is_doing_before_its_end(ending: Ending) -> None:
    # It was asked shortly before the end of the grace that it had at first, and was said not to answer.
    ending.end(ACTOR)
    ending.time.advance(1)
    ending.endings.hurry(0.5)
    ending.time.advance(0.4)
    assert [each.number for each in ending.hosting.heard(AskStatus, ACTOR)] == [0] and ending.hosting.signals == []


def test_hurry_never_puts_an_end_off(ending: Ending) -> None:
    # A second stop, with a grace a little shorter, began a new grace for what would have ended in a moment.
    ending.end(ACTOR)
    ending.time.advance(GRACE_S - 0.1)
    ending.endings.hurry(GRACE_S - 0.5)
    ending.time.advance(0.1)
    assert ending.hosting.signals == [(ACTOR, signal.SIGTERM)]
    ending.time.advance(0.5)
    ending.endings.hurry(2.0)
    ending.time.advance(0.5)
    assert [number for _, number in ending.hosting.signals] == [signal.SIGTERM, signal.SIGKILL]


def test_a_unit_that_ended_is_signalled_no_more_though_its_number_is_used_again(ending: Ending) -> None:
    signals: Any = ending.hosting.signals
    ending.end(ACTOR, of_program=False)
    ending.dies(ACTOR)
    ending.units.begin(name_of("actor", 0, 1))
    ending.time.advance(100)
    assert signals == []


def test_what_does_not_end_is_asked_what_it_is_doing_before_it_is_terminated(ending: Ending) -> None:
    ending.end(ACTOR)
    ending.time.advance(GRACE_S - 0.1)
    assert [name for name, message in ending.hosting.told if isinstance(message, AskStatus)] == [ACTOR]
    assert ending.overdue == []
    ending.time.advance(0.1)
    assert ending.overdue == [(ACTOR, GRACE_S)] and ending.hosting.signals == [(ACTOR, signal.SIGTERM)]


def test_what_ends_in_time_is_asked_nothing(ending: Ending) -> None:
    ending.end(ACTOR, of_program=False)
    ending.time.advance(1)
    ending.dies(ACTOR)
    ending.time.advance(GRACE_S)
    assert ending.hosting.heard(AskStatus) == [] and ending.overdue == []
