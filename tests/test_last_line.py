"""The line that says what happened."""

from __future__ import annotations

import pytest

from ropewalk.last_line import LEARN_MORE, last_line


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        (" \n\n", ""),
        ("one", "one"),
        ("Traceback:\n  at f\nValueError: no\n\n  \n", "ValueError: no"),
        (f"at f\nTaskTimeout: no\n{LEARN_MORE}TaskTimeout\n", "TaskTimeout: no"),
    ],
)
def test_the_last_line_that_is_not_blank(text: str, expected: str) -> None:
    assert last_line(text) == expected
