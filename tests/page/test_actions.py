from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from ropewalk.page.actions import ActionFailed, ActionOutcome, Actions


class Idle:
    """An actor that does nothing."""

    def log_files(self, id: str) -> dict[str, Path]:
        return {}

    def stacks(self, id: str, process: str = "") -> dict[str, str]:
        return {}

    def act(self, id: str, action: str, process: str = "") -> str:
        return ""

    def stop(self, id: str) -> str:
        return ""


def raising(error: Exception) -> str:
    raise error


def test_every_action_has_a_number_that_is_in_the_log(caplog: pytest.LogCaptureFixture):
    actions = Actions(Idle())
    with caplog.at_level(logging.INFO, "ropewalk.page"):
        first = asyncio.run(actions.do("kill w", lambda: "w was killed"))
        second = asyncio.run(actions.do("stop es", lambda: ""))
    assert first == ActionOutcome(True, "Action 1: w was killed")
    assert second == ActionOutcome(True, "Action 2: stop es")
    assert [record.getMessage() for record in caplog.records] == [
        "action 1: kill w", "Action 1: w was killed", "action 2: stop es", "Action 2: stop es",
    ]  # fmt: skip


def test_an_action_that_failed_says_why():
    outcome = asyncio.run(Actions(Idle()).do("kill w", lambda: raising(ActionFailed("it has ended"))))
    assert outcome == ActionOutcome(False, "Action 1: could not kill w: it has ended")


def test_an_error_that_nobody_expected_is_an_answer_too(caplog: pytest.LogCaptureFixture):
    outcome = asyncio.run(Actions(Idle()).do("kill w", lambda: raising(KeyError("w"))))
    assert outcome == ActionOutcome(False, "Action 1: could not kill w: KeyError: 'w'")
    assert caplog.records[0].exc_info


def test_an_action_without_an_end_is_answered_after_the_timeout():
    ended = threading.Event()

    def call() -> str:
        ended.wait(30.0)
        return ""

    async def act() -> ActionOutcome:
        try:
            return await Actions(Idle(), timeout_s=0.05).do("stop es", call)
        finally:
            ended.set()

    outcome = asyncio.run(act())
    assert not outcome.done
    assert outcome.text == "Action 1: stop es: no answer within 0 s; it may still take effect"
