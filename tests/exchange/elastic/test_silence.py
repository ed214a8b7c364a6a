from __future__ import annotations

import pytest

from ropewalk.exchange.elastic.silence import Silence


def test_nobody_is_asked_while_steps_are_done() -> None:
    silence = Silence(quiet_s=1.0, silent_s=3.0)
    silence.went_on(10.0)
    assert silence.to_ask(["a"], 10.9) == []
    assert silence.to_ask(["a"], 11.0) == ["a"]


def test_who_does_not_answer_counts_as_dead() -> None:
    silence = Silence(quiet_s=1.0, silent_s=3.0)
    silence.went_on(0.0)
    assert silence.to_ask(["a", "b"], 1.0) == ["a", "b"]
    silence.answered("b", 1.1)
    assert silence.to_ask(["a", "b"], 1.2) == []  # a is asked already, b has just answered
    assert silence.to_ask(["a", "b"], 2.1) == ["b"]
    assert silence.overdue(3.9) == []
    assert silence.overdue(4.0) == ["a"]
    silence.forget("a")
    assert silence.overdue(4.0) == []


def test_before_the_first_step_time_counts_from_zero() -> None:
    silence = Silence(quiet_s=1.0, silent_s=3.0)
    assert [silence.to_ask(["a"], 0.9), silence.to_ask(["a"], 1.0)] == [[], ["a"]]


def test_a_worker_that_comes_again_under_a_name_has_not_answered_yet() -> None:
    silence = Silence(quiet_s=1.0, silent_s=3.0)
    silence.answered("a", 1.5)
    assert silence.to_ask(["a"], 2.0) == []
    silence.forget("a")
    assert silence.to_ask(["a"], 2.0) == ["a"]


@pytest.mark.parametrize(("quiet_s", "silent_s"), [(0.0, 1.0), (1.0, 0.0), (1.0, -0.5)])
def test_times_must_be_above_zero(quiet_s: float, silent_s: float) -> None:
    with pytest.raises(ValueError, match=f"above 0, not {quiet_s} and {silent_s}"):
        Silence(quiet_s, silent_s)
    Silence(0.5, 0.5)
