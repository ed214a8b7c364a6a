"""What users may say about restarts, and what they are told when it makes no sense."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ropewalk.program.restart_rule import Restart, restart_rule
from ropewalk.supervision import restart


def test_nothing_means_never_and_a_word_means_its_policy() -> None:
    assert restart_rule(None).policy == "never"
    assert restart_rule("on_failure") == Restart("on_failure")
    assert restart_rule("always") == Restart(policy="always")
    rule = Restart(max_restarts=2, strategy="together")
    assert restart_rule(rule) is rule


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"policy": "on-failure"}, "policy must be one of 'never', 'on_failure', 'always', not 'on-failure'; did you"),
        ({"policy": None}, "policy must be one of 'never', 'on_failure', 'always', not None"),
        ({"strategy": "gang"}, "strategy must be one of 'alone', 'together', not 'gang'"),
        ({"max_restarts": -1}, "max_restarts must be 0 or more, not -1"),
        ({"max_restarts": 1.5}, "max_restarts is of type float; give a whole number"),
        ({"max_restarts": True}, "max_restarts is of type bool; give a whole number"),
        ({"max_restarts": None}, "max_restarts is of type NoneType; give a whole number"),
        ({"jitter": None}, "jitter is of type NoneType; give a number"),
        ({"window_s": 0}, "window_s must be a number of seconds above 0, not 0"),
        ({"window_s": "60"}, "window_s is of type str; give a number"),
        ({"backoff_s": 5, "backoff_max_s": 1}, "in this order, not 5 and 1"),
        ({"jitter": 2}, "jitter must be between 0 and 1, not 2"),
    ],
)
def test_a_value_out_of_its_range_is_refused_with_rule_and_value(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        Restart(**wrong)


def test_a_misspelt_policy_is_answered_with_the_near_one() -> None:
    with pytest.raises(ValueError, match=r"restart must be one of .* not 'allways'; did you mean 'always'"):
        restart_rule("allways")


@pytest.mark.parametrize("wrong", [True, 5, {"max_restarts": 5}])
def test_another_kind_of_value_is_answered_with_what_was_meant(wrong: Any) -> None:
    with pytest.raises(TypeError, match="max_restarts="):
        restart_rule(wrong)


def test_its_numbers_decide_when_a_failure_is_final() -> None:
    intensity = Restart(max_restarts=1, window_s=10).intensity()
    assert intensity.failed(0.0, "first") == restart.StartAgain(0.0)
    final = intensity.failed(1.0, "second")
    assert isinstance(final, restart.GiveUp) and final.deaths == ("first", "second")


def test_a_rule_that_nobody_has_chosen_is_the_policy_that_nobody_has_chosen() -> None:
    assert Restart().intensity().policy == restart.RestartPolicy()
    policy = Restart("always", 3, 5.0, 0.5, 2.0, 0.25).intensity().policy
    assert policy == restart.RestartPolicy(3, 5.0, 0.5, 2.0, 0.25)


def test_the_seed_of_its_count_is_zero_by_default() -> None:
    def waits(intensity: restart.RestartIntensity) -> list[object]:
        return [intensity.failed(float(now)) for now in range(3)]

    rule = Restart(backoff_s=1.0)
    assert waits(rule.intensity()) == waits(rule.intensity(0)) != waits(rule.intensity(1))
