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


def test_times_must_be_above_zero() -> None:
    with pytest.raises(ValueError, match=r"above 0, not 0\.0 and 1\.0"):
        Silence(0.0, 1.0)
