"""The log of decisions: a line for each, which reads back."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropewalk.population.decisions import (
    Decision,
    Decisions,
    Fail,
    decision_of,
    line_of,
    read_decisions,
    unpacked_decisions,
)
from ropewalk.population.pacing.pacing import Ask, CancelEvaluations, Tell, Ticket

TICKETS = st.builds(Ticket, st.integers(0, 5), st.integers(0, 300))
MANY = st.lists(TICKETS, max_size=8).map(tuple)
DECISIONS = st.one_of(
    st.builds(Ask, st.integers(0, 4096)),
    st.builds(Tell, MANY),
    st.builds(CancelEvaluations, MANY),
    st.builds(Fail, TICKETS, st.text(max_size=20), st.none() | st.floats(allow_nan=False)),
)


@settings(max_examples=60, deadline=None)
@given(DECISIONS)
def test_a_decision_reads_back_from_its_line(decision: Decision) -> None:
    assert decision_of(line_of(decision)) == decision


def test_a_whole_generation_is_one_short_line() -> None:
    told = Tell(tuple(Ticket(7, position) for position in range(2048)))
    assert line_of(told) == '["tell", [[7, 0, 2048]]]'


def test_a_log_in_a_file_begins_with_what_came_before_it_was_resumed(tmp_path: Path) -> None:
    log = Decisions(tmp_path / "log" / "decisions.jsonl")
    log.begin_with([Ask(2)])
    log.open()
    log.add(Tell((Ticket(0, 0),)))
    log.add(Fail(Ticket(0, 1), "ValueError: no"))
    log.close()
    log.close()
    again = read_decisions(tmp_path / "log" / "decisions.jsonl")
    assert list(again) == list(log) and len(again) == 3
    assert again.instructions == [Ask(2), Tell((Ticket(0, 0),))]
    assert again.failed == {Ticket(0, 1): Fail(Ticket(0, 1), "ValueError: no")}


@pytest.mark.parametrize("line", ["", "7", '["told", 3]', '["ask", "many"]', '["tell", [[1, 2]]]'])
def test_a_line_that_is_no_decision_is_named(line: str) -> None:
    with pytest.raises(ValueError, match="line 2 of the log of decisions"):
        read_decisions(['["ask", 3]', line])


def test_packing_costs_only_what_is_new_and_reads_back() -> None:
    log = Decisions()
    for number in range(300):
        log.add(Ask(number))
        if number % 100 == 0:
            assert unpacked_decisions(log.packed()) == list(log)
    assert unpacked_decisions(log.packed()) == list(log) and len(log.packed()) < 2000


def test_folders_of_a_log_are_closed_to_others_under_any_umask(tmp_path: Path) -> None:  # S12
    before = os.umask(0)
    try:
        log = Decisions(tmp_path / "deep/er/decisions.jsonl")
        log.open()
        log.close()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / folder).stat().st_mode) for folder in ("deep", "deep/er")]
    assert modes == [0o700] * 2
