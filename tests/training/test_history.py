"""What happened in a training: events with times, and the time that was useful."""

from __future__ import annotations

import pytest

from ropewalk.training.history import TrainingHistory


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_starting_recovering_and_repeating_are_not_useful_time() -> None:
    clock = Clock()
    history = TrainingHistory(clock)
    assert history.goodput() is None
    history.step_done(sent_s=10.0, now_s=12.0, is_repeated=False)  # 10 s of starting
    history.step_done(sent_s=11.0, now_s=14.0, is_repeated=False)  # admitted while the first was under way
    history.step_done(sent_s=20.0, now_s=22.0, is_repeated=True)  # 6 s of recovering, and 2 s that are lost
    history.step_done(sent_s=20.0, now_s=24.0, is_repeated=False)
    clock.now += 24
    assert history.useful_s == 2 + 2 + 2 and history.num_repeated == 1
    assert history.goodput() == pytest.approx(6 / 24)
    history.ended = clock.now
    clock.now += 100
    assert history.goodput() == pytest.approx(6 / 24), "the end of a training does not make it worse"


def test_time_in_which_no_step_was_admitted_is_not_useful() -> None:
    clock = Clock()
    history = TrainingHistory(clock)
    history.step_done(sent_s=0.0, now_s=1.0, is_repeated=False)
    history.step_done(sent_s=8.0, now_s=9.0, is_repeated=False)
    clock.now += 10
    assert history.goodput() == pytest.approx(0.2)


def test_a_death_is_the_last_failure_and_an_event_of_its_process() -> None:
    history = TrainingHistory(Clock())
    history.note("plan", "2 stages")
    history.death("the process of stage 1 was lost: killed", "stages.1")
    assert [(one.at, one.kind, one.process) for one in history.events] == [
        (1000.0, "plan", ""),
        (1000.0, "death", "stages.1"),
    ]
    assert (history.num_deaths, history.last_failure) == (1, history.events[-1].text)
    history.failed(ValueError("too hot"))
    assert history.last_failure == "ValueError: too hot"


def test_the_last_thousand_events_are_kept() -> None:
    history = TrainingHistory(Clock())
    for number in range(1200):
        history.note("", str(number))
    assert [history.events[0].text, len(history.events)] == ["200", 1000]
