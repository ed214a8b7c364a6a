"""What messages say of names that do not exist."""

from __future__ import annotations

import pytest

from ropewalk.near_names import check_choice, did_you_mean, instead_of, near_names

KNOWN = ["learning_rate", "batch", "beta"]


def test_the_closest_name_is_shown_and_none_if_none_is_close() -> None:
    assert did_you_mean("lerning_rate", KNOWN) == "; did you mean 'learning_rate'?"
    assert did_you_mean("lerning_rate", KNOWN, quoted=False) == "; did you mean learning_rate?"
    assert did_you_mean("x", KNOWN) == ""
    assert near_names("bata", KNOWN, most=2) == ["beta", "batch"]


def test_all_names_are_listed_after_the_closest_one() -> None:
    assert instead_of("bacth", KNOWN) == "; did you mean 'batch'? There are learning_rate, batch, beta"
    assert instead_of("x", iter(KNOWN), "it has") == "; it has learning_rate, batch, beta"
    assert instead_of("x", []) == "; there are none"
    assert instead_of("x", map(str, range(100))).endswith(", 28, 29 and 70 more")


def test_a_value_that_is_no_choice_is_refused_with_the_choices_and_the_closest_one() -> None:
    check_choice("policy", "never", ["never", "on_failure"])
    with pytest.raises(ValueError, match=r"^policy must be one of 'never', 'on_failure', not 'On-fail'; did you mean "):
        check_choice("policy", "On-fail", ["never", "on_failure"])
    with pytest.raises(KeyError, match=r"'a', not 7"):
        check_choice("letter", 7, ["a"], KeyError)
