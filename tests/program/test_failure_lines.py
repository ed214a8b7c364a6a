"""The cause of an end, in words that follow the name of what has ended."""

from __future__ import annotations

import pytest

from ropewalk.program.failure_lines import cause
from ropewalk.program.messages import UnitEnded, UnitName
from ropewalk.transport.failures import Failure, failure_of


def ended(error: BaseException) -> UnitEnded:
    failure: Failure = failure_of(error)
    return UnitEnded(UnitName("actor", 0, 0), "actor", failure)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no data"), "raised ValueError: no data"),
        (KeyboardInterrupt(), "raised KeyboardInterrupt"),
        (SystemExit(3), "exited with code 3"),
        (SystemExit("no data"), "raised SystemExit: no data"),
    ],
)
def test_an_exception_is_the_cause_whatever_else_is_known(error: BaseException, words: str) -> None:
    assert cause(ended(error), None, "its host is gone") == words


def test_without_an_exception_the_problem_is_the_cause() -> None:
    assert cause(None, None, "its host is gone") == "its host is gone"
    assert cause(None, None, "") == "ended"
