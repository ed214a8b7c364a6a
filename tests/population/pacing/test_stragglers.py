"""What a `StragglerPolicy` takes, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from ropewalk.population import GenerationMode, StragglerPolicy


def test_named_constructors_say_what_becomes_of_stragglers() -> None:
    assert StragglerPolicy() == StragglerPolicy.wait()
    assert StragglerPolicy.drop() == StragglerPolicy("drop", after=0.9, grace=0.25)
    assert StragglerPolicy.carry(0.5, grace=0.0) == StragglerPolicy("carry", 0.5, 0.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action": "leave"}, "action must be one of 'wait', 'drop', 'carry', not 'leave'"),
        ({"after": 0.0}, "after is a share of a generation, above 0 and at most 1, not 0.0"),
        ({"after": 1.5}, "after is .*, not 1.5"),
        ({"grace": -1.0}, "grace is 0 or more .*, not -1.0"),
        ({"grace": float("nan")}, "grace is 0 or more .*, not nan"),
    ],
)
def test_values_outside_of_their_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StragglerPolicy(**options)


def test_a_mode_takes_no_word_for_a_policy() -> None:
    with pytest.raises(TypeError, match=r"must be a StragglerPolicy, .*drop\(after=0.9\), not 'drop'"):
        GenerationMode("drop")  # type: ignore[arg-type]
    assert GenerationMode() == GenerationMode(StragglerPolicy.wait())
