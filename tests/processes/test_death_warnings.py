"""Warnings of deaths, with a loop whose time the test moves."""

from __future__ import annotations

import logging

import pytest

from ropewalk.processes.death_warnings import DeathWarnings
from tests.program.recording import StandStillLoop


def warnings(loop: StandStillLoop) -> DeathWarnings:
    return DeathWarnings(logging.getLogger("ropewalk.test"), loop, lambda call: call())  # type: ignore[arg-type]


def test_many_deaths_are_summed_up_once_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    loop = StandStillLoop()
    told = warnings(loop)
    for number in range(7):
        told.warn("pool-1", f"death {number}", loop.now)
        loop.advance(1.0)
    assert caplog.messages == [f"death {number}" for number in range(5)]
    loop.advance(10.0)
    assert caplog.messages[5:] == ["2 more deaths of pool-1 within 10 s; the last one: death 6"]
    told.close()
    loop.advance(100.0)
    assert len(caplog.messages) == 6 and loop.num_planned == 0


def test_what_was_not_told_yet_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    loop = StandStillLoop()
    told = warnings(loop)
    for number in range(6):
        told.warn("pool-1", f"death {number} \x1b[2J", loop.now)
    told.close()
    told.close()
    loop.advance(100.0)
    assert caplog.messages[5:] == ["1 more death of pool-1 within 10 s; the last one: death 5 \\x1b[2J"]
