from __future__ import annotations

from ropewalk.control.view import EventView
from ropewalk.page.event_panel import new_events

EVENTS = tuple(EventView(at=float(at), text=f"event {at}") for at in range(5))


def test_events_after_the_last_one_are_new():
    assert new_events(EVENTS[:3], EVENTS) == EVENTS[3:]
    assert new_events(EVENTS, EVENTS) == ()


def test_all_events_are_new_at_first():
    assert new_events((), EVENTS) == EVENTS


def test_events_that_were_dropped_at_the_front_are_not_missed():
    assert new_events(EVENTS[:3], EVENTS[2:]) == EVENTS[3:]
    assert new_events(EVENTS[:1], EVENTS[2:]) == EVENTS[2:]


def test_events_that_are_kept_beside_the_last_one_are_not_new_when_it_is_dropped():
    deaths = (EventView(at=1.0, kind="death"), EventView(at=5.0, kind="death"))
    last = EventView(at=3.0, kind="replacement")
    assert new_events((deaths[0], last), deaths) == deaths[1:]
